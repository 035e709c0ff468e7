"""A safe reader of binary files with arrays and JSON, which does not trust their content.

Everything is validated before use. The sizes in the zip directory and in the header of every array are compared with
`diffbisim.io.limits` before anything is unpacked; headers are matched, never evaluated; entries are real numbers, never
objects; and the size and depth of JSON are limited. Invalid content raises `InvalidData` with the names of the file and
the array. A file that cannot be opened raises OSError.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.errors import InvalidData
from diffbisim.io import limits
from diffbisim.io.files import open_file, sentence

P = ParamSpec("P")
T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]

#: Exceptions of zipfile and zlib for damaged, encrypted or unsupported archives.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, KeyError, IndexError, AttributeError, ValueError,
    TypeError, ArithmeticError, NotImplementedError, RuntimeError, MemoryError,
)  # fmt: skip

MAGIC = re.compile(rb"\x93NUMPY([\x01-\x03])\x00")
DESCR = re.compile(r"""['"]descr['"]: *['"]([^'"]{1,16})['"]""")
ORDER = re.compile(r"""['"]fortran_order['"]: *(True|False)""")
SHAPE = re.compile(r"""['"]shape['"]: *\(([0-9, ]*)\)""")
NUMBERS = re.compile(r"[<>|=]?[biuf][0-9]{1,2}")
STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')

HEADER = 10_000  # maximum size of the header of an array in bytes, as in numpy
CHUNK = 2**22  # number of bytes unpacked at a time


def read_archive(path: str | Path, what: str, remedy: str) -> Arrays:
    """Read the arrays of an .npz file by name; error messages use ``what`` and ``remedy``."""
    with open_file(path, limits.BYTES) as (file, size):
        try:
            with zipfile.ZipFile(file) as archive:
                return {name: _unpacked(archive, name, info) for name, info in _directory(archive, size).items()}
        except InvalidData as error:
            raise InvalidData(f"{path} is not a {what} ({error}); {remedy}") from None
        except DAMAGE as error:
            raise InvalidData(f"{path} is not a {what} ({sentence(error)}); {remedy}") from None


def read_array(path: str | Path) -> NDArray[Any]:
    """Read the array of numbers in an .npy file."""
    with open_file(path, limits.BYTES) as (file, size):
        try:
            return _array(file, size, "the array")
        except DAMAGE as error:
            raise InvalidData(
                f"{path} is not an array of numbers ({sentence(error)}); write it with numpy.save"
            ) from None


def _directory(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by name, after checking their sizes and types."""
    members = archive.infolist()
    if len(members) > limits.ARRAYS:
        raise InvalidData(f"it holds {len(members):,} arrays, more than {limits.ARRAYS:,}")
    total, most = sum(info.file_size for info in members), min(limits.BYTES, size + limits.INFLATED)
    if total > most:
        raise InvalidData(
            f"its {size:,} bytes unpack to {total:,}, more than {most:,}; raise the limits in diffbisim.io.limits"
        )
    found = {}
    for info in members:
        name = info.filename.removesuffix(".npy")
        if info.flag_bits & 0x1:
            raise InvalidData(f"array {name!r} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InvalidData(f"array {name!r} uses compression method {info.compress_type}; only deflate is supported")
        if name in found or name == info.filename:
            raise InvalidData(f"{info.filename!r} occurs twice or is not an .npy file")
        found[name] = info
    return found


def _unpacked(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        return _array(file, info.file_size, f"array {name!r}")


def _array(file: IO[bytes], size: int, name: str) -> NDArray[Any]:
    """Read the next ``size`` bytes of a file as one array in numpy's format, converted to native byte order."""
    magic = MAGIC.fullmatch(file.read(8))
    if magic is None:
        raise InvalidData(f"{name} is not in numpy's format")
    long = magic[1] != b"\x01"
    (length,) = struct.unpack("<I" if long else "<H", file.read(4 if long else 2))
    if length > HEADER:
        raise InvalidData(f"{name} has a header of {length:,} bytes")
    header = file.read(length).decode("latin1")
    descr, order, shape = DESCR.search(header), ORDER.search(header), SHAPE.search(header)
    if descr is None or order is None or shape is None:
        raise InvalidData(f"{name} has a header that cannot be read, or a type with fields")
    if not NUMBERS.fullmatch(descr[1]):
        pickled = ": Python objects are never read (allow_pickle=False)" if "O" in descr[1] else ", not numbers"
        raise InvalidData(f"{name} has entries of type {descr[1]!r}{pickled}")
    dtype = np.dtype(descr[1])
    sizes = tuple(int(word) for word in shape[1].replace(" ", "").rstrip(",").split(",") if word)
    promised, there = math.prod(sizes) * dtype.itemsize, size - 8 - (4 if long else 2) - length
    if promised != there:
        raise InvalidData(f"{name} of shape {_short(sizes)} should have {promised:,} bytes, but has {there:,}")
    array = np.empty(sizes[::-1] if order[1] == "True" else sizes, dtype)
    view, filled = array.reshape(-1).view(np.uint8), 0
    while filled < promised:
        part = file.read(min(CHUNK, promised - filled))
        if not part:
            raise InvalidData(f"{name} ends after {filled:,} of {promised:,} bytes")
        view[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(part)
    if file.read(1):  # reading to the end also verifies the checksum
        raise InvalidData(f"{name} is longer than its header says")
    array = array.T if order[1] == "True" else array
    return array.astype(dtype.newbyteorder("="), order="C", copy=False)


# --- JSON -------------------------------------------------------------------------------------------------------


def read_json(arrays: Mapping[str, NDArray[Any]], name: str) -> Any:
    """Parse the JSON in an array of UTF-8 bytes."""
    array = arrays[name]
    if array.dtype != np.uint8 or array.ndim != 1:
        raise InvalidData(f"array {name!r} must hold JSON as bytes, not {array.dtype} of shape {array.shape}")
    if array.size > limits.JSON:
        most = f"{limits.JSON:,}; raise diffbisim.io.limits.JSON"
        raise InvalidData(f"the JSON in {name!r} has {array.size:,} bytes, more than {most}")
    text = array.tobytes()
    bare = np.frombuffer(STRINGS.sub(b"", text), np.uint8)
    steps = ((bare == ord("[")) | (bare == ord("{"))).astype(np.int8)
    steps -= (bare == ord("]")) | (bare == ord("}"))
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > limits.DEPTH:
        raise InvalidData(f"the JSON in {name!r} is nested more than {limits.DEPTH} deep")
    try:
        return json.loads(text.decode("utf-8"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"the JSON in {name!r} is damaged ({error})") from None


def _integer(text: str) -> int:
    if len(text) > limits.DIGITS:
        raise ValueError(f"a number of {len(text):,} digits, more than {limits.DIGITS:,}")
    return int(text)


def json_array(value: Any) -> NDArray[np.uint8]:
    """Return a value as JSON in an array of UTF-8 bytes, the inverse of :func:`read_json`."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    """Return the arrays whose names start with the prefix, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays with the prefix before their names, the inverse of :func:`part`."""
    return {prefix + name: value for name, value in arrays.items()}


# --- validation -------------------------------------------------------------------------------------------------


def numbers(
    arrays: Mapping[str, NDArray[Any]],
    name: str,
    shape: tuple[int, ...],
    dtype: Any = np.float64,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    nan: bool = False,
) -> NDArray[Any]:
    """Return an array after checking shape, type, and that its entries are finite (or NaN, if allowed) and in range."""
    if name not in arrays:
        raise InvalidData(f"there is no array {name!r}")
    array = arrays[name]
    if array.dtype != dtype or array.shape != shape:
        raise InvalidData(
            f"array {name!r} is {array.dtype} of shape {array.shape}; expected {np.dtype(dtype)} of shape {shape}"
        )
    if array.dtype.kind == "f":
        fits = np.isfinite(array) | np.isnan(array) if nan else np.isfinite(array)
        if not fits.all():
            raise InvalidData(f"array {name!r} has an entry that is {array[~fits].flat[0]}")
    bad = (array < least) | (array > most)
    if bad.any():
        raise InvalidData(f"array {name!r} has the entry {array[bad].flat[0]}, not between {least:g} and {most:g}")
    return array


def entry(meta: Any, name: str, fits: Callable[[Any], bool], expected: str) -> Any:
    """Return an entry of a JSON object after checking it with ``fits``."""
    if not isinstance(meta, dict):
        raise InvalidData("the JSON is not an object")
    if name not in meta:
        raise InvalidData(f"there is no {name!r}")
    value = meta[name]
    if not fits(value):
        raise InvalidData(f"{name} is {_short(value)}; expected {expected}")
    return value


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number within the range of a float."""
    return isinstance(value, float) or is_count(value, -(2**1000))


def is_count(value: Any, least: int = 0) -> bool:
    """Return whether a JSON value is an integer of at least ``least`` within the range of a float."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**1000


def is_row(value: Any) -> bool:
    """Return whether a JSON value is a mapping from names to numbers."""
    return isinstance(value, dict) and all(map(is_number, value.values()))


def is_history(value: Any) -> bool:
    """Return whether a JSON value is a list of mappings from names to numbers."""
    return isinstance(value, list) and all(map(is_row, value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
