"""MDPs with actions: strategy iteration with the coupling in the outer loop. Certified like chains (solver.py).

The table U is the fixed point of a game on pairs of states (actions.py). A *choice* c is a pair (a, b) of actions, with
δ_c = (1-γ) c_c + γ OT_U(P_a(s), Q_b(t)), and a *line* is a set of choices:

    (T U)(s,t) = max over lines ℓ of min over c in ℓ of δ_c(s,t).

The adversary picks a line, the other side a choice within it. We keep a plan Π_c for every pair and choice c. Let L be
T with these plans in place of optimal ones, so L ≥ T. Repeat

    improve    find optimal plans for U: gives T U, and with it the certificate of solver.py, which also holds for T
    evaluate   U = the fixed point of L: a finite game over lines and choices, *without transports*

Then U* ≤ U_{k+1} ≤ T U_k ≤ U_k (because L U_k = T U_k ≤ U_k), so the iteration is never slower than value iteration. It
is finite, because there are finitely many bases. The inner game is solved by policy iteration for the adversary
(Hoffman & Karp 1966): for given lines, the best choices are found, again by policy iteration (matched lines have a
single choice), then lines are improved. It need not be exact: a fiftieth of the last change is enough. Improving plans
and lines at the same time (Newton's method) is not an option: it can cycle, already on 12 states.

*Many pairs.* Evaluating takes most of the time of large games, if done naively. So from MANY edges on, the plans in use
are copied into one contiguous matrix, and the table is corrected in single precision, as for chains (evaluation.py).

*The lazy maximum.* The old plans give an upper bound on every δ_c, which evaluation has already computed. So the lines
of a pair are solved in the order of their bounds until the next bound is below the best line that is solved. This still
gives T U, and L U = T U. Most transports are never solved again. Within a line, the potentials of one transport between
full rows bound all others from below, so choices that cannot be the least are skipped. No pivots are made for the first
table of one MDP with itself, and few for that of two: its plans are first bases, and it certifies nothing.

*One MDP with itself.* U is symmetric and zero on the diagonal, so only the pairs s < t are solved (the problem is
*folded*). The diagonal counts as a pair whose change is zero: min Δ ≤ 0 ≤ max Δ.

*Rounding.* Comparisons are exact. A skipped line is below the best one by computed bounds, that is, up to η₀ of
solver.py, which the best line itself already accounts for. So T U is as close to what was computed as for chains.

Memory: about 10 (a + b) + 70 bytes per pair of states and of actions with a, b successors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.actions import ActionProblem, MDPResult
from diffbisim.parallel import Stop, split
from diffbisim.problem import Array
from diffbisim.results import DistanceResult, check_warm
from diffbisim.solvers.base import Callback, finish
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import PRICE, StartTransport
from diffbisim.solvers.exact.evaluation import PairChain, PlanCorrection, Plans
from diffbisim.solvers.exact.game_coupling import GameCoupling, begin, longest_plans, plans_of
from diffbisim.solvers.exact.game_kernels import (
    Game,
    Moves,
    Position,
    Selected,
    Targets,
    improve_choices,
    improve_lines,
    improve_pairs,
    select_plans,
)
from diffbisim.solvers.exact.pairs import ALL, extremes, rounding
from diffbisim.solvers.exact.solver import Discounted
from diffbisim.solvers.exact.transports import EPS, LARGE, MANY, NO_NUMBERS, NOTHING, Basis, Effort, Sweep

Integers = NDArray[np.int64]
ImproveTable = Callable[[float], None]  # (target): solve for the table u of the present moves, to this residual

NOT_SELECTED = Selected(Plans(ALL, np.empty(0, np.int32), np.empty(0, np.float32), ALL), np.empty(0, np.float32))

#: The inner game is solved to this share of the last change, or to a smaller one if the gap does not fall.
SHARE, LEAST = 0.02, 1e-3

#: While the table still changes by Δ, pivots that gain less than this share of Δ are not worthwhile.
LOOSE = 0.003

#: In the first sweep, pivots that gain less than this share of the largest cost are postponed, because most choices are
#: never needed. For one MDP with itself all are.
FIRST = 0.4

#: The largest number of rounds of the adversary, and of the other side in each of them, before plans are improved.
ROUNDS = 50


def solve(
    problem: ActionProblem, options: Exact, warm: DistanceResult | None = None, callback: Callback | None = None
) -> MDPResult:
    """Strategy iteration to the certified gap, from a previous result if given."""
    run = StrategyIteration(problem, options, warm)
    return finish(MDPResult, run, problem, options, callback)


class StrategyIteration(Discounted):
    """One solve: the table, the trees of all transports, and the moves of both sides.

    ``U (n_X*n_Y,)`` is the table of costs of the transports, scaled by the largest cost. ``u (N + 1,)`` holds its
    entries at the pairs that are solved, and a zero for the diagonal.
    """

    def __init__(self, problem: ActionProblem, options: Exact, warm: DistanceResult | None = None) -> None:
        self.problem, self.discount, self.tol = problem, problem.discount, options.tol
        if warm is not None:
            check_warm(warm, problem.shape)
        known = warm.coupling if warm is not None and isinstance(warm.coupling, GameCoupling) else None
        self.pairs, self.transports = begin(problem, options.reachable, options.threads, known)
        N, C, scale = self.pairs.size, len(problem.choices), problem.scale or 1.0
        self.u, self._spare = np.zeros(N + 1), np.empty(N + 1)
        self.TU = self._spare[:N]
        self.u[:N] = self.pairs.table(first_table(problem, None if warm is None else warm.values))
        self.U = self.u[self.pairs.numbers]
        self.game = make_game(problem, self.pairs.listed, scale, self.U)
        chosen = np.append(np.arange(N) * C, N * C)
        self.moves = Moves(np.full(N * C, np.inf), np.zeros(N, np.int64), chosen, self.TU)
        self.many = self.transports.edges >= MANY
        self.targets = Targets(self.pairs.numbers, np.empty(self.transports.edges if self.many else 0, np.int32))
        self.selected = self._selected() if self.many else NOT_SELECTED
        self.start = StartTransport(problem)  # type: ignore[arg-type]
        self.products = self.evaluations = self.solved = 0
        first = np.inf if self.game.same else FIRST
        self.price, self.share, self.gap = first if warm is None else PRICE, SHARE, np.inf

    @property
    def work(self) -> dict[str, int]:
        """Counts of the work so far; a full sweep would solve ``pairs * choices`` of the ``transports``."""
        t = self.transports
        return {
            "pairs": self.pairs.size, "choices": len(self.problem.choices), "transports": self.solved,
            "pivots": t.pivots, "improvements": t.sweeps, "evaluations": self.evaluations, "sweeps": self.products,
        }  # fmt: skip

    def _selected(self) -> Selected:
        """Memory for the plans in use and their residuals."""
        indptr, rows = longest_plans(self.transports, self.pairs), self.pairs.size + self.pairs.folded
        plans = Plans(indptr[: rows + 1], np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32), ALL)
        return Selected(plans, np.zeros(rows, np.float32))

    def improve(self, iteration: int) -> None:
        """Compute T U with optimal plans; U becomes the middle of the certified band."""
        γ, u = self.discount, self.u[:-1]
        solved = self._sweep()
        low, high, size = extremes(ALL, self.TU, u)
        if self.pairs.folded:  # the diagonal does not change
            low, high = min(low, 0.0), max(high, 0.0)
        if self.many:
            middle = 0.0 if self.pairs.folded else (low + high) / 2
            self.selected.residual[: u.size] = self.TU - u - middle
        u[:] = self.TU
        if solved := solved and self.price < np.inf:
            u += γ / (1 - γ) * (high + low - self.price) / 2
        self.U = self.u[self.pairs.numbers]
        self.change, before = high - low, self.gap
        self.floor = 2 * rounding(self.transports, size, γ)
        self.gap = γ * (self.change + self.price) / (1 - γ) + self.floor if solved else np.inf
        if before < np.inf and not self.gap < before:
            self.share = max(self.share / 5, LEAST)

    def _sweep(self) -> bool:
        """Find optimal plans where they can matter; returns whether all transports were solved."""
        t = self.transports
        basis, t.basis = t.basis, Basis.NONE  # an interrupted sweep leaves trees of mixed age

        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            effort = Effort(int(basis), self.price, NOTHING, stop)
            sweep = Sweep(t.items, t.trees, self.U, effort)
            return improve_pairs(lo, hi, sweep, self.game, self.moves, self.targets)

        done = split(run, self.pairs.size, t.cells, t.threads, wait=t.nodes**2 > 4 * LARGE)
        t.basis = Basis.FEASIBLE
        t.pivots += sum(pivots for pivots, _, _, _ in done)
        t.sweeps += 1
        self.solved += sum(count for _, _, _, count in done)
        before = t.clipped if basis == Basis.FEASIBLE else 0.0
        t.clipped = max(before, *(clipped for _, _, clipped, _ in done))
        return not any(failed for _, failed, _, _ in done)

    def evaluate(self) -> None:
        """Solve the game with the present plans, to an accuracy that depends on the last change."""
        γ = self.discount
        change = min(self.change, 1 - γ)  # the first change may be much larger than the weight of one step
        accuracy = max(self.share * change, 0.1 * self.tol * (1 - γ), 20 * EPS)
        self.price = max(PRICE, LOOSE * change)
        if self.pairs.folded:  # the middle of the band is a poor start, because the diagonal does not shift with it
            self.u[:-1] = self.TU
        improve_table = self._begin_correction() if self.many else self._begin_chain()
        for _ in range(ROUNDS):
            self._best_choices(improve_table, accuracy / 5)
            low, high = self._respond(improve_lines, accuracy / 100)
            if high - low <= accuracy:
                break
        self.U = self.u[self.pairs.numbers]

    def _begin_chain(self) -> ImproveTable:
        """Prepare to solve for the table of the plans in use, in double precision."""
        self.plans = plans_of(self.transports, self.pairs, self.moves.chosen)
        chain = PairChain(self.plans, self.u.size, self.discount, self.transports.threads)

        def improve_table(target: float) -> None:
            source, before = np.append(self.game.base[self.moves.chosen[:-1]], 0.0), chain.products
            chain.evaluate(source, self.u, target)
            self.products += chain.products - before

        return improve_table

    def _begin_correction(self) -> ImproveTable:
        """The same for many pairs: corrections of the last table u, in single precision."""
        trees, (selected, residual) = self.transports.trees, self.selected
        self.plans = Plans(trees.at, self.targets.target, trees.flow, self.moves.chosen)
        self._by_pairs(select_plans, self._position)
        self.u[: residual.size] -= residual
        # T U is no longer needed, so its memory can be used
        spare = self._spare.view(np.float32).reshape(2, -1)[:, : residual.size]
        correction = PlanCorrection(selected, self.discount, spare, self.transports.threads)

        def improve_table(target: float) -> None:
            before = correction.products
            self.u[: residual.size] += correction.solve(residual, target)
            if not self.pairs.folded:
                self.u[: residual.size] += correction.constant
            self.products += correction.products - before

        return improve_table

    def _best_choices(self, improve_table: ImproveTable, target: float) -> None:
        """Solve for the table of the best choices within the present lines."""
        for _ in range(ROUNDS):
            improve_table(target)
            self.evaluations += 1
            if self.problem.actions == "matched":
                return
            if self._respond(improve_choices, target / 20) <= target:
                return

    def _respond(self, kernel: Any, tie: float) -> Any:
        """Improve the moves for the table u; combines what the kernel returns over all pairs."""
        done = self._by_pairs(kernel, self._position, self.u, tie)
        self.products += 1
        if kernel is improve_choices:
            return max(done)
        return min(low for low, _ in done), max(high for _, high in done)

    @property
    def _position(self) -> Position:
        return Position(self.game, self.plans, self.moves, self.selected)

    def _by_pairs(self, kernel: Any, *given: Any) -> list[Any]:
        """Run ``kernel(lo, hi, *given)`` over all pairs with all threads."""

        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            return kernel(lo, hi, *given)

        return split(run, self.pairs.size, float(self.transports.edges), self.transports.threads)

    def coupling(self) -> GameCoupling:
        """Plans, moves and table at the end of the run."""
        moves = self.moves.line, self.moves.chosen[:-1]
        half = self.gap / 2
        return GameCoupling(self.problem, self.pairs, self.transports, self.U, moves, self.start, half)


def is_hollow(U: Array, shape: tuple[int, int]) -> bool:
    """Whether a table is square with a zero diagonal: both sides have the same states."""
    return shape[0] == shape[1] and not U[:: shape[1] + 1].any()


def make_game(problem: ActionProblem, listed: Integers, scale: float, U: Array) -> Game:
    """Costs and lines at the listed pairs, for iterations from the table U."""
    cost = problem.cost.reshape(len(problem.choices), -1)[:, listed].T / scale
    sizes = [len(line) for line in problem.lines]
    lines = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    base = np.ascontiguousarray((1 - problem.discount) * cost).ravel()
    members, same = np.concatenate(problem.lines).astype(np.int64), is_hollow(U, problem.shape)
    sides = zip((problem.x._stacked, problem.y._stacked), problem.shape, strict=True)
    full = all(rows.indices.size == (rows.indptr.size - 1) * n for rows, n in sides)
    nearest = np.argsort(U.reshape(problem.shape), axis=1).ravel() if same and full else NO_NUMBERS
    return Game(base, lines, members, problem.discount, same, full, nearest)


def first_table(problem: ActionProblem, values: Array | None) -> Array:
    """The scaled table to start from, flat: the game for the costs of one step, or a clipped previous result."""
    scale = problem.scale or 1.0
    cost = np.maximum.reduce([problem.cost[line].min(axis=0) for line in problem.lines]).ravel() / scale
    if values is None:
        return np.asarray(cost)
    with np.errstate(over="ignore"):
        table = values.ravel() / scale
    return np.where(np.isnan(table), cost, np.clip(table, float(problem.cost.min()) / scale, 1.0))
