"""MDPs with actions: strategy iteration with the coupling in the outer loop. Certified like chains (solver.py).

The table U is the fixed point of a game on pairs of states (problems/games.py, engine/games.hpp). A *choice* c is a
pair of actions (a, b), with δ_c = (1-γ) c_c + γ OT_U(P_a(s), Q_b(t)), and a *line* is a set of choices:

    (T U)(s,t) = max over lines ℓ of min over c in ℓ of δ_c(s,t).

We keep a plan Π_c for every pair and choice c. Let L be T with these plans in place of optimal ones, so L ≥ T. Repeat

    improve    find optimal plans for U: gives T U, and with it the certificate of solver.py, which also holds for T
    evaluate   U = the fixed point of L: a finite game over lines and choices, *without transports*

Then U* ≤ U_{k+1} ≤ T U_k ≤ U_k (because L U_k = T U_k ≤ U_k), so the iteration is never slower than value iteration. It
is finite, because there are finitely many bases. The inner game is solved by policy iteration for the adversary
(Hoffman & Karp 1966): for given lines, the best choices are found, again by policy iteration (matched lines have a
single choice), then lines are improved. It need not be exact: a fiftieth of the last change is enough. Improving plans
and lines at the same time (Newton's method) is not an option: it can cycle, already on 12 states.

*Many pairs.* Evaluating takes most of the time of large games, if done naively. So from MANY edges on, the plans in use
are copied into one contiguous matrix, and the table is corrected in single precision, as for chains (evaluation.py).

*The lazy maximum.* Lines and choices whose bounds show that they cannot be the worst or the least are not solved. No
pivots are made for the first table of one MDP with itself, and few for that of two: its plans are first bases, and it
certifies nothing.

*One MDP with itself.* U is symmetric and zero on the diagonal, so only the pairs s < t are solved (the problem is
*folded*), and (t, s) is (s, t) with plans transposed and both actions swapped. The diagonal counts as a pair whose
change is zero: min Δ ≤ 0 ≤ max Δ.

*Rounding.* Comparisons are exact. A skipped line is below the best one by computed bounds, that is, up to η₀ of
solver.py, which the best line itself already accounts for. So T U is as close to what was computed as for chains.

*Items.* The choice c = (a, b) of pair p = (s, t) is the item p C + c: a transport between row a n_X + s of the stacked
kernels of X and row b n_Y + t of those of Y, over the table of state pairs that all share.

Choices that the lazy maximum skipped have outdated plans. Those are solved when they are requested.

Memory: about 10 (a + b) + 70 bytes per pair of states and of actions with a, b successors.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array, frozen, lazy
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidData, warn
from diffbisim.common.stopping import engine_run
from diffbisim.io.arrays import numbers
from diffbisim.problems.game import Game
from diffbisim.results.base import DistanceResult, check_warm
from diffbisim.results.coupling import Coupling, StartCoupling
from diffbisim.results.game import MDPResult
from diffbisim.solvers.base import Callback, finish
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import (
    PRICE,
    StartTransport,
    fill_trees,
    listed_pairs,
    plan_of,
    potentials_of,
    unfit,
)
from diffbisim.solvers.exact.evaluation import PairChain, PlanCorrection, Plans
from diffbisim.solvers.exact.pairs import ALL, begin_with, first_pairs, reached, sort_keys, sweep_band
from diffbisim.solvers.exact.solver import Discounted
from diffbisim.solvers.exact.transports import (
    EPS,
    MANY,
    Basis,
    Items,
    PairSuccessors,
    Transports,
)

Integers = NDArray[np.int64]
ImproveTable = Callable[[float], None]  # (target): solve for the table u of the present moves, to this residual

#: The inner game is solved to this share of the last change, or to a smaller one if the gap does not fall.
SHARE, MIN_SHARE = 0.02, 1e-3

#: While the table still changes by Δ, pivots that gain less than this share of Δ are not worthwhile.
LOOSE = 0.003

#: In the first sweep, pivots that gain less than this share of the largest cost are postponed, because most choices are
#: never needed. For one MDP with itself all are.
FIRST = 0.4

#: The largest number of rounds of the adversary, and of the other side in each of them, before plans are improved.
ROUNDS = 50


def solve(
    problem: Game, options: Exact, warm: DistanceResult | None = None, callback: Callback | None = None
) -> MDPResult:
    """Strategy iteration to the certified gap, from a previous result if given."""
    run = StrategyIteration(problem, options, warm)
    return finish(MDPResult, run, problem, options, callback)


class GameRules(NamedTuple):
    """The game that is played at every pair. There are N pairs with C choices each, and L lines."""

    base: Array  # (N*C,) (1-γ) times the cost of every choice
    lines: Integers  # (L + 1,) the first member of each line
    members: Integers  # the choices of all lines, one line after another
    discount: float
    hollow: bool  # whether both sides have the same states, and equal states are at distance zero


class Moves(NamedTuple):
    """The state of the game, which the engine updates."""

    delta: Array  # (N*C,) δ of every choice, or an upper bound on it
    line: Integers  # (N,) the adversary's line
    chosen: Integers  # (N + 1,) the plan that a pair uses, p C + c; the last entry is an empty plan
    value: Array  # (N,) T U, as computed by the last improvement


class Targets(NamedTuple):
    """The pairs that the edges of all trees lead to, which the engine updates."""

    numbers: Integers  # (n_X*n_Y,) the number of every pair of states
    target: NDArray[np.int32]  # (E,) the number of the pair that each edge leads to


class Selected(NamedTuple):
    """A contiguous copy of the plans in use, in single precision, and their residuals; empty for small problems.

    The row of a pair has space for the longest of its plans; unused entries have no flow.
    """

    first: Integers  # (N + 1,), or (N + 2,) if folded: the first entry of each row; a last empty one for the diagonal
    target: NDArray[np.int32]
    flow: NDArray[np.float32]
    residual: NDArray[np.float32]  # (N,), or (N + 1,) if folded: L u - u, up to a constant unless folded


NOT_SELECTED = Selected(ALL, np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float32))


class StrategyIteration(Discounted):
    """One solve: the table, the trees of all transports, and the moves of both sides.

    ``U (n_X*n_Y,)`` is the table of costs of the transports, scaled by the largest cost. ``u (N + 1,)`` holds its
    entries at the pairs that are solved, and a zero for the diagonal.
    """

    def __init__(self, problem: Game, options: Exact, warm: DistanceResult | None = None) -> None:
        self.problem, self.discount, self.tol = problem, problem.discount, options.tol
        if warm is not None:
            check_warm(warm, problem.shape)
        known = warm.coupling.transports if warm is not None and isinstance(warm.coupling, GameCoupling) else None
        self.pairs, self.transports = begin(problem, options.reachable, options.threads, known)
        N, C, scale = self.pairs.size, len(problem.choices), problem.scale or 1.0
        self.u, self._spare = np.zeros(N + 1), np.empty(N + 1)
        self.TU = self._spare[:N]
        self.u[:N] = first_table(problem, None if warm is None else warm.values)[self.pairs.listed]
        self.U = self.u[self.pairs.numbers]
        self.rules = make_rules(problem, self.pairs.listed, scale, self.U)
        chosen = np.append(np.arange(N) * C, N * C)
        self.moves = Moves(np.full(N * C, np.inf), np.zeros(N, np.int64), chosen, self.TU)
        self.many = self.transports.edges >= MANY
        self.targets = Targets(self.pairs.numbers, np.zeros(self.transports.edges, np.int32))
        self.selected = self._selected() if self.many else NOT_SELECTED
        self.game = _engine.Game(self.transports.core, self.rules, self.moves, self.targets, self.selected)
        self.start = StartTransport(problem)  # type: ignore[arg-type]
        self.products = self.evaluations = self.solved = 0
        first = np.inf if self.rules.hollow else FIRST
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
        """Memory for the plans in use, up to the longest of every pair, and for their residuals."""
        rows = self.pairs.size + self.pairs.folded
        longest = np.diff(self.transports.trees.at).reshape(self.pairs.size, -1).max(axis=1)
        first = np.concatenate([[0], np.cumsum(longest), [longest.sum()]]).astype(np.int64)[: rows + 1]
        entries, residual = int(first[-1]), np.zeros(rows, np.float32)
        return Selected(first, np.empty(entries, np.int32), np.empty(entries, np.float32), residual)

    def improve(self, iteration: int) -> None:
        """Compute T U with optimal plans; U becomes the middle of the certified band."""
        γ, u = self.discount, self.u[:-1]
        solved = self._sweep()
        low, high, size = _engine.extremes(ALL, self.TU, u)
        if self.pairs.folded:  # the diagonal does not change
            low, high = min(low, 0.0), max(high, 0.0)
        if self.many:
            middle = 0.0 if self.pairs.folded else (low + high) / 2
            self.selected.residual[: u.size] = self.TU - u - middle
        u[:] = self.TU
        band = sweep_band(self.transports, (low, high, size), γ, self.price)
        if solved := solved and self.price < np.inf:
            u += band.shift
        self.U = self.u[self.pairs.numbers]
        self.change, before = high - low, self.gap
        self.floor, self.gap = 2 * band.rounding, band.gap if solved else np.inf
        if before < np.inf and not self.gap < before:
            self.share = max(self.share / 5, MIN_SHARE)

    def _sweep(self) -> bool:
        """Find optimal plans where they can matter; returns whether all transports were solved."""
        t = self.transports
        basis, t.basis = t.basis, Basis.NONE  # an interrupted sweep leaves trees of mixed age

        run = engine_run(t.threads)
        pivots, failed, clipped, solved = self.game.improve_pairs(self.U, int(basis), self.price, run)
        t.basis = Basis.FEASIBLE
        t.pivots += pivots
        t.sweeps += 1
        self.solved += solved
        t.clipped = max(t.clipped if basis == Basis.FEASIBLE else 0.0, clipped)
        return failed == 0

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
            low, high = self.game.improve_lines(self.u, accuracy / 100, engine_run(self.transports.threads))
            self.products += 1
            if high - low <= accuracy:
                break
        self.U = self.u[self.pairs.numbers]

    def _begin_chain(self) -> ImproveTable:
        """Prepare to solve for the table of the plans in use, in double precision."""
        at, _, _, flow = self.transports.trees  # the plans are rows over pairs; an empty one is for the diagonal
        plans = Plans(np.append(at, at[-1]), self.targets.target, flow, self.moves.chosen)
        chain = PairChain(plans, self.u.size, self.discount, self.transports.threads)

        def improve_table(target: float) -> None:
            source, before = np.append(self.rules.base[self.moves.chosen[:-1]], 0.0), chain.products
            chain.evaluate(source, self.u, target)
            self.products += chain.products - before

        return improve_table

    def _begin_correction(self) -> ImproveTable:
        """The same for many pairs: corrections of the last table u, in single precision."""
        first, target, flow, residual = self.selected
        self.game.select_plans(engine_run(self.transports.threads))
        self.u[: residual.size] -= residual
        # T U is no longer needed, so its memory can be used
        spare = self._spare.view(np.float32).reshape(2, -1)[:, : residual.size]
        correction = PlanCorrection(Plans(first, target, flow, ALL), self.discount, spare, self.transports.threads)

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
            gain = self.game.improve_choices(self.u, target / 20, engine_run(self.transports.threads))
            self.products += 1
            if gain <= target:
                return

    def hurry(self) -> None:
        self.price = np.inf

    def coupling(self) -> "GameCoupling":
        """Plans, moves and table at the end of the run."""
        moves = self.moves.line.copy(), self.moves.chosen[:-1].copy()
        half = self.gap / 2
        return GameCoupling(self.problem, self.pairs, self.transports, self.U, moves, self.start, half)


def is_hollow(U: Array, shape: tuple[int, int]) -> bool:
    """Whether a table is square with a zero diagonal: both sides have the same states."""
    return shape[0] == shape[1] and not U[:: shape[1] + 1].any()


def make_rules(problem: Game, listed: Integers, scale: float, U: Array) -> GameRules:
    """Costs and lines at the listed pairs, for iterations from the table U."""
    cost = problem.cost.reshape(len(problem.choices), -1)[:, listed].T / scale
    lines = np.concatenate([[0], np.cumsum([len(line) for line in problem.lines])]).astype(np.int64)
    members, base = np.concatenate(problem.lines).astype(np.int64), np.ascontiguousarray((1 - problem.discount) * cost)
    return GameRules(base.ravel(), lines, members, problem.discount, is_hollow(U, problem.shape))


def first_table(problem: Game, values: Array | None) -> Array:
    """The scaled table to start from, flat: the game for the costs of one step, or a clipped previous result."""
    scale = problem.scale or 1.0
    cost = np.maximum.reduce([problem.cost[line].min(axis=0) for line in problem.lines]).ravel() / scale
    if values is None:
        return np.asarray(cost)
    with np.errstate(over="ignore"):
        table = values.ravel() / scale
    return np.where(np.isnan(table), cost, np.clip(table, float(problem.cost.min()) / scale, 1.0))


# --- pairs and items --------------------------------------------------------------------------------------------------


class SolvedPairs(NamedTuple):
    """The pairs of states that are solved."""

    listed: Integers  # (N,) flat state pairs, ascending
    numbers: Integers  # (n_X*n_Y,) the number of every pair; N for a folded diagonal and unreachable pairs
    folded: bool  # whether pairs s < t stand for both orders
    complete: bool  # whether all pairs are reachable, or were asked for

    @property
    def size(self) -> int:
        return int(self.listed.size)


def make_pairs(problem: Game, reachable: bool) -> SolvedPairs:
    """All pairs, or those that some actions and couplings can reach from the starts; folded if possible."""
    (n_x, n_y), complete = problem.shape, not reachable
    inside = np.ones(n_x * n_y, bool) if complete else _within_reach(problem)
    complete = bool(inside.all())
    folded = problem.is_symmetric
    listed = np.flatnonzero(inside)
    if folded:
        square = inside.reshape(n_x, n_y)
        half = np.flatnonzero(np.triu(square | square.T, 1))
        folded = half.size > 0
        listed = half if folded else listed
    numbers = np.full(n_x * n_y, listed.size, np.int64)
    numbers[listed] = np.arange(listed.size)
    if folded:
        numbers[listed % n_y * n_y + listed // n_y] = np.arange(listed.size)
    return SolvedPairs(listed, numbers, folded, complete)


def _within_reach(problem: Game) -> NDArray[np.bool_]:
    seen = np.zeros(problem.shape[0] * problem.shape[1], np.bool_)
    successors = PairSuccessors(problem.x._stacked, problem.y._stacked, problem.shape, problem.choices)
    reached(successors, seen, first_pairs(problem))
    return seen


def make_items(problem: Game, listed: Integers) -> Items:
    """One item for every choice at every listed pair; the choices of a pair are consecutive."""
    n_x, n_y = problem.shape
    keys = sort_keys(problem.cost.mean(axis=0) / (problem.scale or 1.0))
    a, b = problem.choices.T
    rows = (a * n_x + (listed // n_y)[:, None]) * (n_y * problem.y.n_actions) + b * n_y + (listed % n_y)[:, None]
    return Items.of(problem.x._stacked, problem.y._stacked, n_y, keys)._replace(listed=rows.ravel())


def begin(
    problem: Game, reachable: bool, threads: int | None = None, known: Transports | None = None
) -> tuple[SolvedPairs, Transports]:
    """The pairs of a problem and their transports, with copies of ``known`` trees if those fit."""
    pairs = make_pairs(problem, reachable)
    return pairs, begin_with(make_items(problem, pairs.listed), threads, known)


# --- the result -------------------------------------------------------------------------------------------------------


class GameCoupling(Coupling):
    """Plans, potentials and occupancies for the selected moves. The table ``U`` is flat and scaled.

    ``half`` bounds the distance of the table from the metric, scaled and with rounding; infinite if a transport failed.
    ``line`` and ``chosen (N,)`` are the adversary's line and the item of every listed pair.
    """

    problem: Game  # type: ignore[assignment]

    def __init__(
        self, problem: Game, pairs: SolvedPairs, transports: Transports, U: Array,
        moves: tuple[Integers, Integers], start: StartTransport, half: float,
    ) -> None:  # fmt: skip
        self.problem, self.pairs, self.transports, self.U = problem, pairs, transports, U
        self.line, self.chosen = moves
        self._start, self.half = start, half
        self.complete, self.sweeps = pairs.complete, 0

    # --- tables ---------------------------------------------------------------------------------------------------

    def _user_table(self, scaled: Array, to: float | None = None) -> Array:
        """In user units, clipped to the range of the costs and rounded toward ``to``; NaN for pairs not solved."""
        problem, pairs = self.problem, self.pairs
        table = problem.scale * np.clip(scaled, 0.0, 1.0)
        if to is not None:
            table = np.nextafter(table, to)
        table = np.clip(table, float(problem.cost.min()), problem.scale)
        unknown = pairs.numbers == pairs.size
        if pairs.folded:
            unknown[:: problem.shape[1] + 1] = False
            table[:: problem.shape[1] + 1] = 0.0
        table[unknown] = np.nan
        return frozen(table.reshape(problem.shape))

    @lazy
    def values(self) -> Array:
        return self._user_table(self.U)

    @lazy
    def table_bounds(self) -> tuple[Array, Array]:
        """Certified lower and upper bounds on the metric, including the rounding of scaling and of the sum."""
        wide = self.half + 4 * EPS
        return self._user_table(self.U - wide, -np.inf), self._user_table(self.U + wide, np.inf)

    @property
    def start(self) -> StartCoupling:
        return self._start.solution(self.U, self.complete)

    # --- pairs ----------------------------------------------------------------------------------------------------

    def move(self, s: int, t: int) -> tuple[int, int]:
        """The worst line at a pair, and the best choice of it."""
        p, turned = self._find(s, t)
        if p is None:
            return 0, 0  # the diagonal: the same action in the same state
        line, choice = int(self.line[p]), int(self.chosen[p]) - p * len(self.problem.choices)
        if not turned or self.problem.actions == "matched":
            return line, choice
        n = self.problem.x.n_actions
        return (line + n) % (2 * n), int(self._swapped[choice])

    def _find(self, s: int, t: int) -> tuple[int | None, bool]:
        """The number of a pair (None for the diagonal of a folded problem), and whether it is stored as (t, s)."""
        pairs, n_y = self.pairs, self.problem.shape[1]
        if pairs.folded and s == t:
            return None, False
        p = int(pairs.numbers[s * n_y + t])
        if p == pairs.size:
            raise InvalidArgument(
                f"pair ({s}, {t}) cannot be reached from the starts and was not solved; use Exact(reachable=False)"
            )
        return p, bool(pairs.folded and s > t)

    @lazy
    def _swapped(self) -> Integers:
        """The choice (b, a) of every choice (a, b), for one MDP with itself."""
        numbers = np.arange(len(self.problem.choices))
        if self.problem.actions == "matched":
            return numbers
        return numbers.reshape(self.problem.x.n_actions, self.problem.y.n_actions).T.ravel()

    def _transport(self, s: int, t: int, choice: int | None) -> tuple[int, Transports, bool]:
        """The item of a pair and a choice, the transports that it belongs to, and whether it is transposed.

        The selected choice is returned as the run left it; other choices are solved for the present table.
        """
        p, turned = self._find(s, t)
        selected = self.move(s, t)[1]
        if p is not None and choice in (None, selected):
            return int(self.chosen[p]), self.transports, turned
        a, b = self.problem.choices[selected if choice is None else choice]
        items, (n_x, n_y) = self.transports.items, self.problem.shape
        row = (a * n_x + s) * (n_y * self.problem.y.n_actions) + b * n_y + t
        single = Transports(items._replace(listed=np.array([row])), 1)
        single.solve(self.U, np.empty(1), PRICE)
        return 0, single, False

    def plan(self, x: int, y: int, choice: int | None = None) -> sparse.coo_array:
        k, transports, turned = self._transport(x, y, choice)
        plan = plan_of(transports, k, self.problem.shape)
        return plan.T if turned else plan

    def potentials(self, x: int, y: int, choice: int | None = None) -> tuple[Array, Array]:
        k, transports, turned = self._transport(x, y, choice)
        f, g = potentials_of(transports, k, self.U, self.problem.shape, self.complete)
        f, g = (g, f) if turned else (f, g)
        return self.problem.scale * f, self.problem.scale * g

    # --- occupancy and what follows -------------------------------------------------------------------------------

    def occupancy(self, start: Array | None = None) -> Array:
        """m = (1-γ) m_0 + γ Πᵀ m under the selected moves, from the coupling of the starts or any law of pairs."""
        first = self._start.law() if start is None else start.ravel()
        chain = PairChain(self._ordered_plans(), first.size, self.problem.discount, self.transports.threads)
        accuracy = 1e-13 if first.size <= 20_000 else min(max(1e-3 * self.half, 1e-13), 1e-9)
        m, error = chain.occupancy(first, accuracy)
        self.sweeps += chain.products
        if error > 1e-6:
            warn(
                f"the occupancy of {first.size} pairs is only accurate to {error:.1e} in total; use a smaller discount",
                ConvergenceWarning,
                stacklevel=3,
            )
        return np.asarray(m.reshape(self.problem.shape))

    def _ordered_plans(self) -> Plans:
        """The selected plans as rows over all pairs (s, t), in both orders if the problem is folded."""
        pairs, (n_x, n_y), at = self.pairs, self.problem.shape, self.transports.trees.at
        sizes = at[self.chosen + 1] - at[self.chosen]
        ends = np.cumsum(sizes)
        edges = np.repeat(at[self.chosen] - (ends - sizes), sizes) + np.arange(ends[-1])
        flow, target = self.transports.trees.flow[edges], self.transports.targets()[edges]
        chosen = np.full(n_x * n_y, -1, np.int64)
        chosen[pairs.listed] = np.arange(pairs.size)
        if pairs.folded:
            s = self.problem.x._stacked  # its first n rows: action 0
            first = slice(0, s.indptr[n_x])
            turned = target % n_y * n_y + target // n_y
            chosen[pairs.listed % n_y * n_y + pairs.listed // n_y] = pairs.size + np.arange(pairs.size)
            chosen[:: n_y + 1] = 2 * pairs.size + np.arange(n_x)
            sizes = np.concatenate([sizes, sizes, np.diff(s.indptr[: n_x + 1])])
            flow = np.concatenate([flow, flow, s.probabilities[first]])
            target = np.concatenate([target, turned, s.indices[first] * (n_y + 1)]).astype(target.dtype)
        indptr = np.concatenate([[0], np.cumsum(sizes), [flow.size]]).astype(np.int64)  # last an empty row
        chosen[chosen < 0] = indptr.size - 2
        return Plans(indptr, target, flow, chosen)

    def by_choice(self, m: Array) -> Array:
        """``m (n_X, n_Y)`` at the selected choice of every pair, zero at other choices: (C, n_X, n_Y)."""
        pairs, C, n_y = self.pairs, len(self.problem.choices), self.problem.shape[1]
        choice = self.chosen - np.arange(pairs.size) * C
        s, t = pairs.listed // n_y, pairs.listed % n_y
        spread = np.zeros((C, *self.problem.shape))
        spread[choice, s, t] = m[s, t]
        if pairs.folded:
            spread[self._swapped[choice], t, s] = m[t, s]
            np.einsum("ss->s", spread[0])[:] = np.diagonal(m)
        return spread

    def weighted_potentials(self, m: Array, everywhere: bool) -> tuple[Any, Any]:
        """``Σ_t m(s,t) f_st`` by rows a n_X + s of X for the selected actions a, and the same for Y.

        Dense over states with ``everywhere``, else on the stored entries of the stacked kernels. Potentials on the
        diagonal of a folded problem are zero.
        """
        problem, pairs, (n_x, n_y) = self.problem, self.pairs, self.problem.shape
        shapes = ((problem.x.n_actions * n_x, n_x), (problem.y.n_actions * n_y, n_y)) if everywhere else None

        def sums(table: Array) -> tuple[Array, Array]:
            weights = np.zeros(self.transports.size)
            weights[self.chosen] = np.ascontiguousarray(table).ravel()[pairs.listed]
            return self.transports.weighted_potentials(self.U, weights, shapes)

        by_x, by_y = sums(m)
        if pairs.folded:
            more_y, more_x = sums(m.T)
            by_x, by_y = by_x + more_x, by_y + more_y
        return problem.scale * by_x, problem.scale * by_y

    def solve_like(self, problem: Game) -> MDPResult:
        """Solve another problem with the same solver."""
        result: Any = Exact(threads=self.transports.threads).solve(problem)
        return result  # type: ignore[no-any-return]

    # --- files ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        trees = self.transports.trees
        return {
            "U": self.U, "pair": self.pairs.listed, "line": self.line, "chosen": self.chosen,
            "half": np.array(self.half), "child": trees.child, "parent": trees.parent, "flow": trees.flow,
            **self._start.state(),
        }  # fmt: skip

    @classmethod
    def restore(cls, problem: Game, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The inverse of :meth:`state`. The list of pairs follows from the problem, and the file must agree with it."""
        pairs, transports = check_game(problem, arrays)
        start = StartTransport.restore(problem, arrays)
        start.solve(arrays["U"], 0.0)
        moves = arrays["line"], arrays["chosen"]
        return cls(problem, pairs, fill_trees(transports, arrays), arrays["U"], moves, start, float(arrays["half"]))

    def check_bounds(self, result: MDPResult, cells: float) -> DistanceResult | None:
        """Solve again from the table and return that result; raise if the intervals do not intersect.

        If a sweep has more than ``cells`` cells, None is returned.
        """
        if self.transports.cells > cells:
            return None
        again: Any = Exact(tol=1e-9, max_iterations=30, reachable=not self.complete, threads=1).solve(
            self.problem,
            warm=result,
        )
        apart = (again.values_upper < result.values_lower) | (again.values_lower > result.values_upper)
        if apart.any() or result.lower > again.upper or result.upper < again.lower:
            raise InvalidData(
                f"the distance is from {again.lower:.17g} to {again.upper:.17g}, and the table within its own bounds; "
                "those in the file are others"
            )
        return again  # type: ignore[no-any-return]


