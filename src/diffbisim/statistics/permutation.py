"""A permutation test for differences between groups of episodes that uses the bisimulation metric.

The data are counted once per episode: the number of transitions from x to x', and the initial state (as one more row).
Let P̄ be the pooled chain, U₀ = distance(P̄, P̄).values its metric and ρ its occupancy. For two groups A and B with
N_A(x) and N_B(x) visits,

    W_x = OT_{U₀}(P_A(x), P_B(x)),   v_x = Σ_ij P̄(x,i) P̄(x,j) U₀(i,j)²,   h_x = N_A N_B / (N_A + N_B)
    χ²_x = h_x Σ_x' (P_A(x'|x) - P_B(x'|x))² / (P̄(x'|x) + ε/h_x),    where states x' at U₀-distance zero are merged

√(v_x/h_x) is the scale of W_x under the null. ε prevents successors that were seen only once or twice from dominating,
which would happen if one group has many more steps than the other. Three statistics are sensitive to different kinds of
differences:

    T₁ = Σ_x ρ_x (W_x - E W_x) / √Σ_x ρ_x² Var W_x   the distance to first order: differences with a high cost
    T₂ = max_x z_x                                   a single row, even of a rare state, or the initial distributions
    T₃ = Σ_x (χ²_x - E χ²_x) / √Σ_x Var χ²_x         small differences in many rows

where z_x is the larger of √(h_x/v_x) W_x and χ²_x, each standardized by its mean and standard deviation over the
permutations: the first detects shifts that are large in the metric, the second all others. Differences between states
at distance zero count in none of them. E and Var are the moments if the N_A(x) + N_B(x) steps from x are divided at
random into parts of these sizes, estimated by simulation. They matter if the episodes of one group are longer. Then
N_A(x) and N_B(x) are very different in the data but similar after a permutation, and a row with few visits in one group
has smaller W_x and χ²_x relative to √(v_x/h_x) and to ε than one with equally many in both.

Whole episodes are reassigned to the groups, which preserves any dependence within an episode. The three p-values are
combined by their harmonic mean, whose p-value is computed from the same permutations. The test solves one distance,
and then R small transports per permutation or division.

*Clusters.* Episodes of one cluster, such as the sessions of one person, are not independent. They are counted together,
so that whole clusters are reassigned, and everything above that is said of episodes holds for clusters.

*Several groups.* The statistics of each pair are standardized over the permutations; the p-value of a pair is the
fraction of permutations in which the largest statistic over all pairs is at least as large (*max-T*).

*Strata.* Episodes are permuted within strata, and rows are compared within strata with weights h_xs: P_A(x) is
Σ_s h_xs P_As(x) / Σ_s h_xs, h_x is Σ_s h_xs, and χ²_x the sum over the strata.

*Few episodes* have too few permutations. Then single steps are permuted among those that leave the same state, which
assumes a Markov chain. A parametric bootstrap from the pooled chain would assume the same, but underestimates the noise
of states with many successors and few visits. Transitions without episodes are treated in the same way. If one side is
a known chain, steps are drawn from it, and the parametric bootstrap is exact. Steps with a lag overlap, so
only every lag-th of them is used.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from diffbisim.common.arrays import lazy
from diffbisim.common.checks import Floats, Integers, freeze
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.names import Names
from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.results.contributions import START, Rows
from diffbisim.solvers import Exact
from diffbisim.solvers.causes import RowCells, row_distances, within

#: Episodes are permuted only if every group has this many, and there are this many distinct assignments.
MIN_EPISODES, MIN_ARRANGEMENTS = 4, 70

#: Maximum number of entries of the count arrays of a batch.
BATCH = 2_000_000

#: ε; without it, the test falsely rejects in half of all cases if episodes have 5 and 40 steps (20 states).
FLOOR = 0.25

#: The scale of a row is estimated at this many numbers of visits, by this many random divisions of its steps each.
SIZES, DIVISIONS = 5, 50

#: Number of visits attributed to each row of a known chain.
KNOWN_VISITS = 1e12


class Counted(NamedTuple):
    """Transition counts of E episodes (or clusters of episodes) in G groups, over K observed transitions."""

    cells: RowCells  # the observed transitions; source n stands for the initial distribution
    counts: sp.csr_array  # (E, K)
    groups: Integers  # (E,) group of each episode, from 0
    strata: Integers  # (E,) stratum of each episode, from 0
    n_states: int
    clustered: bool = False  # whether the rows are clusters

    @property
    def totals(self) -> Floats:
        """Counts per group, (G, K)."""
        members = sp.csr_array((np.ones(self.groups.size), (self.groups, np.arange(self.groups.size))))
        return np.asarray((members @ self.counts).toarray())


def count_episodes(
    data: Sequence[Transitions], strata: Sequence[Any] | None = None, known: MarkovChain | None = None
) -> Counted:
    """Count the transitions of the episodes of several groups on the same states.

    ``strata`` has an integer for each episode of each group. Initial states are counted if all groups have episodes.
    The possible transitions of a ``known`` chain are included, with count zero.
    """
    n = data[0].n_states
    starts = all(group.starts is not None for group in data)
    parts: list[tuple[Any, ...]] = []
    if known is not None:
        first = np.flatnonzero(known.initial) if starts else np.empty(0, np.int64)
        source, target = known.successors.sources, known.successors.indices
        rows = np.append(source, np.full(first.size, n))
        parts.append((np.zeros(rows.size, np.int64), rows, np.append(target, first), np.zeros(rows.size)))
    begin = 0
    for group in data:
        episode = np.arange(len(group)) if group.episodes is None else group.episodes
        w = np.ones(len(group)) if group.weights is None else group.weights
        parts.append((begin + episode, group.states, group.next_states, w))
        if starts:
            w = np.ones(group.n_episodes) if group.start_weights is None else group.start_weights
            parts.append((begin + np.arange(group.n_episodes), np.full(group.n_episodes, n), group.starts, w))
        begin += group.n_episodes
    episode, source, target, w = (np.concatenate(column) for column in zip(*parts, strict=True))
    seen, cell = np.unique(source * n + target, return_inverse=True)
    counts = sp.csr_array((w, (episode, cell)), shape=(begin, seen.size))
    counts.sum_duplicates()
    groups = np.repeat(np.arange(len(data)), [group.n_episodes for group in data])
    where = np.zeros(begin, np.int64) if strata is None else np.concatenate([np.asarray(s) for s in strata])
    counted = Counted(RowCells.of(seen // n, seen % n), counts, groups, where, n)
    return counted if all(group.clusters is None for group in data) else by_cluster(counted, data)


def by_cluster(counted: Counted, data: Sequence[Transitions]) -> Counted:
    """Add the counts of the episodes of each cluster; a cluster belongs to one group and one stratum."""
    units, begin = [], 0
    for group in data:
        one = np.arange(group.n_episodes) if group.clusters is None else group.clusters
        units.append(begin + np.unique(one, return_inverse=True)[1])
        begin += group.n_clusters
    unit = np.concatenate(units)
    _, first = np.unique(unit, return_index=True)
    mixed = counted.strata != counted.strata[first][unit]
    if mixed.any():
        raise InvalidArgument(
            f"strata: episode {int(mixed.argmax())} is in another stratum than the first episode of its cluster; give "
            'all episodes of a cluster the same stratum, or pass cluster="episode" if episodes are independent'
        )
    members = sp.csr_array((np.ones(unit.size), (unit, np.arange(unit.size))), shape=(begin, unit.size))
    sums = sp.csr_array(members @ counted.counts)
    return counted._replace(
        counts=sums, groups=counted.groups[first], strata=counted.strata[first], clustered=True
    )  # fmt: skip


def count_for_test(
    data: Sequence[Transitions], strata: Sequence[Any] | None = None, known: MarkovChain | None = None
) -> tuple[Counted, bool]:
    """Count the episodes of several groups; also return whether whole episodes can be permuted.

    If not, single steps are permuted as if they were independent. Steps with a lag overlap, so only those that do not
    are counted.
    """
    counted = count_episodes(data, strata, known)
    if known is None and all(group.starts is not None for group in data) and can_permute(counted):
        return counted, True
    if strata is not None:
        raise InvalidArgument(
            "strata needs groups of episodes (or clusters) that can be permuted within strata in at least "
            f"{MIN_ARRANGEMENTS} ways, at least {MIN_EPISODES} in each group; omit strata"
        )
    if all(group.lag == 1 for group in data):
        return counted, False
    return count_episodes([without_overlap(group) for group in data], strata, known), False


def without_overlap(data: Transitions) -> Transitions:
    """Return every lag-th step of each episode."""
    if data.lag == 1 or data.episodes is None:
        return data
    begin = np.searchsorted(data.episodes, data.episodes)
    kept = (np.arange(len(data)) - begin) % data.lag == 0
    return data._steps(kept)


class MergedCells(NamedTuple):
    """The K cells merged to L, by adding those of a row whose targets are at distance zero."""

    order: Integers  # (K,) permutation that puts cells to be merged next to each other
    cut: Integers  # (L,) position of the first cell of each merged cell
    first: Integers  # (R,) first merged cell of each row
    rows: Integers  # (L,) row of each merged cell

    @classmethod
    def of(cls, cells: RowCells, same: Any) -> MergedCells:
        """Merge cells; ``same`` (n, n) says which states are at distance zero."""
        alike = same.argmax(axis=1)[cells.targets]
        order = np.lexsort((alike, cells.rows))
        rows, kinds = cells.rows[order], alike[order]
        cut = np.flatnonzero(np.r_[True, (rows[1:] != rows[:-1]) | (kinds[1:] != kinds[:-1])])
        return cls(order, cut, np.searchsorted(rows[cut], np.arange(cells.first.size)), rows[cut])


class PooledMetric(NamedTuple):
    """The metric of the pooled chain, and the variability of its rows."""

    table: Floats  # (n, n) U₀
    kernel: Floats  # (K,) P̄ on the cells, and the pooled initial distribution
    size: Floats  # (R,) weight of W_x in the distance: γ/(1-γ) ρ_x, and 1 for the initial distribution
    spread: Floats  # (R,) v_x
    merged: MergedCells


@dataclass(frozen=True, eq=False)
class Design:
    """The setup of a test: the counted episodes, the cost (n, n) between states, and how the null is sampled."""

    counted: Counted
    cost: Floats
    discount: float
    permute: bool  # whether whole episodes are permuted, else single steps
    known: MarkovChain | None = None  # a known chain as one more group
    names: Names | None = None

    @lazy
    def metric(self) -> PooledMetric:
        """The metric of the pooled (or known) chain; a cost that is not a pseudometric is replaced by one."""
        cells, n, γ = self.counted.cells, self.counted.n_states, self.discount
        sources, total = cells.states[cells.rows], self.counted.totals.sum(axis=0)
        pooled, at = _shares(total, cells), sources < n
        if self.known is None:
            begins = np.bincount(cells.targets[~at], pooled[~at], minlength=n)
            visits = np.bincount(sources[at], total[at], minlength=n)
            steps = Transitions(sources[at], cells.targets[at], n, weights=pooled[at])
            chain = steps._chain(initial=visits / visits.sum() if at.all() else begins, unseen="self-loop")
        else:
            chain = self.known
            rows = sp.vstack([sp.csr_array(chain.transition), sp.csr_array(chain.initial[None, :])]).tocsr()
            pooled = np.asarray(rows[sources, cells.targets]).ravel()
        cost = within(self.cost)
        U = np.array(Exact().solve(Discounted(chain, chain, cost, γ)).values)
        np.fill_diagonal(U, 0.0)  # U is accurate to 1e-8 of the largest cost only
        law = sp.csr_array((pooled, (cells.rows, cells.targets)), shape=(cells.first.size, n))
        spread = np.add.reduceat(pooled * (law @ np.square(U))[cells.rows, cells.targets], cells.first)
        size = np.append(γ / (1 - γ) * chain.occupancy(γ), 1.0)
        return PooledMetric(U, pooled, size[cells.states], spread, MergedCells.of(cells, 1e-7 * cost.max() >= U))

    def draws(self, number: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield batches of counts (S, G, B, K): the data, followed by ``number`` draws under the null."""
        if self.permute:
            return permuted_counts(self.counted, number + 1, rng)
        return sampled_counts(self.counted, self.metric, number + 1, rng, self.known is not None)

    @property
    def clusters(self) -> int | None:
        """Number of clusters that are permuted; None if episodes or single steps are."""
        return self.counted.groups.size if self.permute and self.counted.clustered else None

    def row_names(self) -> tuple[Hashable, ...]:
        """Return the names of the rows."""
        n = self.counted.n_states
        names = range(n) if self.names is None else self.names
        return tuple(START if k == n else names[k] for k in self.counted.cells.states.tolist())


