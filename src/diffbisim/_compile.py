"""numba's ``njit`` with a disk cache that is invalidated when *any* kernel changes.

numba's own cache considers machine code up to date as long as the file of *that function* is unchanged. If a function
or constant that it uses from another file has changed, the old code is run silently. (Older versions of numba compare
only the time and size of the file, which some installers normalize.) Here the machine code is in a subfolder named by a
digest of

    the text of every file of this package that compiles kernels or defines the tuples that they read,
    and the versions of diffbisim, numba, llvmlite and numpy,

so code compiled from other sources is never used, even if a process was killed between two writes. Everything else is
numba's: the cache is in ``NUMBA_CACHE_DIR``, ``__pycache__`` or the user's cache folder, whichever is writable.

The latest KEPT subfolders are kept, for switching between branches. If the cache cannot be read or written, or a future
version of numba lacks the internals used here, functions are compiled without a cache.
"""

import hashlib
import os
import re
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

import diffbisim

try:
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
except ImportError:  # a newer numba has changed its internals: no cache
    CompileResultCacheImpl = FunctionCache = IndexDataCacheFile = object

KEPT = 8
PREFIX = "diffbisim-"
LAYOUTS = ("stochastic.py",)  # files without kernels that define tuples which kernels read
COMPILES = re.compile(rb"^from (?:numba|llvmlite|diffbisim\._compile)\b", re.MULTILINE)


def njit(**options: Any) -> Any:
    """Like ``numba.njit(**options)``; ``cache=True`` keeps compiled code on disk until any kernel changes."""
    cached = options.pop("cache", False)

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cached and hasattr(dispatcher, "enable_caching"):  # not with NUMBA_DISABLE_JIT
            with suppress(Exception):  # no cache if no folder is writable, sources are missing, or numba has changed
                dispatcher._cache = _KernelCache(function)  # as enable_caching does, with a different class
        return dispatcher

    return compiled


@cache
def digest() -> str:
    """Return the digest of everything that kernels depend on; raises OSError if the sources cannot be read."""
    root = Path(__file__).parent
    seen = hashlib.sha256(
        repr((diffbisim.__version__, numba.__version__, llvmlite.__version__, np.__version__)).encode()
    )
    for path in (*kernel_files(), *(root / name for name in LAYOUTS if (root / name).exists())):
        text = path.read_bytes()
        seen.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return seen.hexdigest()[:16]


def kernel_files() -> list[Path]:
    """Return the files of this package that compile kernels, including this one."""
    root = Path(__file__).parent
    found = [
        path for path in sorted(root.rglob("*.py")) if path == Path(__file__) or COMPILES.search(path.read_bytes())
    ]
    if len(found) < 2:
        raise FileNotFoundError(f"no sources in {root}")
    return found


class _KernelCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    """numba's cache location for a function, one folder deeper."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        folder = os.path.join(self._locator.get_cache_path(), PREFIX + digest())
        self._locator.get_cache_path = lambda: folder


class _KernelFiles(IndexDataCacheFile):  # type: ignore[misc]
    """Cache files named by their content.

    numba numbers the files. Two processes that compile a function for different types at the same time may use the same
    number, and one then runs the code of the other on the wrong types. Names by content avoid this; if both write the
    index at once, it may lose an entry, which costs one compilation.
    """

    def save(self, key: Any, data: Any) -> None:
        code = hashlib.sha256(self._dump(key)).hexdigest()[:24]
        name = f"{self._index_name.removesuffix('.nbi')}.{code}.nbc"
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})


class _KernelCache(FunctionCache):  # type: ignore[misc]
    _impl_class = _KernelCacheImpl

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _KernelFiles(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, *args: Any) -> Any:
        try:
            return super().load_overload(*args)
        except Exception:  # a damaged cache is discarded
            with suppress(Exception):
                self.flush()
            return None

    def save_overload(self, *args: Any) -> None:
        begun = os.path.isdir(self.cache_path)
        try:
            super().save_overload(*args)
        except Exception:  # the disk is full, or the folder was removed
            return
        if not begun:
            _remove_old_folders(Path(self.cache_path).parent)


def _remove_old_folders(parent: Path) -> None:
    """Remove all but the latest folders of machine code."""

    def age(path: Path) -> float:
        try:
            return -path.stat().st_mtime
        except OSError:  # removed by another process
            return 0.0

    for folder in sorted(parent.glob(PREFIX + "*"), key=age)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


@intrinsic
def uncounted(typingctx: Any, value: Any) -> Any:
    """Return the same array (or tuple of arrays) without reference counting, for use while the caller keeps it alive.

    numba updates a reference count atomically whenever an array is sliced, unpacked from a tuple or passed to a
    function. In loops over millions of small problems this is expensive: without reference counts a sweep over
    4 × 4 transports takes a third less time. Use it for function arguments only.
    """

    def strip(context: Any, builder: Any, kind: Any, llvm: Any) -> Any:
        if isinstance(kind, types.BaseTuple):
            parts = cgutils.unpack_tuple(builder, llvm, kind.count)
            parts = [strip(context, builder, *part) for part in zip(kind.types, parts, strict=True)]
            return context.make_tuple(builder, kind, parts)
        if not isinstance(kind, types.Array):
            return llvm
        view = context.make_array(kind)(context, builder, value=llvm)
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        return view._getvalue()

    return value(value), lambda context, builder, signature, args: strip(context, builder, value, args[0])


@intrinsic
def keep_alive(typingctx: Any, value: Any) -> Any:
    """Keep ``value`` alive up to this point; a no-op that prevents numba from releasing it after :func:`uncounted`."""
    return types.none(value), lambda context, builder, signature, args: context.get_dummy_value()
