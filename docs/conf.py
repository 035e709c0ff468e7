"""Sphinx: the pages of this folder, the reference from the docstrings, and the gallery from ``examples``."""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import diffbisim

project = "diffbisim"
author = "The diffbisim developers"
copyright = author
version = release = diffbisim.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache", "myst.xref_missing"]  # the gallery's order is a function; README is not a page
exclude_patterns = ["_build"]

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_member_order = "bysource"
napoleon_custom_sections = [("Returns", "params_style")]
default_role = "literal"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 5,
    "only_warn_on_example_error": False,
    "abort_on_example_error": True,
}

html_theme = "alabaster"
html_theme_options = {
    "description": "Distances between Markov processes that respect time",
    "fixed_sidebar": True,
    "page_width": "1080px",
}
html_show_sourcelink = False


def escape_bars(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """``|r(x) - r(y)|`` is an absolute value here, not a substitution; what stands in backquotes stays as it is."""
    for k, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        lines[k] = "`".join(parts)


def setup(app: Sphinx) -> None:
    for language in ("csv", "mermaid"):
        app.add_lexer(language, TextLexer)
    app.connect("autodoc-process-docstring", escape_bars)