def _shares(counts: Floats, cells: RowCells) -> Floats:
    """Normalize counts (…, K) by row."""
    visits = np.add.reduceat(counts, cells.first, axis=-1)
    return np.asarray(counts / np.where(visits > 0, visits, 1.0)[..., cells.rows])


# --- draws under the null -----------------------------------------------------------------------------------------


def permuted_counts(counted: Counted, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield counts (S, G, B, K) with episodes permuted within strata, ``draws`` in total; the first are the data."""
    G, S = int(counted.groups.max()) + 1, int(counted.strata.max()) + 1
    members = [np.flatnonzero(counted.strata == s) for s in range(S)]
    parts = [sp.csr_array(counted.counts[at].T) for at in members]  # (K, E_s)
    K, E = counted.counts.shape[::-1]
    size = max(1, BATCH // (max(K * S, E) * G))
    for begin in range(0, draws, size):
        batch = min(size, draws - begin)
        out = np.empty((S, G, batch, K))
        for s, (at, part) in enumerate(zip(members, parts, strict=True)):
            drawn = np.tile(counted.groups[at], (batch, 1))
            rng.permuted(drawn[begin == 0 :], axis=1, out=drawn[begin == 0 :])
            for g in range(G):
                out[s, g] = (part @ np.ascontiguousarray((drawn == g).T, dtype=np.float64)).T
        yield out


def sampled_counts(
    counted: Counted, metric: PooledMetric, draws: int, rng: np.random.Generator, known: bool
) -> Iterator[Floats]:
    """Yield counts (1, G, B, K) with single steps permuted among those of the same state; the first are the data.

    With ``known`` the kernel is one more group, and steps are drawn from it.
    """
    cells, truth = counted.cells, whole_steps(counted)
    kernel = np.minimum(metric.kernel, 1.0)  # probabilities may exceed one by rounding
    trials = np.add.reduceat(truth, cells.first, axis=1)
    K, G = truth.shape[1], len(truth) + known
    bounds = np.append(cells.first, K)
    size = max(1, BATCH // (K * G))
    for begin in range(0, draws, size):
        out = np.empty((1, G, min(size, draws - begin), K))
        for r, (lo, hi) in enumerate(pairwise(bounds.tolist())):
            left = np.tile(truth[:, lo:hi].sum(axis=0), (out.shape[2], 1))
            for g in range(len(truth)):
                if known:
                    out[0, g, :, lo:hi] = rng.multinomial(trials[g, r], kernel[lo:hi], size=out.shape[2])
                else:
                    out[0, g, :, lo:hi] = taken = _hypergeometric(left, int(trials[g, r]), rng)
                    left -= taken
        if begin == 0:
            out[0, : len(truth), 0] = truth
        if known:
            out[0, -1] = KNOWN_VISITS * metric.kernel
        yield out


def whole_steps(counted: Counted) -> Integers:
    """Return the counts per group, (G, K); weighted steps are replaced by the number with the same variance."""
    cells, totals = counted.cells, counted.totals
    squares = counted._replace(counts=counted.counts.power(2)).totals
    visits, squared = (np.add.reduceat(t, cells.first, axis=1) for t in (totals, squares))
    whole = (counted.counts.data == np.round(counted.counts.data)).all()
    steps = visits if whole else np.square(visits) / np.where(squared > 0, squared, 1.0)
    return np.asarray(np.rint(_shares(totals, cells) * steps[:, cells.rows]).astype(np.int64))


def _hypergeometric(left: Integers, taken: int, rng: np.random.Generator) -> Integers:
    """Draw ``taken`` balls without replacement from each of B urns with k colors, given as counts (B, k)."""
    out, missing, rest = np.empty_like(left), np.full(len(left), taken), left.sum(axis=1)
    for color in range(left.shape[1]):
        rest = rest - left[:, color]
        out[:, color] = rng.hypergeometric(left[:, color], rest, missing)
        missing = missing - out[:, color]
    return out


# --- statistics ---------------------------------------------------------------------------------------------------


class RowStatistics(NamedTuple):
    """Statistics of the rows of two groups, for B draws."""

    apart: Floats  # (B, R) W_x
    shift: Floats  # (B, R) √(h_x/v_x) W_x
    squares: Floats  # (B, R) χ²_x
    h: Floats  # (B, R)


def row_statistics(cells: RowCells, metric: PooledMetric, one: Floats, two: Floats) -> RowStatistics:
    """Compare two groups given by their counts (S, B, K), combining the strata."""
    N, M = (np.add.reduceat(counts, cells.first, axis=-1) for counts in (one, two))  # (S, B, R)
    h = N * M / np.maximum(N + M, 1e-300)
    weight = h / np.maximum(h.sum(axis=0), 1e-300)
    shares = (np.where(h > 0, weight / np.where(h > 0, V, 1.0), 0.0)[..., cells.rows] for V in (N, M))
    p, q = ((share * counts).sum(axis=0) for share, counts in zip(shares, (one, two), strict=True))
    W = row_distances(metric.table, cells, p - q)
    total = h.sum(axis=0)
    noise = np.sqrt(metric.spread / np.where(total > 0, total, np.inf))
    return RowStatistics(W, _ratio(W, noise), _squares(metric.merged, (one, two), (N, M), h), total)


def _squares(merged: MergedCells, counts: tuple[Floats, Floats], visits: tuple[Floats, Floats], h: Floats) -> Floats:
    """Return χ²_x (B, R), summed over the strata."""
    one, two = (np.add.reduceat(part[..., merged.order], merged.cut, axis=-1) for part in counts)
    N, M = (np.where(h > 0, V, 1.0)[..., merged.rows] for V in visits)
    pooled = (one + two) / (N + M) + FLOOR / np.where(h > 0, h, 1.0)[..., merged.rows]
    terms = np.square(one / N - two / M) / pooled
    return np.asarray((h * np.add.reduceat(terms, merged.first, axis=-1)).sum(axis=0))


class RowScale(NamedTuple):
    """Mean and standard deviation of √(h/v) W and of χ² of each row if its steps are divided at random.

    They depend on how many steps each group gets, and are interpolated between a few values of log h.
    """

    at: Floats  # (SIZES, R) log h, ascending
    moments: Floats  # (4, SIZES, R) mean and deviation of √(h/v) W, then of χ²

    @classmethod
    def of(cls, design: Design, h: Floats, rng: np.random.Generator) -> RowScale:
        """Estimate the scale over the range of h (B, R)."""
        cells, together = design.counted.cells, np.zeros_like(design.counted.groups)
        (steps,) = whole_steps(design.counted._replace(groups=together))
        number = np.add.reduceat(steps, cells.first)
        weight = np.add.reduceat(design.counted.totals.sum(axis=0), cells.first) / np.maximum(number, 1)
        at, moments = [], []
        for taken in _sizes(number, h / np.where(weight > 0, weight, 1.0)):
            one = np.empty((DIVISIONS, steps.size))
            for (lo, hi), size in zip(pairwise([*cells.first.tolist(), steps.size]), taken.tolist(), strict=True):
                one[:, lo:hi] = rng.multivariate_hypergeometric(steps[lo:hi], size, DIVISIONS, method="marginals")
            parts = ((weight[cells.rows] * part)[None] for part in (one, steps - one))
            found = row_statistics(cells, design.metric, *parts)
            at.append(np.log(np.maximum(found.h[0], 1e-300)))
            moments.append([f(part, axis=0) for part in (found.shift, found.squares) for f in (np.mean, np.std)])
        return cls(np.array(at), np.moveaxis(np.array(moments), 1, 0))

    def interpolated(self, h: Floats) -> Floats:
        """Return the moments (4, B, R) at h (B, R); zero where a group has no visits."""
        out, where = np.zeros((4, *h.shape)), np.log(np.maximum(h, 1e-300))
        for r, at in enumerate(self.at.T):
            for moment, values in zip(out, self.moments[:, :, r], strict=True):
                moment[:, r] = np.interp(where[:, r], at, values)
        return np.where(h > 0, out, 0.0)


def _sizes(number: Integers, h: Floats) -> Integers:
    """Return, for each row of ``number`` (R,) steps, parts (SIZES, R) that span the range of the positive h (B, R)."""
    low, high = np.min(h, axis=0, where=h > 0, initial=np.inf), h.max(axis=0)
    share = np.stack([np.minimum(low, high), high]) / np.maximum(number, 1)
    ends = number * (1 - np.sqrt(1 - 4 * np.minimum(share, 0.25))) / 2  # h = N (number - N) / number
    first, last = np.clip(ends, 1, np.maximum(number // 2, 1))
    between = np.linspace(0.0, 1.0, SIZES)[:, None]
    return np.asarray(np.minimum(np.rint(first * (last / first) ** between), number // 2).astype(np.int64))


def summed(
    found: RowStatistics, metric: PooledMetric, cells: RowCells, scale: RowScale | None
) -> tuple[Floats, Floats]:
    """Return T₁ and T₃ (B,); no scale is needed if the visits are the same in all draws."""
    weights = np.where(cells.states < len(metric.table), metric.size, 0.0)
    if scale is None:
        return found.apart @ weights, found.squares.sum(axis=1)
    mean, deviation, mean_square, deviation_square = scale.interpolated(found.h)
    noise = weights * np.sqrt(metric.spread / np.where(found.h > 0, found.h, np.inf))
    return (
        _deviation(weights * found.apart, noise * mean, noise * deviation),
        _deviation(found.squares, mean_square, deviation_square),
    )


def _deviation(terms: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Return the deviation of a sum of independent terms (B, R) from its mean, in standard deviations."""
    noise, size = np.sqrt(np.square(deviation).sum(axis=1)), np.abs(mean).sum(axis=1)
    value = (terms - mean).sum(axis=1)
    return np.asarray(np.divide(value, noise, out=np.zeros_like(value), where=noise > 1e-9 * size))


def standardized(statistics: Floats, axis: int = 0) -> Floats:
    """Subtract the mean and divide by the standard deviation over the draws."""
    finite = np.nan_to_num(statistics, posinf=1e12)
    deviation = finite.std(axis=axis, keepdims=True)
    return np.asarray((finite - finite.mean(axis=axis, keepdims=True)) / np.where(deviation > 0, deviation, 1.0))


def _ratio(value: Floats, noise: Floats) -> Floats:
    """Return value / noise, with 0/0 = 0; infinite where only the noise is zero."""
    return np.divide(value, noise, out=np.where(value > 0, np.inf, 0.0), where=noise > 0)


def row_evidence(found: RowStatistics) -> Floats:
    """Return z (B, R), the standardized deviation of each row in each draw."""
    return np.maximum(standardized(found.shift), standardized(found.squares))


def tail_probabilities(T: Floats) -> Floats:
    """Return, for each of B draws, the fraction of draws at least as large; values within rounding count as equal."""
    top = float(np.max(T, where=np.isfinite(T), initial=0.0)) or 1.0
    key = np.round(T / top, 10)
    return np.asarray((T.size - np.searchsorted(np.sort(key), key, side="left")) / T.size)


def harmonic(*statistics: Floats) -> tuple[float, list[float]]:
    """Return the p-value of the harmonic mean of the p-values of several statistics (B,), and the p-value of each."""
    each = np.stack([tail_probabilities(T) for T in statistics])
    return float(tail_probabilities((1 / each).sum(axis=0))[0]), each[:, 0].tolist()


# --- the tests ----------------------------------------------------------------------------------------------------


class Chance(NamedTuple):
    """The transports W_x of the rows if the groups differ by chance only."""

    mean: Floats  # (R,) E W_x if the groups visit the rows as often as in the data
    square: Floats  # (R,) E W_x² for the same visits
    drawn: Floats  # (R,) mean of W_x over the draws, in which the visits are those of the draws

    @classmethod
    def of(cls, found: RowStatistics, metric: PooledMetric) -> Chance:
        """Estimate them from the statistics of the data, followed by those of draws under the null."""
        noise = np.sqrt(metric.spread / np.where(found.h[0] > 0, found.h[0], np.inf))
        shift = np.nan_to_num(found.shift[1:], posinf=0.0)
        return cls(noise * shift.mean(axis=0), np.square(noise) * np.square(shift).mean(axis=0),
                   found.apart[1:].mean(axis=0))  # fmt: skip


@dataclass(frozen=True, eq=False)
class Evidence:
    """The result of the test of two groups."""

    p_value: float  # p-value of the harmonic mean of the three below
    p_distance: float  # p-value of T₁, the distance to first order
    p_largest: float  # p-value of T₂, the most extreme row
    p_total: float  # p-value of T₃, the sum of χ² over all rows
    rows: Rows  # W, size, z and p-value of every row
    draws: int  # number of permutations or draws
    permuted: bool  # whether whole episodes were permuted, else single steps
    clusters: int | None  # number of clusters of episodes that were permuted; None if episodes were
    chance: Chance  # the rows under the null
    weights: Floats  # (R,) weight of W_x in the distance, to first order

    @property
    def most(self) -> Hashable:
        """Name of the row with the largest z."""
        assert self.rows.z is not None
        return self.rows.names[int(np.argmax(self.rows.z))]

    def excess(self, starts: bool) -> float:
        """Return by how much noise adds to the distance, relative to what it adds under the null.

        Within a row, noise and difference add approximately in squares, and rows add up. ``starts`` says whether the
        initial distributions are part of the distance.
        """
        W, (mean, square, drawn) = self.rows.apart, self.chance
        inside = np.array([starts or name != START for name in self.rows.names])
        weights = np.where(inside, self.weights, 0.0)
        usual = float(weights @ drawn)
        if not usual > 0:
            return 1.0
        gap = np.square(W) - square
        added = W - np.sign(gap) * np.sqrt(np.abs(gap))
        return float(min(max(0.0, weights @ added), weights @ mean)) / usual


@dataclass(frozen=True, eq=False)
class PairEvidence:
    """The result of the test of all pairs of several groups; pairs are (0, 1), (0, 2), …, (1, 2), …"""

    pairs: list[tuple[int, int]]
    p_values: Floats  # (pairs,) corrected for the number of pairs by max-T
    p_single: Floats  # (pairs,) uncorrected
    p_value: float  # for the hypothesis that all groups are equal
    z: Floats  # (pairs, R)
    permuted: bool
    clusters: int | None = None  # number of clusters of episodes that were permuted; None if episodes were


def can_permute(counted: Counted) -> bool:
    """Return whether there are enough episodes, and enough distinct assignments of them, to permute."""
    G = int(counted.groups.max()) + 1
    ways = 1
    for s in range(int(counted.strata.max()) + 1):
        sizes = np.bincount(counted.groups[counted.strata == s], minlength=G).tolist()
        for g in range(1, G):
            ways *= comb(sum(sizes[: g + 1]), sizes[g])
    return bool(np.bincount(counted.groups, minlength=G).min() >= MIN_EPISODES) and ways >= MIN_ARRANGEMENTS


def compare_two(design: Design, draws: int, rng: np.random.Generator) -> Evidence:
    """Test two groups; the p-values of single rows are corrected by max-T."""
    cells, metric = design.counted.cells, design.metric
    parts = [row_statistics(cells, metric, counts[:, 0], counts[:, 1]) for counts in design.draws(draws, rng)]
    found = RowStatistics(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    scale = RowScale.of(design, found.h, rng) if design.permute else None
    z, (distance, squares) = row_evidence(found), summed(found, metric, cells, scale)
    largest = z.max(axis=1)
    p_value, each = harmonic(distance, largest - largest.min(), squares)
    W, own = found.apart[0].copy(), z[0].copy()
    adjusted = (largest[:, None] >= own - 1e-9).mean(axis=0)
    rows = Rows(design.row_names(), freeze(W), freeze(metric.size * W), freeze(own), freeze(adjusted))
    chance, weights = Chance.of(found, metric), freeze(metric.size)
    return Evidence(p_value, each[0], each[1], each[2], rows, draws, design.permute, design.clusters, chance, weights)


def compare_pairs(design: Design, draws: int, rng: np.random.Generator) -> PairEvidence:
    """Test all pairs of several groups, with p-values corrected by max-T."""
    cells, metric = design.counted.cells, design.metric
    G = int(design.counted.groups.max()) + 1
    pairs = [(g, k) for g in range(G) for k in range(g + 1, G)]
    parts = [
        [row_statistics(cells, metric, counts[:, g], counts[:, k]) for g, k in pairs]
        for counts in design.draws(draws, rng)
    ]
    of_pairs = [
        RowStatistics(*(np.concatenate(column) for column in zip(*of_one, strict=True)))
        for of_one in zip(*parts, strict=True)
    ]
    scale = RowScale.of(design, np.concatenate([found.h for found in of_pairs]), rng) if design.permute else None
    z, of_pair = [], []
    for found in of_pairs:
        rows, (distance, squares) = row_evidence(found), summed(found, metric, cells, scale)
        three = standardized(np.stack([distance, rows.max(axis=1), squares]), axis=1)
        z.append(rows[0])
        of_pair.append(three.max(axis=0))
    T = np.stack(of_pair)  # (pairs, B)
    p_values = (T.max(axis=0) >= T[:, :1] - 1e-9).mean(axis=1)
    single = (T[:, :1] - 1e-9 <= T).mean(axis=1)
    return PairEvidence(pairs, p_values, single, float(p_values.min()), np.stack(z), design.permute, design.clusters)


def null_counts(design: Design, draws: int, rng: np.random.Generator) -> list[Floats]:
    """Return counts (G, K) of ``draws`` datasets drawn under the null."""
    parts = [np.swapaxes(counts.sum(axis=0), 0, 1) for counts in design.draws(draws, rng)]
    return list(np.concatenate(parts)[1:])
