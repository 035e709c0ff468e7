"""The methods that the imitation experiments compare, by the names of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffbisim.checks import Floats
from diffbisim.errors import MissingExtra
from diffbisim.imitate import baselines

METHODS: dict[str, Callable[..., baselines.BaselineResult]] = {
    "maximum likelihood": baselines.maximum_likelihood,
    "BCO": baselines.behavioral_cloning,
    "state matching (OT)": baselines.state_matching,
    "PW-DICE": baselines.pw_dice,
    "SMODICE": baselines.smodice,
    "LobsDICE": baselines.lobs_dice,
    "IOSTOM-style": baselines.iostom_style,
}


def policies(offline: Any, expert: Any, discount: float) -> dict[str, Floats]:
    """The policy of every method that can run here: those whose extra is not installed are left out."""
    found = {}
    for name, method in METHODS.items():
        try:
            found[name] = method(offline, expert, discount).policy
        except MissingExtra:
            continue
    return found


def left_out(names: Any) -> list[str]:
    """A sentence about the methods that did not run, if there are any."""
    missing = [name for name in METHODS if name not in names]
    return [f'not run: {", ".join(missing)}; pip install "diffbisim[baselines]"'] if missing else []
