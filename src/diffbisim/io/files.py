"""Opening files with size limits, replacing them atomically, and errors about their content.

Files are not trusted: one above its size limit is rejected before it is read, and invalid content raises `InvalidData`
with the name of the file and, for text, the line. A file that cannot be opened raises OSError. A file is replaced
completely or not at all.
"""

from __future__ import annotations

import errno
import glob
import gzip
import io
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from diffbisim.common.errors import DiffbisimError, InvalidChain, InvalidData
from diffbisim.io import limits

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

P = ParamSpec("P")
T = TypeVar("T")

#: Exceptions that checks and conversions may raise for unexpected content.
UNFIT = (KeyError, IndexError, AttributeError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)

TOKEN = 8  # number of hexadecimal digits in the name of a temporary file


# --- errors -------------------------------------------------------------------------------------------------------


def broken(path: Path, line: int, text: str, why: str) -> InvalidData:
    """Return the error for invalid text, with the file, the line, the text and the reason."""
    shown = f": {text[:80]!r}" if text else ""
    error = InvalidData(f"{path}, line {line}{shown}: {why}")
    error.file, error.line = path, line
    return error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix messages of errors about a chain with the name of its file, unless they have it already."""
    try:
        yield
    except (InvalidData, InvalidChain) as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from None


@contextmanager
def refusing(path: str | Path, what: str, remedy: str) -> Iterator[None]:
    """Convert errors about the content of a file to `InvalidData` with the name of the file."""
    try:
        yield
    except DiffbisimError as error:
        raise InvalidData(f"{path}: {error}") from None
    except UNFIT as error:
        raise InvalidData(f"{path} is not a {what} ({sentence(error)}); {remedy}") from None


def within_memory(read: Callable[P, T]) -> Callable[P, T]:
    """Decorate a reader, whose first argument is a path, to raise `InvalidData` instead of MemoryError."""

    @wraps(read)
    def run(*args: P.args, **options: P.kwargs) -> T:
        try:
            return read(*args, **options)
        except MemoryError as error:
            raise InvalidData(f"{args[0]}: {sentence(error)}") from None

    return run


def sentence(error: BaseException) -> str:
    """Describe a built-in exception in words."""
    if isinstance(error, KeyError) and error.args:
        return f"there is no {error.args[0]!r}"
    if isinstance(error, MemoryError):
        return f"there is not enough memory for it: {error}" if str(error) else "there is not enough memory for it"
    return str(error) or type(error).__name__


# --- reading ------------------------------------------------------------------------------------------------------


@contextmanager
def open_file(path: str | Path, most: int, **options: Any) -> Iterator[tuple[IO[Any], int]]:
    """Open a file of at most ``most`` bytes and yield it with its size; raise for pipes and devices."""
    about = Path(path).stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):  # open() raises for a folder
        raise InvalidData(f"{path} is a pipe or a device; write its content to a file first")
    if about.st_size > most:
        raise InvalidData(
            f"{path} has {about.st_size:,} bytes, more than {most:,}; raise the limit in diffbisim.io.limits"
        )
    with Path(path).open(**options) if options else Path(path).open("rb") as file:
        yield file, about.st_size


STDIN = Path("-")  # standard input, as written on the command line


def extension(path: str | Path) -> str:
    """Return the extension in lower case; ".csv" for table.csv.gz and for standard input."""
    return ".csv" if Path(path) == STDIN else Path(Path(path).name.lower().removesuffix(".gz")).suffix


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a file as UTF-8 text, with or without a byte order mark; .gz files are decompressed."""
    with open_bytes(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        try:
            yield text
        except UnicodeDecodeError as error:
            raise InvalidData(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from None


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open the bytes of a text file, decompressed, within the size limit for text."""
    if path == STDIN:
        yield io.BytesIO(_standard_input())
        return
    with open_file(path, limits.TEXT) as (file, _):
        if path.suffix.lower() != ".gz":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as packed:
            yield io.BufferedReader(Unpacked(path, packed), 2**16)


class Unpacked(io.RawIOBase):
    """The decompressed content of a .gz file, within the size limit for text."""

    def __init__(self, path: Path, packed: gzip.GzipFile) -> None:
        self.path, self.packed, self.left = path, packed, limits.TEXT

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self.packed.read(len(buffer))
        except (EOFError, OSError, zlib.error) as error:
            raise InvalidData(f"{self.path} cannot be unpacked ({error}); is the file complete?") from None
        self.left -= len(data)
        if self.left < 0:
            raise InvalidData(
                f"{self.path} unpacks to more than {limits.TEXT:,} bytes; raise the limit in diffbisim.io.limits"
            )
        buffer[: len(data)] = data
        return len(data)


_input: tuple[Any, bytes] = (None, b"")


def _standard_input() -> bytes:
    """Return all of standard input, which is read only once."""
    global _input
    if _input[0] is not sys.stdin:
        data = sys.stdin.buffer.read(limits.TEXT + 1)
        if len(data) > limits.TEXT:
            raise InvalidData(
                f"standard input has more than {limits.TEXT:,} bytes; raise the limit in diffbisim.io.limits"
            )
        _input = (sys.stdin, data)
    return _input[1]


# --- writing ------------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary file next to ``path`` that replaces it on success and is removed on failure.

    It is locked while it is being written, so that :func:`remove_abandoned` can recognize leftovers of killed
    processes.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {path.parent} does not exist; create it first", str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary, file = _temporary(path, binary)
    try:
        with file:
            yield file
            if fcntl is not None:  # while it is still locked
                file.flush()
                os.replace(temporary, path)
        if fcntl is None:
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary(path: Path, binary: bool) -> tuple[Path, IO[Any]]:
    """Create, open and lock a new file next to ``path``."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(TOKEN // 2)}")
        file: IO[Any] = temporary.open("xb") if binary else temporary.open("x", encoding="utf-8", newline="")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process is about to remove it, see remove_abandoned
            file.close()
            continue
        except OSError:  # a file system without locks
            pass
        if temporary.exists():
            return temporary, file
        file.close()


def remove_abandoned(path: Path) -> None:
    """Delete temporary files of ``path`` left by killed processes, but none that is still being written."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * TOKEN}"):
        try:
            with leftover.open("r+b") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink()
            if fcntl is None:  # Windows cannot delete open files
                leftover.unlink()
        except OSError:  # locked by its writer, already removed, or not ours
            continue
