"""What the texts show is what happens: every block of Python and every command in README and docs is run.

Conventions of the texts: a block ``csv title=a.csv`` is the content of the file a.csv; a block ``text`` right after a
block ``python`` is what that prints; commands are lines ``$ diffbisim …`` of a block ``console`` or ``sh``. All blocks
of one text run in order, in one folder, sharing their names.
"""

import importlib.util
import io
import re
import shlex
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from command_line import invoke
from diffbisim.common.errors import ConvergenceWarning

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL = [*TEXTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

FENCE = re.compile(r"^```(\w*)(?: title=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    title: str | None
    body: str
    line: int  # of the text
    adjoins: bool  # nothing but space between this block and the one before


def blocks(path):
    text, last = path.read_text(encoding="utf-8"), 0
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        yield Block(match[1], match[2], match[3], line, not text[last : match.start()].strip())
        last = match.end()


def run_python(block, path, names):
    """Execute a block; its line numbers are those of the text."""
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.body, str(path), "exec")
    with redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # some texts stop early on purpose
        exec(code, names)
    return printed.getvalue()


def run_commands(block, path):
    for line in block.body.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words and words[0] == "diffbisim":
            done = invoke(*words[1:])
            assert done.exit_code == 0, f"{path.name}: {line}\n{done.output}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_text_does_what_it_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "text"}, None
    for block in blocks(path):
        if block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            printed = run_python(block, path, names)
            continue
        elif block.language in ("console", "sh"):
            run_commands(block, path)
        elif block.language == "text" and block.adjoins and printed is not None:
            assert printed == block.body
        printed = None


def test_readme_has_an_example_that_prints():
    """The walk above finds what it should: no silent pass on an empty list."""
    found = list(blocks(ROOT / "README.md"))
    assert [block.language for block in found[:3]] == ["sh", "python", "text"]
    assert found[2].adjoins
    assert sum(line.startswith("$ diffbisim") for b in found for line in b.body.splitlines()) >= 4
    code = [line for line in found[1].body.splitlines() if line.strip()]
    assert len(code) <= 10


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_files_named_exist(path):
    """Paths of the project in backquotes, such as `solvers/exact.py` or `tests/package/test_layers.py`, are real."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for name in re.findall(r"`((?:src|tests|docs|solvers|data|experiments|cli)/[\w/]+\.\w+)`", text):
        if name != "solvers/your_solver.py":
            assert (ROOT / name).exists() or (ROOT / "src/diffbisim" / name).exists(), name


def test_make_targets_of_the_texts_exist():
    named = {
        name for path in ALL for name in re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert "test" in named
    subprocess.run(["make", "--dry-run", *sorted(named)], cwd=ROOT, capture_output=True, check=True)


def test_every_path_in_the_texts_can_be_imported():
    """Oracle: sys.modules. ``import a.b.c as d`` goes through the attributes, where a function may be in the way."""
    paths = {path for text in TEXTS for path in re.findall(r"diffbisim(?:\.[a-z_0-9]+)+", text.read_text("utf-8"))}
    assert "diffbisim.learning.imitate.baselines" in paths
    for path in sorted(paths):
        home, _, last = path.rpartition(".")
        names = {}
        try:
            is_module = importlib.util.find_spec(path) is not None
        except ModuleNotFoundError:
            is_module = False
        exec(f"import {path if is_module else home} as found", names)
        found = names["found"] if is_module else getattr(names["found"], last)
        assert callable(found) or found is sys.modules[path], path
