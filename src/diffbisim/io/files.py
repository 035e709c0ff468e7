"""Opening files, replacing them, and what is said when something is wrong with one.

A file is somebody else's: it is refused above its limit before it is read, and whatever is wrong with it is
`InvalidData` with the name of the file and, in text, the line. Only files that cannot be opened at all raise OSError,
as everywhere in Python. What is written takes its place all at once, or not at all.
"""

from __future__ import annotations

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

from diffbisim.errors import DiffbisimError, InvalidChain, InvalidData
from diffbisim.io import limits

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

P = ParamSpec("P")
T = TypeVar("T")

#: What checks and conversions raise for content that nobody foresaw; the message says which file it was.
UNFIT = (KeyError, IndexError, AttributeError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)

TOKEN = 8  # hexadecimal digits in the name of a temporary file


# --- errors -------------------------------------------------------------------------------------------------------


def broken(path: Path, line: int, text: str, why: str) -> InvalidData:
    """The error for a file that cannot be read: where, what stands there, and why it is wrong."""
    shown = f": {text[:80]!r}" if text else ""
    error = InvalidData(f"{path}, line {line}{shown}: {why}")
    error.file, error.line = path, line
    return error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before the messages of errors about the chain in it, unless they begin with it already."""
    try:
        yield
    except (InvalidData, InvalidChain) as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from None


@contextmanager
def refusing(path: str | Path, what: str, remedy: str) -> Iterator[None]:
    """Whatever is wrong with the content of a file is `InvalidData`, and the message names the file."""
    try:
        yield
    except DiffbisimError as error:
        raise InvalidData(f"{path}: {error}") from None
    except UNFIT as error:
        raise InvalidData(f"{path} is not a {what} ({sentence(error)}); {remedy}") from None


def within_memory(read: Callable[P, T]) -> Callable[P, T]:
    """A reader whose first argument is a file: what does not fit into memory is refused like all that does not fit."""

    @wraps(read)
    def run(*args: P.args, **options: P.kwargs) -> T:
        try:
            return read(*args, **options)
        except MemoryError as error:
            raise InvalidData(f"{args[0]}: {sentence(error)}") from None

    return run


def sentence(error: BaseException) -> str:
    """What an error of Python's own says, in words."""
    if isinstance(error, KeyError) and error.args:
        return f"there is no {error.args[0]!r}"
    if isinstance(error, MemoryError):
        return f"there is not enough memory for it: {error}" if str(error) else "there is not enough memory for it"
    return str(error) or type(error).__name__


# --- reading ------------------------------------------------------------------------------------------------------


@contextmanager
def open_file(path: str | Path, most: int, **options: Any) -> Iterator[tuple[IO[Any], int]]:
    """A file of at most so many bytes, and its size; pipes and devices, whose end nobody knows, are refused."""
    about = Path(path).stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):  # open() says what is wrong with a folder
        raise InvalidData(f"{path} is a pipe or a device; write its content to a file first")
    if about.st_size > most:
        raise InvalidData(
            f"{path} has {about.st_size:,} bytes, more than {most:,}; raise the limit in diffbisim.io.limits"
        )
    with Path(path).open(**options) if options else Path(path).open("rb") as file:
        yield file, about.st_size


STDIN = Path("-")  # standard input, as it is named on the command line


def extension(path: str | Path) -> str:
    """What kind of file it is by its name, in lower case: ".csv", also of table.csv.gz and of standard input."""
    return ".csv" if Path(path) == STDIN else Path(Path(path).name.lower().removesuffix(".gz")).suffix


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The file as UTF-8 text, with or without a byte order mark; what is packed (.gz) is unpacked."""
    with open_bytes(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        try:
            yield text
        except UnicodeDecodeError as error:
            raise InvalidData(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from None


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a text file, unpacked; at most so many as a text may have."""
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
    """What a .gz file unpacks to, which may be a thousand times as much: not more than a text may have."""

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
    """All of standard input, read once however often it is asked for."""
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
    """A temporary file beside ``path`` that takes its place when all is written, or vanishes.

    It is locked while it is written, so that :func:`remove_abandoned` can tell it from what a killed process left.
    """
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
    """A new file beside ``path``, open and locked."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(TOKEN // 2)}")
        file: IO[Any] = temporary.open("xb") if binary else temporary.open("x", encoding="utf-8", newline="")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody is about to remove it, see below
            file.close()
            continue
        except OSError:  # a file system without locks
            pass
        if temporary.exists():
            return temporary, file
        file.close()


def remove_abandoned(path: Path) -> None:
    """Delete the temporary files of ``path`` that a killed process has left, and none that is still being written."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * TOKEN}"):
        try:
            with leftover.open("r+b") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink()
            if fcntl is None:  # Windows does not delete what is open
                leftover.unlink()
        except OSError:  # locked by its writer, gone already, or not ours
            continue
