"""Sphinx: the pages of this folder, the reference from the docstrings, and the gallery from ``examples``."""

import ast
import inspect
import re
import sys
import textwrap
import warnings
from functools import partial
from html import escape, unescape
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import diffbisim

# The reference names public modules as users do, such as diffbisim.planning, and Sphinx imports what it names.
sys.modules.update({f"diffbisim.{name}": getattr(diffbisim, name) for name in diffbisim._MODULES})

project = "diffbisim"
author = "The diffbisim developers"
version = release = diffbisim.__version__
copyright = f"{author}, version {version}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache", "myst.xref_missing"]  # the gallery's order is a function; README is not a page
exclude_patterns = ["_build"]

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_member_order = "bysource"
napoleon_attr_annotations = False  # fields are described in words, too
napoleon_use_ivar = True  # and listed like parameters
napoleon_custom_sections = [("Returns", "params_style")]
default_role = "literal"

#: Studies and the packages that hold their data; one whose package is not installed is shown, but not run.
STUDIES = {
    "plot_life_courses": "sequenzo",
    "plot_paths_to_purchase": "ChannelAttribution",
    "plot_molecular_kinetics": "deeptime",
    "plot_storm_models": "stormpy",
    "plot_hospital_stays": "pymsm",
}


def installed(package: str) -> bool:
    try:
        return bool(distribution(package))
    except PackageNotFoundError:
        return False


LEFT_OUT = {study: package for study, package in STUDIES.items() if not installed(package)}

