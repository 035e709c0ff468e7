"""A page to look at: two chains, how they are coupled and where the distance between them arises.

One file of HTML holds the data, the script and the drawing library (plotly.js), so that it opens from a disk without a
server or a network. `data.py` makes what is shown out of a result, `page.js` shows it, `page.css` dresses it.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from diffbisim import __version__
from diffbisim.errors import InvalidArgument, MissingExtra
from diffbisim.explore.data import page_data
from diffbisim.io.files import replacing

__all__ = ["explore"]


def explore(result: Any, path: str | Path, *, names: tuple[str, str] = ("X", "Y")) -> Path:
    """Write the page about a distance, a compression, or a sweep over sizes (with a slider); returns its path.

    Parameters
    ----------
    result : what distance, compress, fit, imitate or compress_sweep return
    path : of the page, such as ``"page.html"``
    names : what the two chains are called on it
    """
    page = Path(path)
    if page.suffix.lower() not in (".html", ".htm"):
        raise InvalidArgument(f"path is {str(path)!r}; a page ends in .html")
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("the page needs plotly and networkx: pip install 'diffbisim[explore]'") from error
    parts = {name: (files("diffbisim.explore") / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    data = json.dumps(page_data(result, names), allow_nan=False, separators=(",", ":"))
    parts |= {"data": data.replace("<", "\\u003c"), "plotly": get_plotlyjs(), "version": __version__}
    text = (files("diffbisim.explore") / "page.html").read_text(encoding="utf-8")
    with replacing(page) as file:
        for k, piece in enumerate(text.split("%%")):  # text and the names of parts in turn
            file.write(parts[piece] if k % 2 else piece)
    return page
