"""Build the engine of an editable install again when its sources have changed.

An editable install copies this module to ``src/diffbisim/_rebuild.py``, where ``_engine.py`` calls it. It needs what
the install was built with (``pip install --no-build-isolation -e .``, as ``make setup`` does); otherwise the error
says what to do.
"""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rebuild() -> None:
    """Build the engine if a source is newer than it; raises ImportError if that fails."""
    modules = [*Path(__file__).parent.glob("_engine_*.so"), *Path(__file__).parent.glob("_engine_*.pyd")]
    sources = [path for path in (ROOT / "engine").glob("*") if path.suffix in (".cpp", ".hpp", ".txt")]
    if not modules or not sources or _latest(sources) <= min(path.stat().st_mtime_ns for path in modules):
        return
    with open(ROOT / "build" / "rebuilding", "w") as lock:
        _hold(lock.fileno())
        if _latest(sources) <= min(path.stat().st_mtime_ns for path in modules):
            return  # another process has built it in the meantime
        caches = sorted((ROOT / "build").glob("editable-*/CMakeCache.txt"), key=lambda path: path.stat().st_mtime)
        if not caches or not (cmake := shutil.which("cmake")):
            raise ImportError(f"the sources of the engine have changed, and {_missing(caches)}; run 'make setup'")
        done = subprocess.run([cmake, "--build", caches[-1].parent], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ImportError(f"the engine could not be built again; run 'make setup'\n{done.stdout}{done.stderr}")
        for path in modules:
            os.utime(path)


def _latest(paths: list[Path]) -> int:
    return max(path.stat().st_mtime_ns for path in paths)


def _missing(caches: list[Path]) -> str:
    return "CMake is not installed" if caches else "it has no build folder"


def _hold(file: int) -> None:
    """Wait until no other process builds; on Windows two processes may build one after the other."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX)
