"""One package per algorithm; each solver is a small frozen object with options and ``solve(problem)``.

Loaded when first used: a solver may bring HiGHS or numba along, and most programs need one of them. To add a solver,
write it (`Solver` in base.py says what it is) and enter it in the registry below.
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
    """Where a solver is."""

    module: str  # below this package
    alias: str | None  # what ``solver=`` calls it
    couplings: dict[str, str]  # what its results hold, by the names in files, and their modules


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
            "GameCoupling": "exact.game_coupling",
            "HorizonCoupling": "exact.horizon",
        },
    ),
    "LinearProgram": Entry("lp", "lp", {"LinearProgramCoupling": "lp.solver"}),
    "Lumped": Entry("lumped", None, {"LumpedCoupling": "lumped"}),
    "SinkhornPolicy": Entry("sinkhorn", "sinkhorn-policy", {"SinkhornCoupling": "sinkhorn.coupling"}),
    "SinkhornValue": Entry("sinkhorn", "sinkhorn-value", {}),
    "Somcot": Entry("somcot", "somcot", {"SomcotCoupling": "somcot.solver"}),
}

#: Solvers by what ``solver=`` calls them, and modules of couplings by what files call these.
ALIASES = {entry.alias: name for name, entry in REGISTRY.items() if entry.alias}
COUPLINGS = {name: module for entry in REGISTRY.values() for name, module in entry.couplings.items()}

__all__ = ["Exact", "LinearProgram", "Lumped", "SinkhornPolicy", "SinkhornValue", "Somcot"]


def restore_coupling(kind: str, problem: "Problem", state: dict[str, Any]) -> "Coupling":
    """The coupling of this kind from the arrays that its ``state()`` wrote: plans and potentials as they were."""
    restored: Coupling = getattr(import_module(f"{__name__}.{COUPLINGS[kind]}"), kind).restore(problem, state)
    return restored


def _causes() -> contributions.Solve:
    causes = import_module(f"{__name__}.causes")
    return contributions.Solve(causes.first_order, causes.integrated_gradient, causes.pseudometric)


contributions.solve[:] = [_causes]  # what is asked of a result, which a solver made, may take a solver again


def __getattr__(name: str) -> Any:
    if name not in REGISTRY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{REGISTRY[name].module}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
