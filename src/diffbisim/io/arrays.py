"""The one reader of binary files: arrays and JSON, as if an enemy had written them.

Nothing in a file is believed before it is checked. Sizes are compared with `diffbisim.io.limits`, in the zip
directory and in the header of every array, before anything is unpacked; headers are matched, never evaluated; types are
real numbers, never objects; JSON is shallow and short. What does not fit raises `InvalidData` with the name of the file
and of the array. Only files that cannot be opened at all raise OSError, as everywhere in Python.
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

from diffbisim.errors import InvalidData
from diffbisim.io import limits
from diffbisim.io.files import open_file, sentence

P = ParamSpec("P")
T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]

#: What zipfile and zlib raise for archives that are damaged, encrypted, or packed in a way that they do not know.
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

HEADER = 10_000  # bytes of the header of an array, as in numpy
CHUNK = 2**22  # bytes unpacked at a time


def read_archive(path: str | Path, what: str, remedy: str) -> Arrays:
    """The arrays of an .npz file by name; ``what`` and ``remedy`` are for the message if it is none."""
    with open_file(path, limits.BYTES) as (file, size):
        try:
            with zipfile.ZipFile(file) as archive:
                return {name: _unpacked(archive, name, info) for name, info in _directory(archive, size).items()}
        except InvalidData as error:
            raise InvalidData(f"{path} is not a {what} ({error}); {remedy}") from None
        except DAMAGE as error:
            raise InvalidData(f"{path} is not a {what} ({sentence(error)}); {remedy}") from None


def read_array(path: str | Path) -> NDArray[Any]:
    """The array of numbers in an .npy file."""
    with open_file(path, limits.BYTES) as (file, size):
        try:
            return _array(file, size, "the array")
        except DAMAGE as error:
            raise InvalidData(
                f"{path} is not an array of numbers ({sentence(error)}); write it with numpy.save"
            ) from None


def _directory(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """What the archive holds, by name, if it may be unpacked."""
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
            raise InvalidData(f"array {name!r} is packed by method {info.compress_type}; only deflate is read")
        if name in found or name == info.filename:
            raise InvalidData(f"{info.filename!r} stands twice or is no .npy")
        found[name] = info
    return found


def _unpacked(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        return _array(file, info.file_size, f"array {name!r}")


def _array(file: IO[bytes], size: int, name: str) -> NDArray[Any]:
    """The next ``size`` bytes of a file, which must be one array in numpy's format, in native byte order."""
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
        raise InvalidData(f"{name} of shape {_short(sizes)} should have {promised:,} bytes and has {there:,}")
    array = np.empty(sizes[::-1] if order[1] == "True" else sizes, dtype)
    view, filled = array.reshape(-1).view(np.uint8), 0
    while filled < promised:
        part = file.read(min(CHUNK, promised - filled))
        if not part:
            raise InvalidData(f"{name} ends after {filled:,} of {promised:,} bytes")
        view[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(part)
    if file.read(1):  # at the end the checksum is compared, too
        raise InvalidData(f"{name} is longer than it says")
    array = array.T if order[1] == "True" else array
    return array.astype(dtype.newbyteorder("="), order="C", copy=False)


# --- JSON -------------------------------------------------------------------------------------------------------


def read_json(arrays: Mapping[str, NDArray[Any]], name: str) -> Any:
    """The JSON in an array of UTF-8 bytes."""
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


def part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    """The arrays whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


# --- what a file must hold --------------------------------------------------------------------------------------


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
    """An array of this shape and type with entries from ``least`` to ``most``, finite (or, with ``nan``, missing)."""
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
        raise InvalidData(f"array {name!r} has the entry {array[bad].flat[0]}, which is not from {least:g} to {most:g}")
    return array


def entry(meta: Any, name: str, fits: Callable[[Any], bool], expected: str) -> Any:
    """An entry of a JSON object, if it fits."""
    if not isinstance(meta, dict):
        raise InvalidData("the JSON is no object")
    if name not in meta:
        raise InvalidData(f"there is no {name!r}")
    value = meta[name]
    if not fits(value):
        raise InvalidData(f"{name} is {_short(value)}; expected {expected}")
    return value


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number that a float can hold."""
    return isinstance(value, float) or is_count(value, -(2**1000))


def is_count(value: Any, least: int = 0) -> bool:
    """Whether a JSON value is an integer of a sane size."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**1000


def is_row(value: Any) -> bool:
    """Whether a JSON value is a mapping from names to numbers."""
    return isinstance(value, dict) and all(map(is_number, value.values()))


def is_history(value: Any) -> bool:
    """Whether a JSON value is a list of rows."""
    return isinstance(value, list) and all(map(is_row, value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
