"""The compiled engine (``engine/`` in the sources), as built for the best instructions that this processor supports.

The level can be chosen by the environment variable ``DIFFBISIM_ENGINE`` (``baseline`` or ``v3``). All levels return the
same bits.
"""

import os
from contextlib import suppress
from importlib import import_module
from typing import Any


def _load() -> Any:
    baseline = import_module("diffbisim._engine_baseline")
    wanted = os.environ.get("DIFFBISIM_ENGINE")
    try:
        return import_module(f"diffbisim._engine_{wanted or baseline.best_level()}")
    except ModuleNotFoundError:
        if wanted:
            raise ImportError(f"DIFFBISIM_ENGINE is {wanted!r}; use 'baseline' or 'v3', where it is built") from None
        return baseline


with suppress(ModuleNotFoundError):  # an editable install builds the engine again when its sources have changed
    import_module("diffbisim._rebuild").rebuild()


_loaded = _load()
globals().update({name: value for name, value in vars(_loaded).items() if not name.startswith("_")})
