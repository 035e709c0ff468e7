"""Two pages that promise to be complete: the reference, and the map of the paper."""

import ast
import re
from functools import cache
from importlib import import_module
from inspect import getdoc, getmodule, isclass, isfunction
from pathlib import Path
from types import ModuleType

import pytest

import diffbisim

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
MAP = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")

# What the paper's source numbers.
NUMBERED = [
    *(f"Eq. {k}" for k in range(1, 17)),
    *(f"Algorithm {k}" for k in range(1, 4)),
    *(f"Figure {k}" for k in range(1, 8)),
    "Theorem 1",
    "Corollary 1",
]


def described(entry):
    """What an entry of the reference stands for."""
    module, _, name = entry.rpartition(".")
    first, _, rest = module.partition(".")
    module = ".".join(part for part in ("diffbisim", diffbisim._MODULES.get(first, first), rest) if part)
    return getattr(import_module(module), name)


def public():
    """(name, object) of all that users are given: the names of the package, and those of its public modules."""
    for name in diffbisim._NAMES:
        yield name, getattr(diffbisim, name)
    for short in diffbisim._MODULES:
        module = getattr(diffbisim, short)
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            value = getattr(module, name)
            own = getmodule(value) is module or hasattr(module, "__all__")
            if own and not isinstance(value, ModuleType) and (isclass(value) or isfunction(value)):
                yield f"{short}.{name}", value


def test_the_reference_has_every_public_name():
    known = [described(entry) for entry in re.findall(r"^   ([\w.]+)$", API, re.MULTILINE)]
    assert len(known) >= len(diffbisim._NAMES)
    assert [name for name, value in public() if not any(value is other for other in known)] == []


def rows():
    """The cells of the tables that have three columns."""
    for line in MAP.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if len(cells) == 3 and cells[0] not in ("paper", "---"):
            yield cells


def test_the_reference_shows_what_properties_say_in_full():
    """Sphinx takes what stands before a colon in the first line of a property for its type, and leaves it out."""
    cut = []
    for entry in re.findall(r"^   ([A-Za-z][\w.]*)$", API, re.MULTILINE):
        for name, member in vars(described(entry)).items() if isclass(described(entry)) else ():
            text = getattr(member, "__doc__", None) or ""
            first = re.sub(r":\w+:`[^`]*`|`+[^`]*`+", "", text.partition("\n")[0])
            method = callable(member) or isinstance(member, (classmethod, staticmethod))
            if hasattr(member, "__get__") and not method and not name.startswith("_") and ":" in first:
                cut.append(f"{entry}.{name}")
    assert cut == []


def test_every_attribute_has_a_line_of_its_own():
    """Sphinx takes the first of several names for the type of the last."""
    shared = []
    for entry in re.findall(r"^   ([A-Za-z][\w.]*)$", API, re.MULTILINE):
        _, _, text = (getdoc(described(entry)) or "").partition("Attributes\n----------\n")
        shared += [f"{entry}: {line}" for line in text.split("\n\n")[0].splitlines() if re.match(r"\w+, ", line)]
    assert shared == []


def test_the_map_has_all_that_the_paper_numbers():
    said = re.sub(r"\b(Eq\.|Figure)s? (\d+) and (\d+)", r"\1 \2, \1 \3", " ".join(first for first, _, _ in rows()))
    assert [name for name in NUMBERED if not re.search(rf"{re.escape(name)}(?!\d)", said)] == []


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0][:40])
def test_a_row_of_the_map_names_what_exists(row):
    _, here, tested = row
    files = re.findall(r"`([\w/]+\.py)`", here + tested)
    assert [name for name in files if not any((top / name).exists() for top in (ROOT, ROOT / "src/diffbisim"))] == []
    code = [text for text in re.findall(r"`([^`]+)`", here) if not text.endswith((".py", ".hpp", "/"))]
    words = [word for text in code for word in re.findall(r"[A-Za-z_]\w+", re.sub(r"\".*?\"|=\s*\w+", "", text))]
    assert [word for word in words if word not in defined_below("src", "*.py") | OF_THE_TEXT] == []
    assert "test_" in tested
    assert set(re.findall(r"`(test_\w+)`", tested)) <= defined_below("tests", "test_*.py")


def names_in(tree):
    """Functions, classes, arguments and fields."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def defined_below(folder, pattern):
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob(pattern)]
    if folder == "tests":
        return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    return {name for text in texts for name in names_in(ast.parse(text))}


OF_THE_TEXT = {"result", "stream", "examples"}  # a result, a stream, and the module diffbisim.examples
