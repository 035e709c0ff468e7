"""An interactive HTML page about two chains, their coupling, and where their distance arises.

A single HTML file contains the data, the script and the plotting library (plotly.js), so that it needs no server and no
network. `data.py` prepares the data, `page.js` draws them, and `page.css` styles the page.
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
    """Write an interactive page about a distance, a compression, or a sweep over sizes (with a slider).

    Parameters
    ----------
    result : object
        The result of distance, compress, fit, imitate or compress_sweep.
    path : str or Path
        Output file, such as ``"page.html"``.
    names : pair of str, default=("X", "Y")
        Names of the two chains on the page.

    Returns
    -------
    path : Path
    """
    page = Path(path)
    if page.suffix.lower() not in (".html", ".htm"):
        raise InvalidArgument(f"path is {str(path)!r}; it must end in .html")
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra("the page needs plotly and networkx: pip install 'diffbisim[explore]'") from error
    parts = {name: (files("diffbisim.explore") / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    data = json.dumps(page_data(result, names), allow_nan=False, separators=(",", ":"))
    parts |= {"data": data.replace("<", "\\u003c"), "plotly": get_plotlyjs(), "version": __version__}
    text = (files("diffbisim.explore") / "page.html").read_text(encoding="utf-8")
    with replacing(page) as file:
        for k, piece in enumerate(text.split("%%")):  # alternately text and names of parts
            file.write(parts[piece] if k % 2 else piece)
    return page
