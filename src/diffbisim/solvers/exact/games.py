"""MDPs with actions: strategy iteration with the coupling outside. Certified like chains (solver.py).

The table U is the fixed point of a game on pairs of states (actions.py). With δ_c = (1-γ) c_c + γ OT_U(P_a(s), Q_b(t)) for
a pair of actions c = (a, b),

    (T U)(s,t) = max over lines ℓ of min over c in ℓ of δ_c(s,t).

Keep a plan Π_c of every pair and choice c, and let L be T with these plans in place of optimal ones, L ≥ T. Repeat

    improve    optimal plans for U: gives T U, and with it the certificate of solver.py, which holds for T as well
    evaluate   U = the fixed point of L: a finite game over lines and choices, *without transports*

Then U* ≤ U_{k+1} ≤ T U_k ≤ U_k (L U_k = T U_k ≤ U_k), so it is never slower than value iteration, and it ends, because
there are finitely many bases. The game inside is solved by policy iteration for the adversary (Hoffman & Karp 1966): for
given lines the other side's best choices are found, again by policy iteration (matched lines have one choice and need
none), then lines are improved. It need not be exact: a twentieth of the last change is enough.
Improving plans and lines at once (Newton's method) is not done: it cycles, already on 12 states.

*The lazy maximum.* The old plans bound every δ_c from above, and evaluating has computed all these bounds. So per pair
lines are solved in the order of their bounds, until the next bound is below the best line that is solved: that is T U
still, and L U = T U. Most transports are never solved again.

*One MDP with itself.* U is symmetric and zero on the diagonal, so pairs s < t are solved and the others follow. The
diagonal is a pair whose change is zero: it counts in min Δ ≤ 0 ≤ max Δ.

*Rounding.* Comparisons have none. A skipped line is below the best one by computed bounds, i.e. up to η₀ of solver.py,
which that of the best line itself pays for: T U is within the same [−γ p − …, …] of what was computed as for chains.

Memory: about 10 (a + b) + 70 bytes per pair of states and of actions with a, b successors.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim._compile import borrowed, njit
from diffbisim.actions import ActionProblem, MDPResult
from diffbisim.parallel import Stop, split
from diffbisim.problem import Array
from diffbisim.results import DistanceResult, Row, check_warm
from diffbisim.solvers.base import Callback, Check, Limits, iterate
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import PRICE, StartTransport
from diffbisim.solvers.exact.evaluation import PairChain, Plans
from diffbisim.solvers.exact.game_coupling import GameCoupling, begin, plans_of
from diffbisim.solvers.exact.pairs import ALL, extremes, rounding
from diffbisim.solvers.exact.simplex import make_work
from diffbisim.solvers.exact.solver import LOOSE, SMALLEST
from diffbisim.solvers.exact.transports import EPS, LARGE, NOTHING, Basis, Effort, _longest, _solve_items

Integers = NDArray[np.int64]

#: The game inside is solved to this share of the last change; if the gap does not fall, to a smaller one.
SHARE, LEAST = 0.05, 1e-3

#: Rounds of the adversary, and of the other side in each, after which plans are improved anyway.
ROUNDS = 50


class Game(NamedTuple):
    """What is played at every pair, for compiled code: C choices, δ of choice c at pair p at place p C + c."""

    base: Any  # (N*C,) (1-γ) times the cost
    lines: Any  # (L + 1,) where the choices of a line begin
    members: Any  # the choices of the lines, one after the other
    discount: float


class Moves(NamedTuple):
    """Where the game stands."""

    delta: Any  # (N*C,) δ of every choice, or a bound on it
    line: Any  # (N,) the adversary's line
    chosen: Any  # (N + 1,) the plan that a pair uses, p C + c; last the empty plan


# --- kernels ------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, inline="always")
def _borrow_game(game):
    return Game(borrowed(game.base), borrowed(game.lines), borrowed(game.members), game.discount)


@njit(cache=True, nogil=True, inline="always")
def _borrow_moves(moves):
    return Moves(borrowed(moves.delta), borrowed(moves.line), borrowed(moves.chosen))


@njit(cache=True, nogil=True, inline="always")
def _least(game, delta, first, line):
    """The least δ of a line at the pair whose choices begin at ``first``, and its place."""
    at = first + game.members[game.lines[line]]
    for e in range(game.lines[line] + 1, game.lines[line + 1]):
        k = first + game.members[e]
        if delta[k] < delta[at]:
            at = k
    return delta[at], at


@njit(cache=True, nogil=True)
def improve_pairs(lo, hi, items, trees, W, effort, game, moves, TU):
    """T U at the pairs lo…hi-1, with optimal plans of all lines that can be the worst, and the moves that attain it.

    Returns (pivots, transports left unsolved, most mass by which a plan was changed, transports solved).
    """
    a, b = _longest(items.x), _longest(items.y)
    work, scratch = make_work(a + b, effort.stop), np.empty(a * b)
    n_lines, n_choices = game.lines.size - 1, moves.delta.size // TU.size
    solved, closed = np.empty(n_choices, np.bool_), np.empty(n_lines, np.bool_)
    return _improve_pairs(lo, hi, items, trees, W, effort, game, moves, TU, work, scratch, solved, closed)


@njit(cache=True, nogil=True)
def _improve_pairs(lo, hi, items, trees, W, effort, game, moves, TU, work, scratch, solved, closed):
    """The loop; apart, because what is borrowed has to be held by the caller."""
    game, moves, TU = _borrow_game(game), _borrow_moves(moves), borrowed(TU)
    solved, closed = borrowed(solved), borrowed(closed)
    delta, C = moves.delta, solved.size
    pivots, failed, clipped, count = 0, 0, 0.0, 0
    for p in range(lo, hi):
        first = p * C
        lazy = effort.basis == 2  # else there are no plans that would bound anything
        for c in range(C):
            solved[c] = False
            if not lazy:
                delta[first + c] = np.inf
        closed[:] = False
        best, line, at = -np.inf, -1, -1
        while True:
            top, candidate = -np.inf, -1
            for n in range(closed.size):
                if not closed[n]:
                    bound, _ = _least(game, delta, first, n)
                    if bound > top:
                        top, candidate = bound, n
            if candidate < 0 or top <= best:
                break
            for e in range(game.lines[candidate], game.lines[candidate + 1]):
                c = game.members[e]
                if not solved[c]:
                    k = first + c
                    more, left, cut = _solve_items(k, k + 1, items, trees, W, effort, delta, work, scratch)
                    delta[k] = game.base[k] + game.discount * delta[k]
                    solved[c] = True
                    pivots, failed, clipped, count = pivots + more, failed + left, max(clipped, cut), count + 1
            closed[candidate] = True
            value, k = _least(game, delta, first, candidate)
            if value > best:
                best, line, at = value, candidate, k
        TU[p], moves.line[p], moves.chosen[p] = best, line, at
    return pivots, failed, clipped, count


@njit(cache=True, nogil=True, inline="always")
def _delta(k, game, plans, u):
    """δ of one choice with its present plan."""
    total = 0.0
    for e in range(plans.indptr[k], plans.indptr[k + 1]):
        total += plans.flow[e] * u[plans.target[e]]
    return game.base[k] + game.discount * total


@njit(cache=True, nogil=True, inline="always")
def _borrow_plans(plans):
    return Plans(borrowed(plans.indptr), borrowed(plans.target), borrowed(plans.flow), borrowed(plans.chosen))


@njit(cache=True, nogil=True)
def improve_lines(lo, hi, game, plans, u, moves, tie):
    """The best moves of both sides for the table u and the present plans; those that are as good but for ``tie`` stay.

    Returns the smallest and the largest entry of L u - u. Leaves δ of every choice in ``moves``.
    """
    game, moves, plans, u = _borrow_game(game), _borrow_moves(moves), _borrow_plans(plans), borrowed(u)
    delta, C = moves.delta, moves.delta.size // moves.line.size
    low, high = np.inf, -np.inf
    for p in range(lo, hi):
        first = p * C
        for k in range(first, first + C):
            delta[k] = _delta(k, game, plans, u)
        present, at = _least(game, delta, first, moves.line[p])
        if delta[moves.chosen[p]] > present + tie:
            moves.chosen[p] = at
        best, line = present, moves.line[p]
        for n in range(game.lines.size - 1):
            value, k = _least(game, delta, first, n)
            if value > best:
                best, line, at = value, n, k
        if best > present + tie:
            moves.line[p], moves.chosen[p] = line, at
        low, high = min(low, best - u[p]), max(high, best - u[p])
    return low, high


@njit(cache=True, nogil=True)
def improve_choices(lo, hi, game, plans, u, moves, tie):
    """The best choices within the present lines for the table u; returns how much the best of them gains."""
    game, moves, plans, u = _borrow_game(game), _borrow_moves(moves), _borrow_plans(plans), borrowed(u)
    C, most = moves.delta.size // moves.line.size, 0.0
    for p in range(lo, hi):
        n, present, least, at = moves.line[p], np.inf, np.inf, moves.chosen[p]
        for e in range(game.lines[n], game.lines[n + 1]):
            k = p * C + game.members[e]
            value = _delta(k, game, plans, u)
            if k == moves.chosen[p]:
                present = value
            if value < least:
                least, at = value, k
        if present > least + tie:
            moves.chosen[p] = at
            most = max(most, present - least)
    return most


# --- the algorithm ------------------------------------------------------------------------------------------------


def solve(
    problem: ActionProblem, options: Exact, warm: DistanceResult | None = None, callback: Callback | None = None
) -> MDPResult:
    """Strategy iteration to the certified gap, from a previous result if given."""
    run = StrategyIteration(problem, options, warm)
    ended = iterate(run, Limits(options.tol, options.max_iterations, options.time_limit), callback)
    last = ended.history[-1]
    return MDPResult(
        problem, last["value"], last["lower"], last["upper"], ended.status, ended.iterations, options.name,
        run.coupling(), ended.history, run.work,
    )  # type: ignore[arg-type]  # fmt: skip


class StrategyIteration:
    """One solve: the table, the trees of all transports, and the moves of both sides.

    ``U (n_X*n_Y,)`` is the table that transports read, scaled by the largest cost; ``u (N + 1,)`` the same by pairs that
    are solved, and a zero for the diagonal.
    """

    def __init__(self, problem: ActionProblem, options: Exact, warm: DistanceResult | None = None) -> None:
        self.problem, self.discount, self.tol = problem, problem.discount, options.tol
        if warm is not None:
            check_warm(warm, problem.shape)
        known = warm.coupling if warm is not None and isinstance(warm.coupling, GameCoupling) else None
        self.pairs, self.transports = begin(problem, options.reachable, options.threads, known)
        N, C, scale = self.pairs.size, len(problem.choices), problem.scale or 1.0
        self.u, self.TU = np.zeros(N + 1), np.empty(N)
        self.u[:N] = self.pairs.table(first_table(problem, None if warm is None else warm.values))
        self.U = self.u[self.pairs.numbers]
        self.game = make_game(problem, self.pairs.listed, scale)
        self.moves = Moves(np.full(N * C, np.inf), np.zeros(N, np.int64), np.append(np.arange(N) * C, N * C))
        self.start = StartTransport(problem)  # type: ignore[arg-type]
        self.products = self.evaluations = self.solved = 0
        self.price, self.share, self.gap = PRICE, SHARE, np.inf

    @property
    def work(self) -> dict[str, int]:
        """What was done so far; ``transports`` solved of ``pairs * choices`` in a full sweep."""
        t = self.transports
        return {
            "pairs": self.pairs.size, "choices": len(self.problem.choices), "transports": self.solved,
            "pivots": t.pivots, "improvements": t.sweeps, "evaluations": self.evaluations, "sweeps": self.products,
        }  # fmt: skip

    def improve(self, iteration: int) -> None:
        """T U with optimal plans; U becomes the middle of the band that this certifies."""
        γ, u = self.discount, self.u[:-1]
        solved = self._sweep()
        low, high, size = extremes(ALL, self.TU, u)
        if self.pairs.folded:  # the diagonal does not change
            low, high = min(low, 0.0), max(high, 0.0)
        u[:] = self.TU
        u += γ / (1 - γ) * (high + low - self.price) / 2
        self.U = self.u[self.pairs.numbers]
        self.change, before = high - low, self.gap
        self.floor = 2 * rounding(self.transports, size, γ)
        self.gap = γ * (self.change + self.price) / (1 - γ) + self.floor if solved else np.inf
        if not self.gap < before:
            self.share = max(self.share / 5, LEAST)

    def _sweep(self) -> bool:
        """Optimal plans where they can matter; whether each transport was solved."""
        t = self.transports
        basis, t.basis = t.basis, Basis.NONE  # an interrupted sweep leaves trees of mixed age

        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            effort = Effort(int(basis), self.price, NOTHING, stop)
            return improve_pairs(lo, hi, t.items, t.trees, self.U, effort, self.game, self.moves, self.TU)

        done = split(run, self.pairs.size, t.cells, t.threads, wait=t.nodes**2 > 4 * LARGE)
        t.basis = Basis.FEASIBLE
        t.pivots += sum(pivots for pivots, _, _, _ in done)
        t.sweeps += 1
        self.solved += sum(count for _, _, _, count in done)
        before = t.clipped if basis == Basis.FEASIBLE else 0.0
        t.clipped = max(before, *(clipped for _, _, clipped, _ in done))
        return not any(failed for _, failed, _, _ in done)

    def is_due(self, iteration: int) -> bool:
        """The certificate is a by-product of the sweep."""
        return True

    def check(self, iteration: int) -> Check:
        """The distance for the table, and its bounds."""
        bounds = self.start.solve(self.U, self.gap / 2)
        self.accuracy = bounds.gap
        row = Row({"value": bounds.value, "lower": bounds.lower, "upper": bounds.upper, **self.work})
        floor = self.floor + PRICE / (1 - self.discount) + 4 * SMALLEST / (self.problem.scale or 1.0)
        return Check(row, bounds.gap, floor)

    def evaluate(self) -> None:
        """The value of the game with the present plans, as exact as the last change deserves."""
        least = 0.1 * self.tol * (1 - self.discount)
        accuracy = max(self.share * self.change, least, 20 * EPS)
        self.price = max(PRICE, LOOSE * self.change)
        chain = PairChain(
            plans_of(self.transports, self.pairs, self.moves.chosen), self.u.size, self.discount, self.transports.threads
        )
        for _ in range(ROUNDS):
            self._best_choices(chain, accuracy / 5)
            low, high = self._respond(improve_lines, chain, accuracy / 100)
            if high - low <= accuracy:
                break
        self.U = self.u[self.pairs.numbers]
        self.products += chain.products

    def _best_choices(self, chain: PairChain, target: float) -> None:
        """The table of the best choices within the present lines."""
        for _ in range(ROUNDS):
            source = np.append(self.game.base[self.moves.chosen[:-1]], 0.0)
            chain.evaluate(source, self.u, target)
            self.evaluations += 1
            if self.problem.actions == "matched":
                return
            if self._respond(improve_choices, chain, target / 20) <= target:
                return

    def _respond(self, kernel: Any, chain: PairChain, tie: float) -> Any:
        """Better moves for the table u: what the kernel returns, over all pairs."""

        def run(piece: int, lo: int, hi: int, stop: Stop) -> Any:
            return kernel(lo, hi, self.game, chain.plans, self.u, self.moves, tie)

        chain.count += 1
        done = split(run, self.pairs.size, float(self.transports.edges), self.transports.threads)
        if kernel is improve_choices:
            return max(done)
        return min(low for low, _ in done), max(high for _, high in done)

    def coupling(self) -> GameCoupling:
        """What is known at the end."""
        moves = self.moves.line, self.moves.chosen[:-1]
        half = self.gap / 2
        return GameCoupling(self.problem, self.pairs, self.transports, self.U, moves, self.start, half)


def make_game(problem: ActionProblem, listed: Integers, scale: float) -> Game:
    """Costs and lines at the listed pairs."""
    cost = problem.cost.reshape(len(problem.choices), -1)[:, listed].T / scale
    sizes = [len(line) for line in problem.lines]
    lines = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    base = np.ascontiguousarray((1 - problem.discount) * cost).ravel()
    return Game(base, lines, np.concatenate(problem.lines).astype(np.int64), problem.discount)


def first_table(problem: ActionProblem, values: Array | None) -> Array:
    """The scaled table to begin with, flat: the game for the costs of one step, or a previous result, cut off."""
    scale = problem.scale or 1.0
    cost = np.maximum.reduce([problem.cost[line].min(axis=0) for line in problem.lines]).ravel() / scale
    if values is None:
        return np.asarray(cost)
    with np.errstate(over="ignore"):
        table = values.ravel() / scale
    return np.where(np.isnan(table), cost, np.clip(table, float(problem.cost.min()) / scale, 1.0))
