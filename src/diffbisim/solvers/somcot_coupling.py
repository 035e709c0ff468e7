"""What SOMCOT knows at the end: averaged multipliers and occupancies, read as potentials, values and plans.

*Gauge.* The saddle point determines the multipliers only up to w_X(x) + w_Y(y) added to V and w(x) - γ w(x') to α. With
h_X(x) = E_λ E_P α_X(x,·,·) and w = -(I - γP)⁻¹ h the α become centered, as the rest of the package has them
(gradient.py). The last free number, a constant in V, is set by (1-γ) <μ_0, V> = <μ, c>.

*Values of pairs that the coupling hardly visits* are not determined by the multipliers (any that leave δ ≥ 0 will do).
They are completed by exact Bellman sweeps that hold the visited pairs fixed; derivatives off the supports need them.

*Bounds*, for chains with known kernels: one more sweep gives T U exactly, and certify.py turns U and T U into
bounds for the distance.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.chain import MarkovChain
from diffbisim.data.streams import Stream
from diffbisim.io.arrays import read_json
from diffbisim.problem import Array, Coupling, Problem, Start, lazy
from diffbisim.results import DistanceResult, check_warm, previous_table
from diffbisim.solvers.certify import Edges, distance_bounds, round_plans
from diffbisim.solvers.exact.coupling import PRICE
from diffbisim.solvers.exact.pairs import begin, bellman
from diffbisim.solvers.exact.transports import EPS, Transport
from diffbisim.solvers.restoring import check_averages, check_somcot
from diffbisim.solvers.somcot_kernels import Side
from diffbisim.solvers.somcot_state import Averages, State

#: Pairs with at least this share of 1/(n_X + n_Y), a typical occupancy, count as visited.
VISITED = 0.1

#: Sweeps that complete the table, and the change (of costs scaled to one) at which they may stop.
SWEEPS, SETTLED = 200, 1e-4


class SomcotCoupling(Coupling):
    """Plans of the last coupling, multipliers averaged over the window."""

    def __init__(self, problem: Problem, state: State) -> None:
        self.problem, self.run = problem, state
        self.scale = problem.scale or 1.0

    @classmethod
    def of_run(
        cls, state: State, streams: tuple[Stream, Stream], cost: Array, discount: float, problem: Problem | None
    ) -> "SomcotCoupling":
        """At the end of a run; chains that are not known are those that the stream has shown."""
        if problem is None:
            chains = [
                stream.source if isinstance(stream.source, MarkovChain) else empirical(side, stream.frame)
                for side, stream in zip((state.x, state.y), streams, strict=True)
            ]
            problem = Problem(chains[0], chains[1], cost, discount)
        return cls(problem, state)

    def state(self) -> dict[str, NDArray[Any]]:
        return self.run.arrays()

    @classmethod
    def restore(cls, problem: Problem, arrays: dict[str, NDArray[Any]]) -> "SomcotCoupling":
        meta = read_json(arrays, "run")
        check_somcot(problem, arrays, meta)
        state = State.restore(arrays, meta)
        check_averages(state, problem.discount)
        return cls(problem, state)

    # --- averages in the centered gauge, for the cost as it is ---------------------------------------------

    @lazy
    def _averages(self) -> Averages:
        return self.run.averages(self.problem.discount)

    @property
    def value(self) -> float:
        """<μ̄, c>."""
        return float((self._averages.m * self.problem.cost).sum())

    @lazy
    def _gauged(self) -> tuple[Array, Array, Array]:
        """``f`` like U, ``g`` like W (potentials for the cost U, centered in the mean) and ``(1-γ) V``; scaled."""
        mean, γ, (n_x, n_y) = self._averages, self.problem.discount, self.problem.shape
        x, y, c = self.run.x, self.run.y, self.problem.cost / self.scale
        α, β = mean.alpha_x.copy(), mean.alpha_y.reshape(n_x, -1).copy()
        h_x, h_y = np.zeros(n_x), np.zeros(n_y)
        P, Q = kernel(x), kernel(y)
        for s in range(n_x):
            block, p = _block(α, x, s, n_y), P.data[P.indptr[s] : P.indptr[s + 1]]
            h_x[s] = mean.lambda_x[s] @ (block @ p) if p.size else 0.0
        for s in range(n_y):
            edges = slice(y.at[s], y.at[s + 1])
            h_y[s] = mean.lambda_y[s] @ (β[:, edges] @ Q.data[edges])
        w, v = (-np.linalg.solve(np.eye(h.size) - γ * _closed(K), h) for K, h in ((P, h_x), (Q, h_y)))
        for s in range(n_x):
            edges = slice(x.at[s], x.at[s + 1])
            _block(α, x, s, n_y)[:] += w[s] - γ * w[x.to[edges]]
        β += np.repeat(v, np.diff(y.at)) - γ * v[y.to]
        V = mean.V + w[:, None] + v
        V += ((mean.m * c).sum() / (1 - γ) - (mean.start * V).sum()) / mean.start.sum()
        return -(1 - γ) / γ * α, (-(1 - γ) / γ * β).ravel(), (1 - γ) * V

    @lazy
    def values(self) -> Array:
        """``(1-γ) V`` where the coupling goes; elsewhere completed by Bellman sweeps with those held fixed."""
        U, visited = self._gauged[2].ravel(), self._averages.m.ravel() * sum(self.problem.shape) > VISITED
        transports = begin(self.problem, False, None, None)
        U = np.clip(U, 0.0, 1.0)
        for _ in range(SWEEPS if not visited.all() else 0):
            TU, _ = bellman(self.problem, transports, U, PRICE)
            change = np.abs(TU - U)[~visited].max()
            U[~visited] = TU[~visited]
            if change <= SETTLED * (1 - self.problem.discount):
                break
        return self.scale * U.reshape(self.problem.shape)

    def bounds(self) -> tuple[float, float]:
        """Certified bounds on the distance between the chains of the problem."""
        problem, γ = self.problem, self.problem.discount
        U = self.values / self.scale
        transports = begin(problem, False, None, None)
        TU, solved = bellman(problem, transports, U.ravel(), PRICE)
        if not solved:
            return float(problem.cost.min()), float(problem.cost.max())
        rows, cols = np.flatnonzero(problem.x.initial), np.flatnonzero(problem.y.initial)
        start = Transport(problem.x.initial[rows], problem.y.initial[cols]).solve(U[np.ix_(rows, cols)], PRICE)
        slack = PRICE + 2 * (2 * transports.nodes + rows.size + cols.size + 8) * EPS
        rho = problem.x.occupancy(γ), problem.y.occupancy(γ)
        T = TU.reshape(U.shape)
        low, high = distance_bounds(U, T, T, (start - slack, start + slack), rho, γ, slack)
        low, high = np.nextafter([low * self.scale, high * self.scale], [-np.inf, np.inf]).tolist()
        return max(low, float(problem.cost.min())), min(high, float(problem.cost.max()))

    # --- what every coupling has ---------------------------------------------------------------------------

    @lazy
    def start(self) -> Start:
        """The averaged coupling of the starts, rounded to its marginals, and potentials for the values."""
        problem, U = self.problem, self.values
        rows, cols = np.flatnonzero(problem.x.initial), np.flatnonzero(problem.y.initial)
        sx, sy = Edges.of_distribution(problem.x.initial), Edges.of_distribution(problem.y.initial)
        plan = round_plans(self._averages.start[np.ix_(rows, cols)], sx, sy)
        transport = Transport(problem.x.initial[rows], problem.y.initial[cols])
        transport.solve(U[np.ix_(rows, cols)], PRICE * self.scale)
        f = transport.potentials()[0]
        g = (U[rows] - f[:, None]).min(axis=0)
        i, j = np.nonzero(plan)
        return Start(
            sparse.coo_array((plan[i, j], (rows[i], cols[j])), shape=problem.shape),
            (U[:, cols] - g[cols]).min(axis=1),
            g,
        )

    def plan(self, x: int, y: int) -> sparse.coo_array:
        """The last coupling given (x, y), rounded to the marginals."""
        it, (a, b) = self.run.it, (self._edges(self.run.x, x), self._edges(self.run.y, y))
        rows, cols = self._successors(x, y)
        mass = np.zeros(self.problem.shape)
        if a.size and b.size:
            u = _block(it.U, self.run.x, x, self.problem.shape[1])[y]
            w = it.W.reshape(self.problem.shape[0], -1)[x, self.run.y.at[y] : self.run.y.at[y + 1]]
            logarithms = u[:, None] + w + it.L[np.ix_(a, b)]
            mass[np.ix_(a, b)] = np.exp(logarithms - logarithms.max())
        block = mass[np.ix_(rows[0], cols[0])]
        total = block.sum()
        edges = Edges.of_distribution(rows[1]), Edges.of_distribution(cols[1])
        block = round_plans(block / total if total > 0 else block, *edges)
        i, j = np.nonzero(block)
        return sparse.coo_array((block[i, j], (rows[0][i], cols[0][j])), shape=self.problem.shape)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        """Averaged multipliers on the transitions seen, c-transforms of the values elsewhere."""
        f_all, g_all, _ = self._gauged
        U, γ, (n_x, n_y) = self.values, self.problem.discount, self.problem.shape
        (rows, p), (cols, q) = self._successors(x, y)
        a, b = self._edges(self.run.x, x), self._edges(self.run.y, y)
        f, g = np.full(n_x, np.nan), np.full(n_y, np.nan)
        f[a] = self.scale * _block(f_all, self.run.x, x, n_y)[y]
        g[b] = self.scale * g_all.reshape(n_x, -1)[x, self.run.y.at[y] : self.run.y.at[y + 1]]
        if not (np.isfinite(f[rows]).any() and np.isfinite(g[cols]).any()):
            f[rows] = 0.0
            g[cols] = (U[np.ix_(rows, cols)]).min(axis=0)
        known = [np.isfinite(f[rows]), np.isfinite(g[cols])]
        level = (U[x, y] - (1 - γ) * self.problem.cost[x, y]) / γ
        level -= np.average(f[rows][known[0]], weights=p[known[0]]) + np.average(g[cols][known[1]], weights=q[known[1]])
        g += level  # E f + E g = OT, by Bellman's equation
        open_f, open_g = ~np.isfinite(f), ~np.isfinite(g)
        f[open_f] = (U[np.ix_(open_f, cols[known[1]])] - g[cols[known[1]]]).min(axis=1)
        g[open_g] = (U[np.ix_(rows[known[0]], open_g)] - f[rows[known[0]], None]).min(axis=0)
        return f, g

    def occupancy(self) -> Array:
        """The averaged coupling, Σ_x'y' μ̄."""
        m = self._averages.m
        return np.asarray(m / m.sum())

    def _edges(self, side: Side, s: int) -> NDArray[np.int64]:
        return side.to[side.at[s] : side.at[s + 1]]

    def _successors(self, x: int, y: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        found = []
        for s, k in ((self.problem.x.successors, x), (self.problem.y.successors, y)):
            take = slice(s.indptr[k], s.indptr[k + 1])
            found.append((s.indices[take], s.probabilities[take]))
        return found[0], found[1]


def first_state(
    streams: tuple[Stream, Stream],
    cost: Array,
    discount: float,
    warm: DistanceResult | None,
    rng: np.random.Generator,
    full: bool,
    carry: bool,
) -> tuple[State, list[dict[str, float]]]:
    """A fresh state; or the end of a previous run, with its history if it was for the same streams."""
    if warm is None:
        return State.fresh(streams, rng, full), []
    check_warm(warm, (streams[0].n_states, streams[1].n_states))
    if not isinstance(warm.coupling, SomcotCoupling):
        state = State.fresh(streams, rng, full)
        table = previous_table(warm, float(cost.max()) or 1.0, lambda: np.zeros(cost.shape))
        if table is not None:
            state.it.V[:] = table / (1 - discount)
        return state, []
    before = warm.coupling.run
    same = before.fingerprints == [s.fingerprint for s in streams] and np.array_equal(warm.problem.cost, cost)
    if same and warm.discount == discount:
        return before.copy(), [dict(row) for row in warm.history]
    return before.restarted(streams, carry), []


def kernel(side: Side) -> sparse.csr_array:
    """P̂ from the counts, with all edges of the support; rows without counts are zero."""
    n = side.rho.size
    totals = np.add.reduceat(np.append(side.counts, 0.0), side.at[:-1]) * (np.diff(side.at) > 0)
    share = np.repeat(np.divide(1.0, totals, out=np.zeros(n), where=totals > 0), np.diff(side.at))
    return sparse.csr_array((side.counts * share, side.to, side.at), shape=(n, n))


def empirical(side: Side, frame: MarkovChain) -> MarkovChain:
    """The chain that the stream has shown; a state that was never left stays where it is."""
    P = _closed_sparse(kernel(side))
    dense = P.shape[0] <= 64 or P.nnz > 0.25 * P.shape[0] ** 2
    return MarkovChain(P.toarray() if dense else P, initial=frame.initial, rewards=frame.rewards, labels=frame.labels)


def _closed_sparse(P: sparse.csr_array) -> sparse.csr_array:
    stuck = np.asarray(P.sum(axis=1)).ravel() == 0
    closed = sparse.csr_array(P + sparse.diags_array(stuck.astype(float)))
    closed.eliminate_zeros()
    return closed


def _closed(P: sparse.csr_array) -> Array:
    return np.asarray(_closed_sparse(P).toarray())


def _block(v: Array, side: Side, x: int, columns: int) -> Array:
    """The entries (n_Y, edges of x) of a flat array laid out like U; a view."""
    return v[columns * side.at[x] : columns * side.at[x + 1]].reshape(columns, -1)
