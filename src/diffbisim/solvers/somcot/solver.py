"""SOMCOT: the distance from streams of observed transitions, by stochastic primal-dual steps.

The paper's linear program is a saddle point of

    L = <μ, δ> - <ν_X λ_X, α_X> - <ν_Y λ_Y, α_Y> + (1-γ) <μ_0, V>
    δ(x,y,x',y') = c(x,y) + α_X(x,x',y) + α_Y(x,y,y') + γ V(x',y') - V(x,y)

with a coupling μ of transitions, encoder λ_X, decoder λ_Y and the multipliers α_X, α_Y (causality) and V (flow). The
kernels enter only through the transition occupancies ν_X, ν_Y, so samples are sufficient. An iteration draws a
minibatch from each stream and takes two kinds of steps. Simplex variables are updated multiplicatively: μ ∝ μ e^(-ηδ),
λ_X ∝ λ_X e^(η ν α_X), and the coupling μ_0 of the starts, whose marginals are restored by Sinkhorn scaling. Multipliers
are updated additively, by β times the residual of their constraint, and clipped to the range of optimal multipliers.
The result is the average of the last iterates: ``value`` = <μ̄, c>.

*Factorized coupling.* log μ is a sum of functions of (x,y), (x,x',y), (x,y,y') and (x',y'), and only these are stored:
at most n_X n_Y (n_X + n_Y) numbers, and only for transitions that were seen (engine/somcot.hpp, state.py).

*The default steps* differ from the literal ones (``memory=False, anticipation=0``) in three ways, which
benchmarks/long/somcot_schedule.py compares.

1. All transitions seen so far replace the last minibatch. They are balanced to a discounted occupancy, ν̂ = ρ̂ P̂, with
   one sweep ρ̂ ← (1-γ) ν_0 + γ ρ̂ P̂ per iteration. The estimate then has only the noise of the data, and streams need
   not be drawn from the discounted occupancy.
2. Dual steps are divided by the occupancy of their constraint.
3. Primal steps use extrapolated multipliers (Chambolle and Pock). Without this, the iterates of such games tend to
   spiral instead of converging.

*Warm starts.* A run that starts from a previous one (``warm``) continues it bitwise if the streams are the same. If one
stream is different, as in fitting, the multipliers are kept, and so is the memory of the other stream. The coupling
starts over, or is kept as well (``carry``) if the streams differ little.

*Results.* The averaged multipliers and occupancies are interpreted as potentials, values and plans.

*Gauge.* The saddle point determines the multipliers only up to adding w_X(x) + w_Y(y) to V and w(x) - γ w(x') to α.
With h_X(x) = E_λ E_P α_X(x,·,·) and w = -(I - γP)⁻¹ h the α become centered, which is the convention of this package
(gradient.py). The remaining constant in V is determined by (1-γ) <μ_0, V> = <μ, c>.

*Values of pairs that the coupling hardly visits* are not determined by the multipliers, since any with δ ≥ 0 are valid.
They are computed by exact Bellman sweeps with the values of visited pairs held fixed. Derivatives off the supports need
them.

*Bounds.* If the kernels of both chains are known, one more sweep gives T U exactly, and certify.py turns U and T U into
bounds on the distance. Bounds cannot be certified from data alone.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array, lazy
from diffbisim.common.checks import check_discount
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.common.stopping import TimeUp, until
from diffbisim.io.arrays import read_json
from diffbisim.problems.base import ChainProblem
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.cost import ground_cost
from diffbisim.processes.stochastic import as_generator, solve_linear
from diffbisim.processes.streams import Stream
from diffbisim.results.base import DistanceResult, Status, check_warm, previous_table
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.solvers.base import Callback, deadline_of
from diffbisim.solvers.certify import SeparableTables, separable_bounds, transport_rounding
from diffbisim.solvers.exact.coupling import PRICE, StartTransport
from diffbisim.solvers.exact.pairs import begin, bellman, plan_errors
from diffbisim.solvers.exact.transports import EPS
from diffbisim.solvers.somcot.state import Averages, Seen, SomcotOptions, State, check_averages, check_state

if TYPE_CHECKING:
    from diffbisim.solvers.somcot import Somcot

#: A pair counts as visited if its occupancy is at least this fraction of 1/(n_X + n_Y), a typical occupancy.
VISITED = 0.1

#: Seconds after the time limit that bounds may take; if they take longer, they are those of the costs.
CERTIFY = 0.5

#: Maximum number of sweeps that complete the table, and the change (for costs scaled to one) at which they stop.
SWEEPS, SETTLED = 200, 1e-4


#: Smaller logarithms are those of zero.
LOWEST = -700.0


@dataclass(frozen=True, eq=False)
class EstimationTask:
    """What to estimate: two streams, a cost and a discount; and the problem itself if both kernels are known."""

    streams: tuple[Stream, Stream]
    cost: Array
    discount: float
    problem: ChainProblem | None

    @classmethod
    def of_problem(cls, problem: ChainProblem) -> "EstimationTask":
        """Return the task of estimating a problem from samples of its two chains."""
        return cls((Stream(problem.x), Stream(problem.y)), problem.cost, problem.discount, problem)

    @classmethod
    def of_streams(cls, X: Any, Y: Any, cost: Any, discount: float, memory: bool) -> "EstimationTask":
        """Return the task for chains, :class:`Transitions` or :class:`Stream` objects, in any combination."""
        streams = Stream.of(X, "X"), Stream.of(Y, "Y")
        if not (memory or (streams[0].sampled and streams[1].sampled)):
            raise InvalidArgument(
                "memory=False uses only the last minibatch, so streams must be sampled: pass sampled=True"
            )
        table, γ = ground_cost(cost, streams[0].frame, streams[1].frame), check_discount(discount)
        known = [
            s.source
            for s in streams
            if isinstance(s.source, MarkovChain) and np.array_equal(s.source.initial, s.frame.initial)
        ]
        return cls(streams, table, γ, Discounted(known[0], known[1], table, γ) if len(known) == 2 else None)

    @property
    def scale(self) -> float:
        """The largest cost, by which costs are divided."""
        return float(self.cost.max()) or 1.0


# --- the run ------------------------------------------------------------------------------------------------------


def solve(
    task: EstimationTask, options: "Somcot", warm: DistanceResult | None = None, callback: Callback | None = None
) -> DistanceResult:
    """Iterate until the number of steps is reached or a stream ends."""
    ends = deadline_of(options.time_limit)
    state, history = first_state(task, options, warm)

    def result(outcome: Status, certify: bool = options.certify) -> DistanceResult:
        coupling, cost = SomcotCoupling.of_run(state, task), task.cost
        low, high = float(cost.min()), float(cost.max())
        if task.problem is not None and certify:
            with suppress(TimeUp), until(ends + CERTIFY):
                low, high = coupling.bounds()
        return DistanceResult(
            coupling.problem, float(np.clip(coupling.value, low, high)), low, high, outcome, state.iterations,
            options.name, coupling, tuple(history), {"transitions_x": state.drawn[0], "transitions_y": state.drawn[1]},
        )  # fmt: skip

    try:
        outcome = _iterate(state, task, options, history, callback, ends)
    except InvalidData as error:
        # The result up to the invalid item is attached to the error, so that no work is lost.
        error.result = result(Status.INTERRUPTED) if state.iterations else None  # type: ignore[attr-defined]
        raise
    except KeyboardInterrupt as error:  # likewise, without the time that it takes to certify bounds
        error.result = result(Status.INTERRUPTED, False) if state.iterations else None  # type: ignore[attr-defined]
        raise
    if state.iterations == 0 and outcome is Status.ENDED:
        raise InvalidData("a stream ended before its first transition; each must yield at least one minibatch")
    return result(outcome)


def first_state(
    task: EstimationTask, options: "Somcot", warm: DistanceResult | None
) -> tuple[State, list[dict[str, float]]]:
    """Return a fresh state, or the last state of a previous run, with its history if the streams are the same."""
    streams = task.streams
    if warm is not None:
        check_warm(warm, (streams[0].n_states, streams[1].n_states))
        if isinstance(warm.coupling, SomcotCoupling):
            before = warm.coupling.run
            same = before.fingerprints == [s.fingerprint for s in streams] and warm.discount == task.discount
            if same and np.array_equal(warm.problem.cost, task.cost):
                return before.copy(), [dict(row) for row in warm.history]
            return before.restarted(streams, options.carry), []
    state = State.fresh(streams, as_generator(options.rng), options.full)
    if warm is not None:
        table = previous_table(warm, task.scale, lambda: np.zeros(task.cost.shape))
        if table is not None:
            state.it.V[:] = table / (1 - task.discount)
    return state, []


def _iterate(
    state: State, task: EstimationTask, options: "Somcot", history: list[dict[str, float]], callback: Callback | None,
    deadline: float,
) -> Status:  # fmt: skip
    """Draw, run and report, chunk by chunk."""
    rules, scale = _rules(options, task.discount), task.scale
    c = task.cost / scale
    while state.iterations < options.max_iterations:
        try:
            if not state.draw(task.streams, options.batch, c, rules, deadline):
                return Status.ENDED
            state.run(int(options.max_iterations), c, rules, deadline)
        except TimeUp:
            if time.monotonic() < deadline:  # the end of something else
                raise
        k = state.iterations
        if k == options.max_iterations or k >= 1.1 * (history[-1]["iteration"] if history else 1):
            row = {"iteration": float(k), "value": scale * state.mean_cost(c), "last": scale * float(state.last[0])}
            row |= {"lower": float(task.cost.min()), "upper": float(task.cost.max())}
            row |= {"transitions_x": float(state.x.to.size), "transitions_y": float(state.y.to.size)}
            history.append(row)
        if callback is not None and history and callback(history[-1]):
            return Status.INTERRUPTED
        if k < options.max_iterations and time.monotonic() >= deadline:
            return Status.TIME
    return Status.ESTIMATE


def _rules(options: "Somcot", discount: float) -> SomcotOptions:
    """Return the options as the engine needs them."""
    return SomcotOptions(
        discount, float(options.eta), float(options.beta), float(options.decay), float(options.decay_from),
        float(options.anticipation), bool(options.memory), 1.0 / (1.0 - discount),
    )  # fmt: skip


# --- the result ---------------------------------------------------------------------------------------------------


class Law(NamedTuple):
    """A distribution on its support."""

    states: NDArray[np.int64]
    probabilities: Array


class SomcotCoupling(Coupling):
    """The result of a run: plans of the last coupling, and multipliers averaged over the window."""

    def __init__(self, problem: ChainProblem, state: State) -> None:
        self.problem, self.run = problem, state
        self.scale = problem.scale or 1.0

    @classmethod
    def of_run(cls, state: State, task: EstimationTask) -> "SomcotCoupling":
        """Return the coupling of a run. A chain whose kernel is unknown is replaced by the empirical one."""
        if task.problem is not None:
            return cls(task.problem, state)
        x, y = (
            stream.source if isinstance(stream.source, MarkovChain) else empirical(seen, stream.frame)
            for seen, stream in zip((state.x, state.y), task.streams, strict=True)
        )
        return cls(Discounted(x, y, task.cost, task.discount), state)

    def state(self) -> dict[str, NDArray[Any]]:
        return self.run.arrays()

    @classmethod
    def restore(cls, problem: ChainProblem, arrays: dict[str, NDArray[Any]]) -> "SomcotCoupling":
        meta = read_json(arrays, "run")
        check_state(problem, arrays, meta)
        state = State.restore(arrays, meta)
        check_averages(state, problem.discount)
        coupling = cls(problem, state)
        with np.errstate(over="ignore", invalid="ignore"):
            if not all(np.isfinite(part).all() for part in coupling._gauged):
                raise InvalidData("the potentials of the averages overflow")
        return coupling

    # --- averages in the centered gauge, for the unscaled cost ---------------------------------------------

    @lazy
    def _averages(self) -> Averages:
        return self.run.averages(self.problem.discount)

    @property
    def value(self) -> float:
        """<μ̄, c>."""
        return float((self._averages.m * self.problem.cost).sum())

    @lazy
    def _gauged(self) -> tuple[Array, Array, Array]:
        """Potentials ``f`` (laid out like U) and ``g`` (like W), centered, and ``(1-γ) V``, for the scaled cost."""
        mean, γ, (n_x, n_y) = self._averages, self.problem.discount, self.problem.shape
        x, y, c = self.run.x, self.run.y, self.problem.cost / self.scale
        α, β = mean.alpha_x.copy(), mean.alpha_y.reshape(n_x, -1).copy()
        h_x, h_y = np.zeros(n_x), np.zeros(n_y)
        P, Q = kernel(x), kernel(y)
        for s in range(n_x):
            block, p = _block(α, x, s, n_y), P.data[P.indptr[s] : P.indptr[s + 1]]
            h_x[s] = (mean.lambda_x[s] * (block * p).sum(axis=1)).sum()
        for s in range(n_y):
            edges = slice(y.at[s], y.at[s + 1])
            h_y[s] = (mean.lambda_y[s] * (β[:, edges] * Q.data[edges]).sum(axis=1)).sum()
        w, v = (-solve_linear(np.eye(h.size) - γ * _closed(K).toarray(), h) for K, h in ((P, h_x), (Q, h_y)))
        for s in range(n_x):
            edges = slice(x.at[s], x.at[s + 1])
            _block(α, x, s, n_y)[:] += w[s] - γ * w[x.to[edges]]
        β += np.repeat(v, np.diff(y.at)) - γ * v[y.to]
        V = mean.V + w[:, None] + v
        V += ((mean.m * c).sum() / (1 - γ) - (mean.start * V).sum()) / mean.start.sum()
        return -(1 - γ) / γ * α, (-(1 - γ) / γ * β).ravel(), (1 - γ) * V

    @lazy
    def values(self) -> Array:
        """``(1-γ) V`` for visited pairs; the others are computed by Bellman sweeps with these held fixed."""
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
        """Return certified bounds on the distance between the chains of the problem."""
        problem, γ = self.problem, self.problem.discount
        U = (self.values / self.scale).ravel()
        transports = begin(problem, False, None, None)
        TU, solved = bellman(problem, transports, U, PRICE)
        if not solved:
            return float(problem.cost.min()), float(problem.cost.max())
        _, _, size = _engine.extremes(transports.items.listed, TU, U)
        slack = PRICE + (transport_rounding(plan_errors(transports)) + 6 * EPS) * size
        rho = problem.x.occupancy(γ), problem.y.occupancy(γ)
        start = StartTransport(problem).value(U).interval
        return separable_bounds(SeparableTables(U, TU, TU, slack), start, rho, γ, problem.cost)

    # --- the interface of all couplings --------------------------------------------------------------------

    @lazy
    def start(self) -> StartCoupling:
        """The averaged coupling of the starts, rounded to its marginals, and potentials for the table of values."""
        U, exact = self.values / self.scale, StartTransport(self.problem)
        exact.value(U.ravel())
        f, g = exact.potentials(U)
        laws = Law(exact.rows, exact.transport.p), Law(exact.cols, exact.transport.q)
        plan = self._rounded(self._averages.start, *laws)
        return StartCoupling(plan, self.scale * f, self.scale * g)

    def plan(self, x: int, y: int) -> sparse.coo_array:
        """Return the last coupling given (x, y), rounded to its marginals."""
        it, (a, b) = self.run.it, (self._edges(self.run.x, x), self._edges(self.run.y, y))
        mass = np.zeros(self.problem.shape)
        if a.size and b.size:
            u = _block(it.U, self.run.x, x, self.problem.shape[1])[y]
            w = it.W.reshape(self.problem.shape[0], -1)[x, self.run.y.at[y] : self.run.y.at[y + 1]]
            logarithms = u[:, None] + w + it.L[np.ix_(a, b)]
            logarithms -= logarithms.max()
            shares = _engine.exponentials(np.maximum(logarithms, LOWEST).ravel()).reshape(logarithms.shape)
            mass[np.ix_(a, b)] = np.where(logarithms > LOWEST, shares, 0.0)
        return self._rounded(mass, *self._successors(x, y))

    def _rounded(self, mass: Array, x: Law, y: Law) -> sparse.coo_array:
        """Round a table of masses to a plan between two distributions."""
        (rows, p), (cols, q) = x, y
        plan = np.ascontiguousarray(mass[np.ix_(rows, cols)])
        total = plan.sum()
        if total > 0:
            plan /= total
        _engine.round_plan(plan.reshape(-1), p, q)
        i, j = np.nonzero(plan)
        return sparse.coo_array((plan[i, j], (rows[i], cols[j])), shape=self.problem.shape)

    def potentials(self, x: int, y: int) -> tuple[Array, Array]:
        """Return the averaged multipliers on the transitions seen, and c-transforms of the values elsewhere."""
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
        g += level  # so that E f + E g = OT, by Bellman's equation
        open_f, open_g = ~np.isfinite(f), ~np.isfinite(g)
        f[open_f] = (U[np.ix_(open_f, cols[known[1]])] - g[cols[known[1]]]).min(axis=1)
        g[open_g] = (U[np.ix_(rows[known[0]], open_g)] - f[rows[known[0]], None]).min(axis=0)
        return f, g

    def occupancy(self) -> Array:
        """Return the averaged joint occupancy, Σ_x'y' μ̄."""
        m = self._averages.m
        return np.asarray(m / m.sum())

    def _edges(self, side: Seen, s: int) -> NDArray[np.int64]:
        """Return the successors of state s seen so far."""
        return side.to[side.at[s] : side.at[s + 1]]

    def _successors(self, x: int, y: int) -> tuple[Law, Law]:
        """Return the distributions of the next states of x and y."""
        found = []
        for s, k in ((self.problem.x.successors, x), (self.problem.y.successors, y)):
            take = slice(*s.indptr[k : k + 2])
            found.append(Law(s.indices[take], s.probabilities[take]))
        return found[0], found[1]


def kernel(side: Seen) -> sparse.csr_array:
    """Return P̂ from the counts, with all edges of the support; rows without counts are zero."""
    n = side.rho.size
    totals = np.add.reduceat(np.append(side.counts, 0.0), side.at[:-1]) * (np.diff(side.at) > 0)
    share = np.repeat(np.divide(1.0, totals, out=np.zeros(n), where=totals > 0), np.diff(side.at))
    return sparse.csr_array((side.counts * share, side.to, side.at), shape=(n, n))


def empirical(side: Seen, frame: MarkovChain) -> MarkovChain:
    """Return the empirical chain of a stream; a state without an observed successor gets a self-loop."""
    P = _closed(kernel(side))
    dense = P.shape[0] <= 64 or P.nnz > 0.25 * P.shape[0] ** 2
    return MarkovChain(P.toarray() if dense else P, initial=frame.initial, rewards=frame.rewards, names=frame.names)


def _closed(P: sparse.csr_array) -> sparse.csr_array:
    """Add a self-loop to every state without an observed successor."""
    stuck = np.asarray(P.sum(axis=1)).ravel() == 0
    closed = sparse.csr_array(P + sparse.diags_array(stuck.astype(float)))
    closed.eliminate_zeros()
    return closed


def _block(v: Array, side: Seen, x: int, columns: int) -> Array:
    """Return a view of the entries (n_Y, edges of x) of a flat array laid out like U."""
    return v[columns * side.at[x] : columns * side.at[x + 1]].reshape(columns, -1)