def check_game(problem: Game, arrays: Mapping[str, NDArray[Any]]) -> tuple[SolvedPairs, Transports]:
    """Check table, pairs, moves and trees from a file before any of them is used as an index."""
    n_x, n_y = problem.shape
    numbers(arrays, "U", (n_x * n_y,))
    pair, half = listed_pairs(arrays), arrays.get("half")
    if half is None or half.dtype != np.float64 or half.shape != () or not half >= 0:
        raise InvalidData("array 'half' must be one number of at least 0")
    pairs, transports = begin(problem, False)
    if not np.array_equal(pair, pairs.listed):
        pairs, transports = begin(problem, True)
    if not np.array_equal(pair, pairs.listed):
        raise InvalidData("array 'pair' lists neither all pairs nor those that the starts can reach")
    N, C = pairs.size, len(problem.choices)
    line = numbers(arrays, "line", (N,), np.int64, least=0, most=len(problem.lines) - 1)
    choice = numbers(arrays, "chosen", (N,), np.int64, least=0) - np.arange(N) * C
    members = np.zeros((len(problem.lines), C), bool)
    for k, choices in enumerate(problem.lines):
        members[k, choices] = True
    if ((choice < 0) | (choice >= C)).any() or not members[line, choice].all():
        raise InvalidData("array 'chosen' is not a choice within the lines of every pair")
    k, what = unfit(transports, arrays, "", True)
    if what:
        raise InvalidData(f"the {what.split()[0]} of choice {k % C} of pair {k // C} {what.partition(' ')[2]}")
    return pairs, transports
