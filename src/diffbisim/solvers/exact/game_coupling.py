"""Pairs of states of two MDPs, the transports of all their choices, and the result of a run.

The choice c = (a, b) of pair p = (s, t) is the item p C + c: a transport between row a n_X + s of the stacked kernels
of X and row b n_Y + t of those of Y, over the table of state pairs that all share. One MDP with itself is *folded*:
only pairs s < t are solved, the diagonal is zero, and (t, s) is (s, t) with plans transposed and both actions swapped.

Choices that the lazy maximum skipped have outdated plans. Those are solved when they are requested.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim.actions import ActionProblem, MDPResult
from diffbisim.errors import ConvergenceWarning, InvalidArgument, InvalidData, warn
from diffbisim.io.arrays import numbers
from diffbisim.problem import Array, Coupling, Start, frozen, lazy
from diffbisim.solvers.exact import Exact
from diffbisim.solvers.exact.coupling import PRICE, StartTransport, check_start, unfit
from diffbisim.solvers.exact.evaluation import PairChain, Plans
from diffbisim.solvers.exact.pairs import first_pairs, reached, sort_keys
from diffbisim.solvers.exact.simplex import Tree
from diffbisim.solvers.exact.transports import (
    EPS,
    Basis,
    Items,
    PairSuccessors,
    Transports,
    Trees,
    item_potentials,
)

Integers = NDArray[np.int64]


class Pairs(NamedTuple):
    """The pairs of states that are solved."""

    listed: Integers  # (N,) flat state pairs, ascending
    numbers: Integers  # (n_X*n_Y,) the number of every pair; N for a folded diagonal and unreachable pairs
    folded: bool  # whether pairs s < t stand for both orders
    complete: bool  # whether all pairs are reachable, or were asked for

    @property
    def size(self) -> int:
        return int(self.listed.size)

    def table(self, flat: Array) -> Array:
        """The entries of a table (n_X*n_Y,) at the listed pairs."""
        return flat[self.listed]


def make_pairs(problem: ActionProblem, reachable: bool) -> Pairs:
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
    return Pairs(listed, numbers, folded, complete)


def _within_reach(problem: ActionProblem) -> NDArray[np.bool_]:
    seen = np.zeros(problem.shape[0] * problem.shape[1], np.bool_)
    successors = PairSuccessors(problem.x._stacked, problem.y._stacked, problem.shape, problem.choices)
    reached(successors, seen, first_pairs(problem))
    return seen


def make_items(problem: ActionProblem, listed: Integers) -> Items:
    """One item for every choice at every listed pair; the choices of a pair are consecutive."""
    n_x, n_y = problem.shape
    keys = sort_keys(problem.cost.mean(axis=0) / (problem.scale or 1.0))
    a, b = problem.choices.T
    rows = (a * n_x + (listed // n_y)[:, None]) * (n_y * problem.y.n_actions) + b * n_y + (listed % n_y)[:, None]
    return Items.of(problem.x._stacked, problem.y._stacked, n_y, keys)._replace(listed=rows.ravel())


def begin(
    problem: ActionProblem, reachable: bool, threads: int | None, known: "GameCoupling | None"
) -> tuple[Pairs, Transports]:
    """The pairs of a problem and their transports, with copies of ``known`` trees if those fit."""
    pairs = make_pairs(problem, reachable)
    items = make_items(problem, pairs.listed)
    if known is None or not _same_items(items, known.transports.items):
        return pairs, Transports(items, threads)
    old = known.transports
    transports = Transports(items, threads, Trees(*(np.array(part) for part in old.trees)))
    transports.basis = min(old.basis, Basis.OTHER)
    return pairs, transports


def _same_items(new: Items, old: Items) -> bool:
    """Whether two lists have the same transports on the same supports."""
    return np.array_equal(new.listed, old.listed) and all(
        np.array_equal(a.indptr, b.indptr) and np.array_equal(a.indices, b.indices)
        for a, b in ((new.x, old.x), (new.y, old.y))
    )


def plans_of(transports: Transports, pairs: Pairs, chosen: Integers) -> Plans:
    """The present plans as rows over pairs: one per item and an empty one for the diagonal; pairs use the chosen."""
    at, _, _, flow = transports.trees
    return Plans(np.append(at, at[-1]), transports.targets(pairs.numbers), flow, chosen)


def longest_plans(transports: Transports, pairs: Pairs) -> Integers:
    """Row pointers of a matrix with space for the longest plan of every pair, and an empty last row."""
    sizes = np.diff(transports.trees.at).reshape(pairs.size, -1).max(axis=1)
    return np.concatenate([[0], np.cumsum(sizes), [sizes.sum()]]).astype(np.int64)


class GameCoupling(Coupling):
    """Plans, potentials and occupancies for the selected moves. The table ``U`` is flat and scaled.

    ``half`` bounds the distance of the table from the metric, scaled and with rounding; infinite if a transport failed.
    ``line`` and ``chosen (N,)`` are the adversary's line and the item of every listed pair.
    """

    problem: ActionProblem  # type: ignore[assignment]

    def __init__(
        self, problem: ActionProblem, pairs: Pairs, transports: Transports, U: Array, moves: tuple[Integers, Integers],
        start: StartTransport, half: float,
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
    def start(self) -> Start:
        f, g = self._start.potentials(self.U.reshape(self.problem.shape) if self.complete else None)
        return Start(self._start.plan(), self.problem.scale * f, self.problem.scale * g)

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
        at, child, parent, flow = transports.trees
        edges, (rows, cols) = slice(at[k], at[k + 1]), _supports(transports.items, k)
        u, v = child[edges].astype(np.int64), parent[edges].astype(np.int64)
        i, j = np.minimum(u, v), np.maximum(u, v) - rows.size
        cells = (cols[j], rows[i]) if turned else (rows[i], cols[j])
        return sparse.coo_array((flow[edges].copy(), cells), shape=self.problem.shape)

    def potentials(self, x: int, y: int, choice: int | None = None) -> tuple[Array, Array]:
        k, transports, turned = self._transport(x, y, choice)
        f, g = (np.empty(n) for n in self.problem.shape)
        item_potentials(k, transports.items, transports.trees, self.U, f, g)
        if not self.complete:  # off the supports a c-transform would need pairs that were not solved
            for part, support in zip((f, g), _supports(transports.items, k), strict=True):
                part[~np.isin(np.arange(part.size), support)] = np.nan
        f, g = (g, f) if turned else (f, g)
        return self.problem.scale * f, self.problem.scale * g

    # --- occupancy and what follows -------------------------------------------------------------------------------

    def occupancy(self, start: Array | None = None) -> Array:
        """m = (1-γ) m_0 + γ Πᵀ m under the selected moves, from the coupling of the starts or any law of pairs."""
        first = (self._start.plan().toarray() if start is None else start).ravel()
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

    def solve_like(self, problem: ActionProblem) -> MDPResult:
        """Solve another problem with the same solver."""
        result: Any = Exact(threads=self.transports.threads).solve(problem)  # type: ignore[arg-type]
        return result  # type: ignore[no-any-return]

    # --- files ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        trees, start = self.transports.trees, self._start.transport.tree
        return {
            "U": self.U, "pair": self.pairs.listed, "line": self.line, "chosen": self.chosen,
            "half": np.array(self.half), "child": trees.child, "parent": trees.parent, "flow": trees.flow,
            "start.child": start.child, "start.parent": start.parent, "start.flow": start.flow,
        }  # fmt: skip

    @classmethod
    def restore(cls, problem: ActionProblem, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The inverse of :meth:`state`. The list of pairs follows from the problem, and the file must agree with it."""
        pairs, transports = check_game(problem, arrays)
        for part, name in zip(transports.trees[1:], ("child", "parent", "flow"), strict=True):
            part[:] = arrays[name]
        transports.basis = Basis.FEASIBLE
        start = StartTransport(problem)  # type: ignore[arg-type]
        for part, name in zip(start.transport.tree, Tree._fields, strict=True):
            part[:] = arrays[f"start.{name}"]
        start.solve(arrays["U"], 0.0)
        moves = arrays["line"], arrays["chosen"]
        return cls(problem, pairs, transports, arrays["U"], moves, start, float(arrays["half"]))

    def check_bounds(self, result: MDPResult, cells: float) -> None:
        """Solve again from the table, if a sweep has at most ``cells`` cells, and check that intervals intersect."""
        if self.transports.cells > cells:
            return
        again: Any = Exact(tol=1e-9, max_iterations=30, reachable=not self.complete, threads=1).solve(
            self.problem,  # type: ignore[arg-type]
            warm=result,
        )
        apart = (again.values_upper < result.values_lower) | (again.values_lower > result.values_upper)
        if apart.any() or result.lower > again.upper or result.upper < again.lower:
            raise InvalidData(
                f"the distance is from {again.lower:.17g} to {again.upper:.17g}, and the table within its own bounds; "
                "those in the file are others"
            )


def check_game(problem: ActionProblem, arrays: Mapping[str, NDArray[Any]]) -> tuple[Pairs, Transports]:
    """Check trees, flows, table, pairs and moves from a file before any of them is used as an index."""
    n_x, n_y = problem.shape
    numbers(arrays, "U", (n_x * n_y,))
    pair, half = arrays.get("pair"), arrays.get("half")
    if pair is None or pair.dtype != np.int64 or pair.ndim != 1:
        raise InvalidData("array 'pair' must be a list of integers")
    if half is None or half.dtype != np.float64 or half.shape != () or not half >= 0:
        raise InvalidData("array 'half' must be one number of at least 0")
    pairs, transports = begin(problem, False, None, None)
    if not np.array_equal(pair, pairs.listed):
        pairs, transports = begin(problem, True, None, None)
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
    check_start(problem, arrays)
    return pairs, transports


def _supports(items: Items, k: int) -> tuple[Integers, Integers]:
    """The successors of the two rows of an item."""
    x, y = items.x, items.y
    i, j = divmod(int(items.listed[k]), y.indptr.size - 1)
    return x.indices[x.indptr[i] : x.indptr[i + 1]], y.indices[y.indptr[j] : y.indptr[j + 1]]
