"""One file per algorithm; each solver is a small frozen object with options and ``solve(problem)``.

Loaded when first used: a solver may bring HiGHS or numba along, and most programs need one of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Exact": "exact",
    "LinearProgram": "linear_program",
    "Lumped": "lumped",
    "SinkhornPolicy": "sinkhorn",
    "SinkhornValue": "sinkhorn",
    "Somcot": "somcot",
}

__all__ = ["Exact", "LinearProgram", "Lumped", "SinkhornPolicy", "SinkhornValue", "Somcot"]

if TYPE_CHECKING:
    from diffbisim.solvers.exact import Exact as Exact
    from diffbisim.solvers.linear_program import LinearProgram as LinearProgram
    from diffbisim.solvers.lumped import Lumped as Lumped
    from diffbisim.solvers.sinkhorn import SinkhornPolicy as SinkhornPolicy
    from diffbisim.solvers.sinkhorn import SinkhornValue as SinkhornValue
    from diffbisim.solvers.somcot import Somcot as Somcot


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'diffbisim.solvers' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"diffbisim.solvers.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