# Pages show what a warning says, not where it was raised on the machine that built them.
warnings.formatwarning = lambda message, category, *where, **line: f"{category.__name__}: {message}\n"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": rf"/plot_(?!{'|'.join(study[5:] for study in LEFT_OUT)})" if LEFT_OUT else r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "image_srcset": ["2x"],  # sharp on screens of phones, too
    "capture_repr": (),  # what is printed is shown, not the text of axes and legends
    "write_computation_times": False,
    "min_reported_time": float("inf"),  # of the machine that built the pages, which says nothing about the reader's
    "only_warn_on_example_error": False,
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = f"diffbisim {version}"
html_logo = html_favicon = "_static/logo.svg"
html_theme_options = {
    "logo": {"text": "diffbisim"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_end": ["versions", "theme-switcher", "navbar-icon-links"],
    "show_nav_level": 2,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
CHANGES = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
html_context = {"default_mode": "auto", "versions": re.findall(r"^## \[(\d[^\]]*)\]", CHANGES, re.MULTILINE)}
templates_path = ["_templates"]
html_sidebars = {"index": [], "quickstart": []}  # what stands alone needs no list of its neighbors
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"  # browsers show it by themselves: no script, no network


def escape_bars(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """``|r(x) - r(y)|`` is an absolute value here, not a substitution; what stands in backquotes stays as it is."""
    for k, line in enumerate(lines):
        parts = re.split(r"(`+[^`]*`+)", line)
        parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        lines[k] = "".join(parts)


def comments_on_fields(cls: type) -> dict[str, str]:
    """Return the comments beside the public fields of a data class or named tuple."""
    source = textwrap.dedent(inspect.getsource(cls)).splitlines()
    found = {}
    for node in ast.parse("\n".join(source)).body[0].body:
        if isinstance(node, ast.AnnAssign) and not node.target.id.startswith("_"):
            comment = source[node.end_lineno - 1][node.end_col_offset :].partition("#")[2].strip(": ")
            if comment and not comment.startswith(("type:", "noqa")):
                found[node.target.id] = comment
    return found


def describe_fields(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Fields are described by the comments beside them, if the docstring of their class does not describe any."""
    if lines and lines[0].startswith("Alias for field number"):
        lines[:] = []
    if what != "class" or {"Attributes", "Parameters"} & set(lines) or not obj.__module__.startswith("diffbisim"):
        return
    found = comments_on_fields(obj)
    if found:
        lines += ["", "Attributes", "----------"]
    for field, comment in found.items():
        comment = f"Array {comment}" if comment.startswith("(") else comment  # its shape comes first
        parts = re.split(r"(`+[^`]*`+)", comment[0].upper() + comment[1:].rstrip(".") + ".")
        parts[::2] = [re.sub(r"[*\\]|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        lines += [field, "    " + "".join(parts)]


def mathml(node: nodes.Node, block: bool = False) -> str:
    """Sizes are left to the browser; the number of an equation stands behind it, and functions stand apart."""
    tex = re.sub(r"\\([bB]igg?[lr]?|textstyle)(?![a-zA-Z])", "", node.astext())
    tex = tex.replace(r"\|", r"\parallel ")  # a relation, with room on both sides
    tex = re.sub(r"\\(log|cos|sin)(?![a-zA-Z_])\s*", r"\\\1\\,", re.sub(r"(?<=[\w)}])\s*(?=\\log)", r"\\,", tex))
    tex = re.sub(r"\\tag\{([^}]*)\}", r"\\qquad (\\text{\1})", tex)
    # Fences without \left and \right keep their size, next to a sum too.
    found = latex2mathml.tex2mathml(tex, as_block=block)
    found = re.sub(r'<mo class="mathopen">(?=\|</mo>)', '<mo stretchy="false" form="prefix">', found)
    found = re.sub(r"<mo>(?=\|</mo>)", '<mo stretchy="false" form="postfix">', found)  # \lvert and \rvert touch
    return re.sub(r'<mo(?: class="mathopen")?>(?=[⟨⟩‖]</mo>)', '<mo stretchy="false">', found)


def inline_math(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(mathml(node))
    raise nodes.SkipNode


def display_math(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{mathml(node, block=True)}</div>')
    raise nodes.SkipNode


def break_code(code: re.Match[str]) -> str:
    """Long code in tables and titles may be broken between its words: ``diffbisim|.data``, ``linear_|gaussian``."""
    text = re.sub(r"(?<=[A-Za-z0-9)]{3})(?=\.(?!py\b)[A-Za-z])", "<wbr>", code[2])  # but not db.fit, nor solver.py
    return code[1] + re.sub(r"(?<=[A-Za-z0-9][_/(\[=,])(?=[\w&.*])", "<wbr>", text) + code[3]


def break_long_code(code: re.Match[str]) -> str:
    return break_code(code) if len(unescape(code[2])) > 16 else f'<span class="pre short">{code[2]}{code[3]}'


def break_table(table: re.Match[str]) -> str:
    """Entries that consist of numbers stay on one line, or on two with a range in parentheses; short code on one."""
    text = re.sub(r'(<span class="pre">)([^<]+)(</span>)', break_long_code, table[0])
    text = re.sub(r"(?<=\d)–(?=[−.\d])", "&NoBreak;–&NoBreak;", text)
    numbers = r"(?<=<p>)[-−–+±×%/.,()\d ]+(?=</p></td>)"
    return re.sub(numbers, lambda entry: re.sub(r" (?!\()", "&nbsp;", entry[0]), text)


def link_figure(title: str, image: re.Match[str]) -> str:
    """A figure is a link to its file, which a phone can magnify; one without words is described by its page."""
    tag = re.sub(r'alt="plot [^"]*"', f'alt="Figure of the example: {title}"', image[2])
    files = re.findall(r"[^\s\",]*_images/[^\s\",]+", tag)
    if image[1] or "_thumb" in tag or not files:
        return f"{image[1] or ''}{tag}"
    return f'<a class="figure" href="{files[-1]}">{tag}</a>'


def finish_page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Choose where lines break, outside of blocks of code, and make figures links."""
    parts = re.split(r"(<pre.*?</pre>)", context.get("body", ""), flags=re.DOTALL)
    for k, part in enumerate(parts[::2]):
        text = re.sub(r"<table.*?</table>", break_table, part, flags=re.DOTALL)
        text = re.sub(r"(<h1>)(\w+\.[\w.]+)()", break_code, text)
        formula = r"<math(?:(?!</math>).)*</math>(?:[).,;:]+|-\w+)"  # with the sign behind it, on one line
        text = re.sub(formula, r'<span class="kept">\g<0></span>', text, flags=re.DOTALL)
        text = re.sub(r"(<a [^>]*>)?(<img [^>]*>)", partial(link_figure, escape(context.get("title", ""))), text)
        text = text.replace(">Variables<span", ">Attributes<span")  # Sphinx's word for the fields of a class
        parts[2 * k] = re.sub(r"(?<=\d) %", "&nbsp;%", text)
    context["body"] = "".join(parts)
    for neighbor in (context.get("prev"), context.get("next")):
        if neighbor:
            neighbor["title"] = re.sub(r"()(\w+\.[\w.]+)()", break_code, neighbor["title"])


def name_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """A block of code that is a file (``title=model.csv``) has the name of the file as its caption."""
    source[0] = re.sub(r"^```(\w+) title=(\S+)$", r"```{code-block} \1\n:caption: \2", source[0], flags=re.MULTILINE)


def say_what_was_left_out(app: Sphinx, docname: str, source: list[str]) -> None:
    """A study whose data are not installed says so, under its title."""
    package = LEFT_OUT.get(Path(docname).name)
    if package is None:
        return
    note = (
        f".. warning::\n\n   This page was built without ``{package}``, so that its code is shown, but was not run: "
        "no numbers, no pictures. ``make docs`` takes it along where it can be had.\n"
    )
    source[0] = re.sub(r"(\n=+\n)", lambda found: f"{found[1]}\n{note}\n", source[0], count=1)


def setup(app: Sphinx) -> None:
    app.connect("source-read", say_what_was_left_out)
    app.connect("source-read", name_files)
    app.connect("html-page-context", finish_page)
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    for language in ("csv", "mermaid"):
        app.add_lexer(language, TextLexer)
    app.connect("autodoc-process-docstring", describe_fields, priority=400)  # before napoleon reads the sections
    app.connect("autodoc-process-docstring", escape_bars)
