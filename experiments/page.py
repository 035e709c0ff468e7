"""``report.html``: all experiments on one self-contained page, with embedded figures and without scripts.

The page starts with a tile for each experiment (figure and verdict), followed by a table of the paper's claims and the
results, and then each experiment with its figure, table and settings. On narrow screens the claims become cards, and
wide tables scroll inside their frames. Colors follow the reader's light or dark scheme; on paper they are light.
"""

from __future__ import annotations

import base64
import io
import json
import platform
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from diffbisim import __version__
from diffbisim.io.files import replacing
from experiments.report import AGREES, BEYOND, DIFFERS, IN_PART, Finished, code_of_package

#: CSS classes of the verdicts, which are drawn because not every font has suitable symbols.
SIGN = {AGREES: "agrees", IN_PART: "in-part", DIFFERS: "differs", BEYOND: "beyond"}

STYLE = """
:root { color-scheme: light; --page: #ffffff; --text: #1a1a1a; --muted: #555555; --line: #d9d9d9; --link: #0072b2;
  --soft: #f6f7f8; --head: #0000000a; --shadow: #0004; --green: #009e73; --orange: #d55e00; }
@media screen and (prefers-color-scheme: dark) { /* paper stays white */
  :root { color-scheme: dark; --page: #16191d; --text: #e4e6e9; --muted: #a9b0b8; --line: #3d444c; --link: #6cb8ee;
    --soft: #20252b; --head: #ffffff12; --shadow: #000c; --green: #2cc498; --orange: #f0812f; }
}
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; padding: 0;
  list-style: none; }
.tiles a { display: flex; flex-direction: column; height: 100%; border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem; color: inherit; text-decoration: none; }
.tiles a:hover, .tiles a:focus { border-color: var(--link); } .tiles strong { line-height: 1.25; color: var(--link); }
.tiles img { height: 9rem; width: 100%; object-fit: contain; margin: .5rem 0; } .tiles .small { line-height: 1.35;
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; overflow: hidden; }
dl.terms { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dl.terms dt { font-weight: 600; } dl.terms dd { margin: 0; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 0 auto;
  max-width: 84rem; padding: 1rem 1.25rem 4rem; overflow-wrap: break-word; }
h1 { line-height: 1.2; margin: .5rem 0; } h2 { margin: 3rem 0 .5rem; border-top: 1px solid var(--line);
  padding-top: 1.5rem; line-height: 1.25; }
a { color: var(--link); }
img { max-width: min(100%, 62rem); height: auto; display: block; margin: 1rem auto; background: white;
  border-radius: 4px; } /* figures are drawn on white, in both schemes */
p, ul, dl { max-width: 62rem; } .tiles { max-width: none; }
.frame { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; margin: 1rem 0;
  background: linear-gradient(90deg, var(--page) 2rem, transparent) 0 0 / 4rem 100% no-repeat local,
    linear-gradient(270deg, var(--page) 2rem, transparent) 100% 0 / 4rem 100% no-repeat local,
    linear-gradient(90deg, var(--shadow), transparent) 0 0 / .8rem 100% no-repeat scroll,
    linear-gradient(270deg, var(--shadow), transparent) 100% 0 / .8rem 100% no-repeat scroll;
  } /* a shadow where more is hidden */
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; } thead th { background: var(--head); }
.claims td:nth-child(3) { width: 32%; }
.data td { white-space: nowrap; } .number { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; display: inline-block; padding-left: 1.35rem; position: relative; }
.verdict::before { content: ""; position: absolute; left: 0; top: .35em; width: .75em; height: .75em;
  border: 2px solid var(--muted); border-radius: 50%; }
.agrees::before { background: var(--green); border-color: var(--green); }
.differs::before { background: var(--orange); border-color: var(--orange); }
.in-part::before { background: linear-gradient(90deg, var(--green) 50%, transparent 50%); border-color: var(--green); }
.whole { white-space: nowrap; } .small { color: var(--muted); font-size: .9rem; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; font-size: .85rem; }
summary { cursor: pointer; padding: .4rem 0; }
@media (max-width: 40rem) { body { padding: .5rem .8rem 3rem; } }
@media (max-width: 60rem) { /* tablets and paper, too */
  .data table { font-size: .8rem; } .data td, .data th { padding: .3rem .4rem; }
  .claims thead { display: none; } .claims tr, .claims td { display: block; }
  .claims td, .claims td:nth-child(3) { width: auto; border: 0; padding: .25rem .8rem; }
  .claims tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  .claims td::before { content: attr(data-name) ": "; font-weight: 600; }
}
@page { margin: 14mm; }
@media print { body { padding: 0; } .frame { overflow: visible; background: none; } .data td { white-space: normal; }
  h2 { break-before: page; margin-top: 0; border: 0; padding: 0; } img { max-height: 12cm; width: auto; }
  .tiles { grid-template-columns: repeat(3, 1fr); } .tiles li, tr, img { break-inside: avoid; }
  details { display: none; } }
"""

#: Width of a tile's figure in pixels, for high-density screens.
TILE = 560

