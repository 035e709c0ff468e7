"""The compiled engine (``engine/`` in the sources), as built for the best instructions that this processor supports.

The level can be chosen by the environment variable ``DIFFBISIM_ENGINE`` (``baseline`` or ``v3``). All levels return the
same bits.
"""

import os
from importlib import import_module

from diffbisim import _engine_baseline


def _load() -> object:
    level = os.environ.get("DIFFBISIM_ENGINE") or _engine_baseline.best_level()
    try:
        return import_module(f"diffbisim._engine_{level}")
    except ModuleNotFoundError:
        if "DIFFBISIM_ENGINE" in os.environ:
            raise ImportError(f"DIFFBISIM_ENGINE is {level!r}; use 'baseline' or 'v3', where it is built") from None
        return _engine_baseline


_loaded = _load()
globals().update({name: value for name, value in vars(_loaded).items() if not name.startswith("_")})
