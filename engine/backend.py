"""Build backend: scikit-build-core, with a compiler from PyPI where there is none.

If no compiler for C++20 is found, or if the environment variable ``DIFFBISIM_ZIG`` is set, ``ziglang`` is added to the
build requirements and used as the compiler. Its target is named, because without one zig compiles for the processor
that it runs on. The target has an old C library, so that wheels run on every Linux since 2014.

An editable install leaves a module beside the engine that builds it again when its sources have changed.
"""

import base64
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist  # noqa: F401

with suppress(ImportError):  # metadata without a build, if the backend offers it
    from scikit_build_core.build import (  # noqa: F401
        prepare_metadata_for_build_editable,
        prepare_metadata_for_build_wheel,
    )

ROOT = Path(__file__).resolve().parents[1]

#: The module of an editable install that rebuilds the engine; _engine.py imports it where it exists.
REBUILD = ROOT / "src" / "diffbisim" / "_rebuild.py"

TARGETS = {
    ("Linux", "x86_64"): "x86_64-linux-gnu.2.17",
    ("Linux", "aarch64"): "aarch64-linux-gnu.2.17",
    ("Darwin", "x86_64"): "x86_64-macos",
    ("Darwin", "arm64"): "aarch64-macos",
}


def has_compiler() -> bool:
    """Return whether the compiler that CMake would take accepts C++20; Windows has its own way to find one."""
    if platform.system() == "Windows":
        return True
    named = os.environ.get("CXX")
    for compiler in [named] if named else ["c++", "g++", "clang++"]:
        if shutil.which(compiler.split()[0]):
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / "test.cpp"
                source.write_text("#include <span>\nint main() { return int(std::span<int>().size()); }\n")
                command = [*compiler.split(), "-std=c++20", "-c", str(source), "-o", str(source.with_suffix(".o"))]
                return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def uses_zig() -> bool:
    """Return whether zig compiles: because it is asked for, or because there is nothing else."""
    return bool(os.environ.get("DIFFBISIM_ZIG")) or not has_compiler()


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*_build.get_requires_for_build_wheel(config_settings), *(["ziglang>=0.13"] if uses_zig() else [])]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*_build.get_requires_for_build_editable(config_settings), *(["ziglang>=0.13"] if uses_zig() else [])]


def build_wheel(directory: str, config_settings: Any = None, metadata: str | None = None) -> str:
    _prepare()
    return _build.build_wheel(directory, config_settings, metadata)


def build_editable(directory: str, config_settings: Any = None, metadata: str | None = None) -> str:
    _prepare()
    REBUILD.unlink(missing_ok=True)
    name: str = _build.build_editable(directory, config_settings, metadata)
    _find_by_path(Path(directory) / name)
    REBUILD.write_text((Path(__file__).parent / "rebuild.py").read_text(encoding="utf-8"), encoding="utf-8")
    return name


def _find_by_path(wheel: Path) -> None:
    """Replace the import hook of an editable wheel by the path of the sources, which ``PYTHONPATH`` can precede."""
    with zipfile.ZipFile(wheel) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if not name.startswith("_editable_")}
    parts["diffbisim.pth"] = f"{ROOT / 'src'}\n".encode()
    (record,) = (name for name in parts if name.endswith(".dist-info/RECORD"))
    del parts[record]
    lines = [f"{record},,\n"]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
            archive.writestr(name, content)
        archive.writestr(record, "".join(lines))


def _prepare() -> None:
    """Check for Python's headers, and make zig the compiler if there is no other."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.exists():
        raise SystemExit(
            f"{headers} is missing, which is needed to build diffbisim. Install Python's headers, such as the package "
            "python3-dev (Debian, Ubuntu) or python3-devel (Fedora)."
        )
    if not uses_zig():
        return
    system = platform.system(), platform.machine()
    if system not in TARGETS:
        raise SystemExit(f"no compiler for C++20 was found, and none is known for {' '.join(system)}; install one")
    print("The engine is compiled by ziglang from PyPI.", file=sys.stderr)
    folder = ROOT / "build" / "zig"  # a later build of the same sources finds it again
    folder.mkdir(parents=True, exist_ok=True)
    for name, verb in (("zig-cc", "cc"), ("zig-c++", "c++")):
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {verb} -target {TARGETS[system]} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    os.environ.update(CC=str(folder / "zig-cc"), CXX=str(folder / "zig-c++"), DIFFBISIM_ZIG="1")
