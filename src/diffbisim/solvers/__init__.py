"""The solvers: one package per algorithm. A solver is a small frozen object with options and ``solve(problem)``.

Solvers are imported on first use, because some load HiGHS, and most programs need only one of them. To add a
solver, implement the protocol `Solver` (base.py) and enter it in the registry below.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from diffbisim import contributions

if TYPE_CHECKING:
    from diffbisim.problem import Coupling, Problem
    from diffbisim.solvers.exact import Exact as Exact
    from diffbisim.solvers.lp import LinearProgram as LinearProgram
    from diffbisim.solvers.lumped import Lumped as Lumped
    from diffbisim.solvers.sinkhorn import SinkhornPolicy as SinkhornPolicy
    from diffbisim.solvers.sinkhorn import SinkhornValue as SinkhornValue
    from diffbisim.solvers.somcot import Somcot as Somcot


class Entry(NamedTuple):
    """Where to find a solver."""

    module: str  # below this package
    alias: str | None  # its name for ``solver=``
    couplings: dict[str, str]  # modules of its couplings, by the names used in files


REGISTRY = {
    "Exact": Entry(
        "exact",
        "exact",
        {
            "ExactCoupling": "exact.coupling",
            "ClusterCoupling": "exact.cluster",
            "TrackedCoupling": "exact.tracking",
            "AverageCoupling": "exact.average",
            "TotalCoupling": "exact.total",
            "GameCoupling": "exact.games",
            "HorizonCoupling": "exact.horizon",
        },
    ),
    "LinearProgram": Entry("lp", "lp", {"LinearProgramCoupling": "lp.solver"}),
    "Lumped": Entry("lumped", None, {"LumpedCoupling": "lumped"}),
    "SinkhornPolicy": Entry("sinkhorn", "sinkhorn-policy", {"SinkhornCoupling": "sinkhorn.coupling"}),
    "SinkhornValue": Entry("sinkhorn", "sinkhorn-value", {}),
    "Somcot": Entry("somcot", "somcot", {"SomcotCoupling": "somcot.solver"}),
}

#: Solvers by their names for ``solver=``, and modules of couplings by their names in files.
ALIASES = {entry.alias: name for name, entry in REGISTRY.items() if entry.alias}
COUPLINGS = {name: module for entry in REGISTRY.values() for name, module in entry.couplings.items()}

__all__ = ["Exact", "LinearProgram", "Lumped", "SinkhornPolicy", "SinkhornValue", "Somcot"]


def restore_coupling(kind: str, problem: "Problem", state: dict[str, Any]) -> "Coupling":
    """Rebuild a coupling of this kind from the arrays written by its ``state()``."""
    restored: Coupling = getattr(import_module(f"{__name__}.{COUPLINGS[kind]}"), kind).restore(problem, state)
    return restored


def _causes() -> contributions.Solve:
    """Import the functions that :mod:`diffbisim.contributions` needs."""
    causes = import_module(f"{__name__}.causes")
    return contributions.Solve(causes.first_order, causes.integrated_gradient, causes.pseudometric)


contributions.solve[:] = [_causes]  # contributions of a result need a solver, but cannot import one from their layer


def __getattr__(name: str) -> Any:
    if name not in REGISTRY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{REGISTRY[name].module}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
