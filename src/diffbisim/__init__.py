"""Distances between Markov processes that respect time, with certified bounds and exact gradients.

    import diffbisim as db

    X = db.MarkovChain(P, rewards=r)          # also from_transitions, from_trajectories, read_chain("file.csv")
    d = db.distance(X, Y, discount=0.95)      # value, bounds, plans, encoder, decoder, gradient
    D = db.pairwise([X, Y, Z])                # matrix of distances
    b = db.bisimulation(mdp, discount=0.95)   # Ferns' metric between the states of an MDP
    e = db.estimate(A, B)                     # value, interval and p-value from two datasets; also compare, power
    q = db.lump(X)                            # exact quotient
    p = db.imitate(mdp, expert).policy        # policy whose chain is closest to the expert's
    Z = db.compress(X, n_states=5)            # nearest chain with 5 states, and the encoder
    K = db.aggregate(X, labels, "kinetic")    # chain on given classes that keeps the slow rates of X
    A = db.abstract(mdp, n_states=5)          # 5-state MDP to plan with, and the exact loss of planning with it

Submodules are imported on first access, so ``import diffbisim`` is fast.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOME = {
    "MarkovChain": "chain",
    "MDP": "mdp",
    "TimedChain": "timed",
    "as_chain": "process",
    "quantize": "quantize",
    "Cells": "quantize",
    "LinearGaussian": "gaussian",
    "distance": "distance",
    "pairwise": "pairwise",
    "bisimulation": "metrics",
    "policy_similarity": "metrics",
    "mico": "metrics",
    "estimate": "estimate",
    "compare": "compare",
    "power": "compare",
    "lump": "lumping",
    "abstract": "abstract.search",
    "AbstractionResult": "abstract.result",
    "aggregate": "compress.aggregation",
    "compress": "compress.compression",
    "compress_sweep": "compress.compression",
    "fit": "fit.fitting",
    "FitResult": "fit.result",
    "identify": "fit.identify",
    "fit_simulator": "fit.simulators",
    "load": "io",
    "read_chain": "io.chains",
    "read_mdp": "io.chains",
    "read_transitions": "io.chains",
    "write_chain": "io.chains",
    "Transitions": "chain",
    "Stream": "data.streams",
    "feature_cost": "cost",
    "imitate": "imitate.imitation",
    "DistanceResult": "results",
    "MDPResult": "actions",
    "ImitationResult": "imitate.result",
    "DiffbisimError": "errors",
    "InvalidArgument": "errors",
    "InvalidChain": "errors",
    "InvalidCost": "errors",
    "InvalidData": "errors",
    "MissingExtra": "errors",
    "ConvergenceWarning": "errors",
    "InputWarning": "errors",
}
_MODULES = {
    "solvers": "solvers",
    "data": "data",
    "io": "io",
    "examples": "data.examples",
    "kernels": "fit.kernels",
    "plot": "plot",
}

__all__ = [*_HOME, *_MODULES, "__version__"]

if TYPE_CHECKING:
    from diffbisim import data as data
    from diffbisim import io as io
    from diffbisim import plot as plot
    from diffbisim import solvers as solvers
    from diffbisim.abstract.result import AbstractionResult as AbstractionResult
    from diffbisim.abstract.search import abstract as abstract
    from diffbisim.actions import MDPResult as MDPResult
    from diffbisim.chain import MarkovChain as MarkovChain
    from diffbisim.chain import Transitions as Transitions
    from diffbisim.compare import compare as compare
    from diffbisim.compare import power as power
    from diffbisim.compress.aggregation import aggregate as aggregate
    from diffbisim.compress.compression import compress as compress
    from diffbisim.compress.compression import compress_sweep as compress_sweep
    from diffbisim.cost import feature_cost as feature_cost
    from diffbisim.data import examples as examples
    from diffbisim.data.streams import Stream as Stream
    from diffbisim.distance import distance as distance
    from diffbisim.errors import ConvergenceWarning as ConvergenceWarning
    from diffbisim.errors import DiffbisimError as DiffbisimError
    from diffbisim.errors import InputWarning as InputWarning
    from diffbisim.errors import InvalidArgument as InvalidArgument
    from diffbisim.errors import InvalidChain as InvalidChain
    from diffbisim.errors import InvalidCost as InvalidCost
    from diffbisim.errors import InvalidData as InvalidData
    from diffbisim.errors import MissingExtra as MissingExtra
    from diffbisim.estimate import estimate as estimate
    from diffbisim.fit import kernels as kernels
    from diffbisim.fit.fitting import fit as fit
    from diffbisim.fit.identify import identify as identify
    from diffbisim.fit.result import FitResult as FitResult
    from diffbisim.fit.simulators import fit_simulator as fit_simulator
    from diffbisim.gaussian import LinearGaussian as LinearGaussian
    from diffbisim.imitate.imitation import imitate as imitate
    from diffbisim.imitate.result import ImitationResult as ImitationResult
    from diffbisim.io import load as load
    from diffbisim.io.chains import read_chain as read_chain
    from diffbisim.io.chains import read_mdp as read_mdp
    from diffbisim.io.chains import read_transitions as read_transitions
    from diffbisim.io.chains import write_chain as write_chain
    from diffbisim.lumping import lump as lump
    from diffbisim.mdp import MDP as MDP
    from diffbisim.metrics import bisimulation as bisimulation
    from diffbisim.metrics import mico as mico
    from diffbisim.metrics import policy_similarity as policy_similarity
    from diffbisim.pairwise import pairwise as pairwise
    from diffbisim.process import as_chain as as_chain
    from diffbisim.quantize import Cells as Cells
    from diffbisim.quantize import quantize as quantize
    from diffbisim.results import DistanceResult as DistanceResult
    from diffbisim.timed import TimedChain as TimedChain


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"diffbisim.{_HOME[name]}"), name)
        if _HOME[name].startswith(f"{name}."):  # also a package: `import diffbisim.imitate.baselines as b` works
            value.__dict__ = vars(import_module(f"diffbisim.{name}"))
    elif name in _MODULES:
        value = import_module(f"diffbisim.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'diffbisim' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keep the public functions visible where a submodule has the same name, such as ``distance`` or ``fit``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
