"""The coupling that a solver returns: plans, potentials and occupancies, which are computed on demand.

For large chains most of them are never needed. Notation as in problems/base.py.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.common.arrays import Array
from diffbisim.common.checks import freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.chain import MarkovChain


@dataclass(frozen=True, eq=False)
class StartCoupling:
    """The optimal coupling of the two initial distributions, and its potentials (for cost ``U``)."""

    plan: sparse.coo_array  # (n_X, n_Y)
    f: Array  # (n_X,)
    g: Array  # (n_Y,)


class Coupling(ABC):
    """Plans, potentials and occupancies of a solved problem, all in units of ``U``.

    A solver implements :attr:`values`, :attr:`start`, :meth:`plan` and :meth:`potentials`; everything else is derived
    from these, and may be overridden by something faster.
    """

    problem: ChainProblem

    #: Temperature (of U, scaled) of an entropic coupling; zero for the distance itself.
    epsilon: float = 0.0

    #: Whether every pair was solved; otherwise potentials are known on the possible transitions only.
    complete: bool = True

    #: Number of sweeps used for the occupancy, beyond those of the solver.
    sweeps: int = 0

    @property
    @abstractmethod
    def values(self) -> Array:
        """``U``, shape ``(n_X, n_Y)``."""

    @property
    def table_bounds(self) -> tuple[Array, Array]:
        """Certified lower and upper bounds on the entries of :attr:`values`, (n_X, n_Y) each; NaN where not solved."""
        raise InvalidArgument(
            "this solver certifies only the distance, not every entry of the table; use distance(..., solver='exact')"
        )

    @property
    @abstractmethod
    def start(self) -> StartCoupling:
        """The coupling of the initial distributions."""

    @abstractmethod
    def plan(self, x: int, y: int) -> sparse.coo_array:
        """Return the optimal plan of pair ``(x, y)``, (n_X, n_Y), with marginals ``P_X(·|x)`` and ``P_Y(·|y)``."""

    @abstractmethod
    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        """Return the potentials ``f (n_X,)``, ``g (n_Y,)`` of pair ``(x, y)``, extended by c-transforms."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(values := state.get("values"), np.ndarray):
            freeze(values)  # pickle and deepcopy drop the read-only flag

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that :meth:`diffbisim.results.base.DistanceResult.save` writes."""
        return {"values": self.values}

    def occupancy(self) -> Array:
        """Return ``m``, (n_X, n_Y), from the transposed linear system over the pairs reachable from the start."""
        from scipy.sparse.linalg import spsolve

        n_x, n_y = self.problem.shape
        start, γ = self.start.plan, self.problem.discount
        index = {(int(x), int(y)): k for k, (x, y) in enumerate(zip(*start.coords, strict=True))}
        queue, rows, cols, mass = list(index), [], [], []
        for k, (x, y) in enumerate(queue):  # the queue grows during the loop
            plan = self.plan(x, y)
            for pair, p in zip(zip(*map(np.ndarray.tolist, plan.coords), strict=True), plan.data, strict=True):
                if p > 0:
                    if pair not in index:
                        index[pair] = len(queue)
                        queue.append(pair)
                    rows.append(index[pair])
                    cols.append(k)
                    mass.append(p)
        n = len(queue)
        flow = sparse.eye_array(n) - γ * sparse.csr_array((mass, (rows, cols)), shape=(n, n))
        source = np.zeros(n)
        source[: start.nnz] = (1 - γ) * start.data
        m = np.zeros((n_x, n_y))
        m[tuple(np.array(queue).T)] = np.maximum(spsolve(flow.tocsc(), source), 0)
        return m

    def potential_weights(self, m: Array) -> Array:
        """Return the weight of each pair's potentials in the gradient, given the occupancy ``m (n_X, n_Y)``."""
        return m

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        """Return ``Σ_y m(x,y) f_xy(x')`` and ``Σ_x m(x,y) g_xy(y')``, shapes ``(n_X, n_X)`` and ``(n_Y, n_Y)``.

        They are dense if ``everywhere``, otherwise CSR on the possible transitions.
        """
        n_x, n_y = self.problem.shape
        by_x, by_y = np.zeros((n_x, n_x)), np.zeros((n_y, n_y))
        for x, y in zip(*np.nonzero(m), strict=True):
            f, g = self.potentials(int(x), int(y))
            by_x[x] += m[x, y] * f
            by_y[y] += m[x, y] * g
        return self._by_transition(by_x, by_y, everywhere)

    def _by_transition(self, by_x: Array, by_y: Array, everywhere: bool) -> tuple[Any, Any]:
        """Return sums of potentials as they are if ``everywhere``, otherwise as CSR on the possible transitions."""
        if everywhere:
            return by_x, by_y
        return on_support(by_x, self.problem.x), on_support(by_y, self.problem.y)


def on_support(rows: Array, chain: MarkovChain) -> sparse.csr_array:
    """Return the entries of a dense matrix (or a vector of them) on the possible transitions of a chain, as CSR."""
    s = chain.successors
    source = s.sources
    data = rows if rows.ndim == 1 else rows[source, s.indices]
    return sparse.csr_array((data, s.indices, s.indptr), shape=(chain.n_states, chain.n_states))