#: Definitions of terms used on the page.
TERMS = """<dl class="terms">
<dt>distance</dt><dd>the bisimulation metric: the minimal expected discounted cost of two coupled chains, neither of
which anticipates the other's future</dd>
<dt>certified</dt><dd>proved by the computation itself: the true value lies between the bounds, including rounding</dd>
<dt>encoder</dt><dd>which state of one chain stands for which of the other, in the optimal coupling</dd>
<dt>verdict</dt><dd>whether the results agree with the paper; green: yes, half green: in part, orange: no, empty: not
in the paper</dd>
</dl>"""


def write_page(path: Path, experiments: Mapping[str, Finished]) -> None:
    """Write the page about these experiments, in this order."""
    with replacing(path) as file:
        file.write(
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>diffbisim: the experiments</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            "<h1>Bisimulation metrics and their gradients: the experiments</h1>\n"
            f'{_tiles(experiments)}\n{TERMS}\n<p class="small">{_provenance(experiments)}</p>\n'
            '<h2 id="claims">Claimed and measured</h2>\n'
            f"{_claims(experiments)}\n{''.join(_section(*item) for item in experiments.items())}\n</body>\n</html>\n"
        )


def _provenance(experiments: Mapping[str, Finished]) -> str:
    seconds = sum(done.seconds for done in experiments.values())
    return (
        f"Made by <code>diffbisim reproduce</code>, version {__version__} (sources {code_of_package()}), Python "
        f"{platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}; {len(experiments)} "
        f"experiments, {seconds:.0f} s in all. Bounds called certified are proved by the run itself. Every number "
        "below is computed; none is copied from the paper."
    )


def _picture(path: Path, title: str, width: int | None = None) -> str:
    """Return an embedded figure, optionally scaled down to a width in pixels."""
    from PIL import Image  # a dependency of matplotlib

    data = path.read_bytes()
    if width is not None:
        with Image.open(path) as image, io.BytesIO() as file:
            image.thumbnail((width, width), Image.Resampling.LANCZOS)
            image.save(file, "PNG", optimize=True)
            data = file.getvalue()
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(data).decode("ascii")}">'


def _tiles(experiments: Mapping[str, Finished]) -> str:
    """Return the tiles with the figure and verdict of each experiment."""
    tiles = "".join(
        f'<li><a href="#{name}"><strong>{escape(done.title)}</strong>'
        f"{_picture(done.files[0], done.title, TILE)}"
        f'<span class="verdict {SIGN.get(done.verdict, "")}">{escape(done.verdict)}</span>'
        f'<span class="small">{_prose(done.why or next(iter(done.findings), ""))}</span></a></li>\n'
        for name, done in experiments.items()
    )
    return f'<nav aria-label="The experiments"><ul class="tiles">\n{tiles}</ul></nav>'


def _prose(text: str) -> str:
    """Return a sentence as HTML, with signs for what a terminal shows in ASCII, and no number broken at its sign."""
    text = escape(text).replace("&lt;=", "≤").replace("&gt;=", "≥")
    return re.sub(r"[\d.]*\d[eE]-\d+", r'<span class="whole">\g<0></span>', text)


def _claims(experiments: Mapping[str, Finished]) -> str:
    names = ("experiment", "the paper says", "measured here", "verdict", "because")
    rows = []
    for name, done in experiments.items():
        cells = (
            f'<a href="#{name}">{escape(done.title)}</a>',
            _prose(done.claim) or "nothing",
            "<br>".join(map(_prose, done.findings)),
            f'<span class="verdict {SIGN.get(done.verdict, "")}">{escape(done.verdict)}</span>',
            _prose(done.why),
        )
        rows.append("".join(f'<td data-name="{n}">{cell}</td>' for n, cell in zip(names, cells, strict=True)))
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return _framed(f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>')


def _framed(table: str, kind: str = "") -> str:
    """Put a table in a scrollable frame, which is accessible by keyboard."""
    return f'<div class="frame {kind}" tabindex="0">{table}</div>'


def _section(name: str, done: Finished) -> str:
    figure, rows, numbers = done.files
    findings = "".join(f"<li>{_prose(sentence)}</li>" for sentence in done.findings)
    files = ", ".join(f'<a href="{file.name}">{file.name}</a>' for file in (figure, rows, numbers))
    return (
        f'<h2 id="{name}">{escape(done.title)}</h2>\n<ul>{findings}</ul>\n'
        f"{_picture(figure, done.title)}\n{_table(done)}\n"
        f"<details><summary>Settings and seeds</summary><pre>{escape(json.dumps(done.settings, indent=2))}</pre>"
        f'</details>\n<p class="small">{done.seconds:.1f} s; beside this page: {files}</p>\n'
    )


def _table(done: Finished) -> str:
    numeric = [all(_is_number(row[k]) for row in done.rows) for k in range(len(done.header))]

    def cells(tag: str, values: Any) -> str:
        marks = (' class="number"' if right else "" for right in numeric)
        return "".join(f"<{tag}{mark}>{escape(value)}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in done.rows)
    head = cells("th", done.header)
    return _framed(f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>", "data")


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("x"))
    except ValueError:
        return text in ("kink", "")
    return True
