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
    K = db.aggregate(X, assignment, "kinetic")  # chain on given classes that keeps the slow rates of X
    A = db.abstract(mdp, n_states=5)          # 5-state MDP to plan with, and the exact loss of planning with it

Submodules are imported on first access, so ``import diffbisim`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

#: Where the public names are defined.
_NAMES = {
    "MarkovChain": "processes.chain",
    "MDP": "processes.mdp",
    "TimedChain": "processes.timed",
    "Transitions": "processes.chain",
    "Stream": "processes.streams",
    "as_chain": "processes.convert",
    "quantize": "processes.cells",
    "Cells": "processes.cells",
    "LinearGaussian": "processes.gaussian",
    "feature_cost": "processes.cost",
    "lump": "processes.lumping",
    "distance": "distances.chains",
    "pairwise": "distances.many",
    "bisimulation": "distances.mdps",
    "policy_similarity": "distances.mdps",
    "mico": "distances.mdps",
    "estimate": "statistics.estimation",
    "compare": "statistics.groups",
    "power": "statistics.groups",
    "abstract": "reduction.abstraction.search",
    "AbstractionResult": "reduction.abstraction.result",
    "aggregate": "reduction.compression.aggregation",
    "compress": "reduction.compression.search",
    "compress_sweep": "reduction.compression.search",
    "fit": "learning.fit.fitting",
    "FitResult": "learning.fit.result",
    "identify": "learning.fit.identification",
    "fit_simulator": "learning.fit.simulators",
    "imitate": "learning.imitate.imitation",
    "ImitationResult": "learning.imitate.result",
    "load": "io",
    "read_chain": "io.chains",
    "read_mdp": "io.chains",
    "read_transitions": "io.chains",
    "write_chain": "io.chains",
    "DistanceResult": "results.base",
    "Status": "results.base",
    "MDPResult": "results.game",
    "DiffbisimError": "common.errors",
    "InvalidArgument": "common.errors",
    "InvalidChain": "common.errors",
    "InvalidCost": "common.errors",
    "InvalidData": "common.errors",
    "MissingExtra": "common.errors",
    "ConvergenceWarning": "common.errors",
    "InputWarning": "common.errors",
}

#: Where the public modules are.
_MODULES = {
    "solvers": "solvers",
    "problems": "problems",
    "io": "io",
    "plot": "plot",
    "torch": "torch",
    "jax": "jax",
    "examples": "processes.examples",
    "environments": "processes.environments",
    "planning": "processes.planning",
    "kernels": "learning.fit.kernels",
    "baselines": "learning.imitate.baselines",
    "control": "learning.imitate.control",
}

__all__ = [*_NAMES, *_MODULES, "__version__"]

if TYPE_CHECKING:
    from diffbisim import io as io
    from diffbisim import plot as plot
    from diffbisim import problems as problems
    from diffbisim import solvers as solvers
    from diffbisim.common.errors import ConvergenceWarning as ConvergenceWarning
    from diffbisim.common.errors import DiffbisimError as DiffbisimError
    from diffbisim.common.errors import InputWarning as InputWarning
    from diffbisim.common.errors import InvalidArgument as InvalidArgument
    from diffbisim.common.errors import InvalidChain as InvalidChain
    from diffbisim.common.errors import InvalidCost as InvalidCost
    from diffbisim.common.errors import InvalidData as InvalidData
    from diffbisim.common.errors import MissingExtra as MissingExtra
    from diffbisim.distances.chains import distance as distance
    from diffbisim.distances.many import pairwise as pairwise
    from diffbisim.distances.mdps import bisimulation as bisimulation
    from diffbisim.distances.mdps import mico as mico
    from diffbisim.distances.mdps import policy_similarity as policy_similarity
    from diffbisim.io import load as load
    from diffbisim.io.chains import read_chain as read_chain
    from diffbisim.io.chains import read_mdp as read_mdp
    from diffbisim.io.chains import read_transitions as read_transitions
    from diffbisim.io.chains import write_chain as write_chain
    from diffbisim.learning.fit import kernels as kernels
    from diffbisim.learning.fit.fitting import fit as fit
    from diffbisim.learning.fit.identification import identify as identify
    from diffbisim.learning.fit.result import FitResult as FitResult
    from diffbisim.learning.fit.simulators import fit_simulator as fit_simulator
    from diffbisim.learning.imitate import baselines as baselines
    from diffbisim.learning.imitate import control as control
    from diffbisim.learning.imitate.imitation import imitate as imitate
    from diffbisim.learning.imitate.result import ImitationResult as ImitationResult
    from diffbisim.processes import environments as environments
    from diffbisim.processes import examples as examples
    from diffbisim.processes import planning as planning
    from diffbisim.processes.cells import Cells as Cells
    from diffbisim.processes.cells import quantize as quantize
    from diffbisim.processes.chain import MarkovChain as MarkovChain
    from diffbisim.processes.chain import Transitions as Transitions
    from diffbisim.processes.convert import as_chain as as_chain
    from diffbisim.processes.cost import feature_cost as feature_cost
    from diffbisim.processes.gaussian import LinearGaussian as LinearGaussian
    from diffbisim.processes.lumping import lump as lump
    from diffbisim.processes.mdp import MDP as MDP
    from diffbisim.processes.streams import Stream as Stream
    from diffbisim.processes.timed import TimedChain as TimedChain
    from diffbisim.reduction.abstraction.result import AbstractionResult as AbstractionResult
    from diffbisim.reduction.abstraction.search import abstract as abstract
    from diffbisim.reduction.compression.aggregation import aggregate as aggregate
    from diffbisim.reduction.compression.search import compress as compress
    from diffbisim.reduction.compression.search import compress_sweep as compress_sweep
    from diffbisim.results.base import DistanceResult as DistanceResult
    from diffbisim.results.base import Status as Status
    from diffbisim.results.game import MDPResult as MDPResult
    from diffbisim.statistics.estimation import estimate as estimate
    from diffbisim.statistics.groups import compare as compare
    from diffbisim.statistics.groups import power as power


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(f"diffbisim.{_NAMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"diffbisim.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'diffbisim' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
