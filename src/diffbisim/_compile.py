"""``njit`` for the kernels of this package: numba's own, with a cache that knows the sources of *all* kernels.

numba keeps machine code on disk and takes it for fresh while the file of *that function* is unchanged. What it calls
from another file, or a constant it takes from there, may have changed meanwhile: the old code is then run without a
word. (Older versions of numba look at time and size of the file only, which some installers normalize.) Here the
machine code lies one folder deeper, in a folder named by a digest of

    the text of every file of this package that compiles anything or has the tuples that kernels read,
    and the versions of diffbisim, numba, llvmlite, numpy

so code of other sources is never even looked at, not by accident and not after a kill between two writes. Everything
else is numba's: ``NUMBA_CACHE_DIR``, ``__pycache__`` or the user's own cache folder, whichever can be written.

The latest KEPT folders stay, for those who switch between branches; older ones go when a new one is begun. A cache that
cannot be read or written is no cache: the function is compiled. The same holds should a future numba lack what is used
here: then nothing is kept on disk.
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
except ImportError:  # numba has changed: nothing is kept
    CompileResultCacheImpl = FunctionCache = IndexDataCacheFile = object

KEPT = 8
PREFIX = "diffbisim-"
LAYOUTS = ("stochastic.py",)  # compile nothing, and have the tuples that kernels read
COMPILES = re.compile(rb"^from (?:numba|llvmlite|diffbisim\._compile)\b", re.MULTILINE)


def njit(**options: Any) -> Any:
    """``numba.njit(**options)``; with ``cache=True`` compiled code is kept on disk while no kernel has changed."""
    cached = options.pop("cache", False)

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cached and hasattr(dispatcher, "enable_caching"):  # not with NUMBA_DISABLE_JIT
            with suppress(Exception):  # no folder can be written, no source can be read, numba has changed: no cache
                dispatcher._cache = _KernelCache(function)  # what enable_caching does, with another class
        return dispatcher

    return compiled


@cache
def digest() -> str:
    """Of all that decides what the kernels do; raises OSError where the sources cannot be read."""
    root = Path(__file__).parent
    seen = hashlib.sha256(
        repr((diffbisim.__version__, numba.__version__, llvmlite.__version__, np.__version__)).encode()
    )
    for path in (*kernel_files(), *(root / name for name in LAYOUTS if (root / name).exists())):
        text = path.read_bytes()
        seen.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return seen.hexdigest()[:16]


def kernel_files() -> list[Path]:
    """The files of this package that compile anything, this one included."""
    root = Path(__file__).parent
    found = [
        path for path in sorted(root.rglob("*.py")) if path == Path(__file__) or COMPILES.search(path.read_bytes())
    ]
    if len(found) < 2:
        raise FileNotFoundError(f"no sources in {root}")
    return found


class _KernelCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    """Where numba would put the code of a function, one folder deeper."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        folder = os.path.join(self._locator.get_cache_path(), PREFIX + digest())
        self._locator.get_cache_path = lambda: folder


class _KernelFiles(IndexDataCacheFile):  # type: ignore[misc]
    """Files whose names follow from what is in them.

    numba numbers them. Two processes that compile a function for different types at once may take the same number, and
    one then runs the code of the other on the wrong types. Here they take different names; the index may lose an entry
    when both write it, which costs a compilation.
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
        except Exception:  # damaged: begin anew
            with suppress(Exception):
                self.flush()
            return None

    def save_overload(self, *args: Any) -> None:
        begun = os.path.isdir(self.cache_path)
        try:
            super().save_overload(*args)
        except Exception:  # the disk is full, or the folder has gone
            return
        if not begun:
            _forget(Path(self.cache_path).parent)


def _forget(parent: Path) -> None:
    """Remove all but the latest folders of machine code."""

    def age(path: Path) -> float:
        try:
            return -path.stat().st_mtime
        except OSError:  # another process was faster
            return 0.0

    for folder in sorted(parent.glob(PREFIX + "*"), key=age)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


@intrinsic
def borrowed(typingctx: Any, value: Any) -> Any:
    """The same array, or tuple of arrays, without reference counts, for the length of a call whose caller holds it.

    numba counts a reference, by an atomic operation, whenever an array is sliced, unpacked from a tuple or handed to a
    function. In loops over millions of small problems that takes longer than the work: a sweep over transports of 4 × 4
    cells takes two thirds of the time without. Only for what came as an argument.
    """

    def uncounted(context: Any, builder: Any, kind: Any, llvm: Any) -> Any:
        if isinstance(kind, types.BaseTuple):
            parts = cgutils.unpack_tuple(builder, llvm, kind.count)
            parts = [uncounted(context, builder, *part) for part in zip(kind.types, parts, strict=True)]
            return context.make_tuple(builder, kind, parts)
        if not isinstance(kind, types.Array):
            return llvm
        view = context.make_array(kind)(context, builder, value=llvm)
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        return view._getvalue()

    return value(value), lambda context, builder, signature, args: uncounted(context, builder, value, args[0])


@intrinsic
def held(typingctx: Any, value: Any) -> Any:
    """Does nothing; so what is named here lives until here, though only what was borrowed of it was used last."""
    return types.none(value), lambda context, builder, signature, args: context.get_dummy_value()
