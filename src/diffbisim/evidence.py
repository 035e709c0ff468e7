"""Is the difference between groups of episodes more than chance? A permutation test that knows the metric.

Everything is counted once, by episode: how often it goes from x to x', and where it starts (which is one more row).
With the pooled chain P̄, its table U₀ = distance(P̄, P̄).values and its occupancy ρ, and for two groups A and B with
N_A(x) and N_B(x) visits

    W_x = OT_{U₀}(P_A(x), P_B(x)),   v_x = Σ_ij P̄(x,i) P̄(x,j) U₀(i,j)²,   h_x = N_A N_B / (N_A + N_B)
    χ²_x = h_x Σ_x' (P_A(x'|x) - P_B(x'|x))² / (P̄(x'|x) + ε/h_x),    states x' with U₀ = 0 between them taken as one

√(v_x/h_x) is the size that W_x has by chance; ε keeps successors that were seen once or twice from deciding, as they do
where one group has many more steps than the other. There are three ways to differ, and a statistic for each:

    T₁ = Σ_x ρ_x W_x / Σ_x ρ_x √(v_x/h_x)      the distance, at first order: differences that cost much
    T₂ = max_x z_x                             one row, also that of a rare state, or the starts
    T₃ = Σ_x χ²_x                              many rows a little

where z_x, how far a row is out of the ordinary, is the larger of √(h_x/v_x) W_x and χ²_x, each minus its mean over
the permutations and divided by its deviation: the first sees a shift that the metric finds large, the second any
other. What the metric cannot tell apart counts in none of them.

Whole episodes are dealt anew to the groups, which keeps whatever dependence there is within one. The three p-values
are combined by their harmonic mean, whose own p-value is taken over the same permutations. One distance is solved,
then R small transports are for each permutation. Without the normalization, groups whose episodes differ in length
would differ.

*Several groups.* The statistics of every pair, each standardized by its mean and deviation over the permutations; the
p-value of a pair is how often the largest of them all is as large (*max-T*).

*Strata.* Episodes are dealt within their stratum only, and rows are compared within strata, with the weights h_xs of
these: P_A(x) is Σ_s h_xs P_As(x) / Σ_s h_xs, h_x is Σ_s h_xs, and χ²_x the sum over the strata.

*Few episodes* cannot be dealt in many ways. Then single steps are, those out of a state among themselves: that takes
the data for those of a Markov chain, as a parametric bootstrap from the pooled chain would, but does not take the
pooled chain for the truth, which has too little noise where states have many successors and few visits. The same is
done for transitions without episodes. Against a chain that is known, steps are drawn from it (here the parametric
bootstrap is exact). Steps of a lag overlap, and only every lag-th of them is taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import Floats, Integers, freeze
from diffbisim.contributions import START, Rows
from diffbisim.names import Labels
from diffbisim.problem import Problem, lazy
from diffbisim.solvers import Exact
from diffbisim.solvers.causes import Cells, row_distances, within

#: Fewer episodes in a group, or fewer ways to deal them, are not enough to permute.
FEW, WAYS = 4, 70

#: Entries of the counts of all groups that are handled at once.
BATCH = 2_000_000

#: ε: without it, groups whose episodes have 5 and 40 steps are told apart in half of all cases, at 20 states.
FLOOR = 0.25

#: Visits of a chain that is known.
KNOWN = 1e12


class Counted(NamedTuple):
    """Episodes of several groups on one state space, as counts."""

    cells: Cells  # the transitions that were seen; state n is the start
    counts: sp.csr_array  # (E, K)
    groups: Integers  # (E,) of each episode, from 0
    strata: Integers  # (E,) of each episode, from 0
    n_states: int

    @property
    def totals(self) -> Floats:
        """(G, K) by group."""
        members = sp.csr_array((np.ones(self.groups.size), (self.groups, np.arange(self.groups.size))))
        return np.asarray((members @ self.counts).toarray())


def count_episodes(
    data: Sequence[Transitions], strata: Sequence[Any] | None = None, known: MarkovChain | None = None
) -> Counted:
    """The episodes of several groups, all on the same states; ``strata`` has a number for each episode of each group.

    Starts count if all have some. What a chain that is ``known`` can do is there, too, with a count of zero.
    """
    n = data[0].n_states
    starts = all(group.starts is not None for group in data)
    parts: list[tuple[Any, ...]] = []
    if known is not None:
        first, (source, target) = np.flatnonzero(known.initial) if starts else np.empty(0, np.int64), _moves(known)
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
    return Counted(Cells.of(seen // n, seen % n), counts, groups, where, n)


def count_for_test(
    data: Sequence[Transitions], strata: Sequence[Any] | None = None, known: MarkovChain | None = None
) -> tuple[Counted, bool]:
    """The episodes of several groups, and whether they can be permuted whole; otherwise only steps that do not overlap.

    Single steps are exchanged as if they were independent, which those of a lag are not: each shares all but its ends
    with the next.
    """
    counted = count_episodes(data, strata, known)
    if known is None and all(group.starts is not None for group in data) and enough(counted):
        return counted, True
    if all(group.lag == 1 for group in data):
        return counted, False
    return count_episodes([without_overlap(group) for group in data], strata, known), False


def without_overlap(data: Transitions) -> Transitions:
    """Of each episode every lag-th step."""
    if data.lag == 1 or data.episodes is None:
        return data
    begin = np.searchsorted(data.episodes, data.episodes)
    kept = (np.arange(len(data)) - begin) % data.lag == 0
    columns = ("states", "next_states", "weights", "episodes", "actions", "rewards")
    return replace(data, **{name: part[kept] for name in columns if (part := getattr(data, name)) is not None})


def _moves(chain: MarkovChain) -> tuple[Integers, Integers]:
    return chain.successors.sources, chain.successors.indices


class Merged(NamedTuple):
    """Cells of which the metric knows one target from the other, L of them: others are added up."""

    order: Integers  # (K,) the cells, those to be added side by side
    cut: Integers  # (L,) where each sum begins
    first: Integers  # (R,) the first of each row
    rows: Integers  # (L,)

    @classmethod
    def of(cls, cells: Cells, same: Any) -> Merged:
        """By which states are the same to the metric, (n, n) booleans."""
        alike = same.argmax(axis=1)[cells.targets]
        order = np.lexsort((alike, cells.rows))
        rows, kinds = cells.rows[order], alike[order]
        cut = np.flatnonzero(np.r_[True, (rows[1:] != rows[:-1]) | (kinds[1:] != kinds[:-1])])
        return cls(order, cut, np.searchsorted(rows[cut], np.arange(cells.first.size)), rows[cut])


class Yardstick(NamedTuple):
    """The metric of the pooled chain, and what chance does to its rows."""

    table: Floats  # (n, n) U₀
    kernel: Floats  # (K,) P̄ on the cells, ν̄ on those of the start
    size: Floats  # (R,) what W_x counts in the distance: γ/(1-γ) ρ_x, for the start one
    spread: Floats  # (R,) v_x
    merged: Merged


@dataclass(frozen=True, eq=False)
class Design:
    """What is compared with what: the episodes, a cost (n, n) between their states, and how chance is imitated."""

    counted: Counted
    cost: Floats
    discount: float
    permute: bool  # whole episodes are dealt anew; else single steps
    known: MarkovChain | None = None  # one more group, of which there is no doubt
    labels: Labels | None = None

    @lazy
    def yard(self) -> Yardstick:
        """By the chain of all groups pooled, or by that which is known; a cost that is no pseudometric becomes one."""
        cells, n, γ = self.counted.cells, self.counted.n_states, self.discount
        sources, total = cells.states[cells.rows], self.counted.totals.sum(axis=0)
        pooled, at = _shares(total, cells), sources < n
        if self.known is None:
            begins = np.bincount(cells.targets[~at], pooled[~at], minlength=n)
            visits = np.bincount(sources[at], total[at], minlength=n)
            steps = Transitions(sources[at], cells.targets[at], n, weights=pooled[at])
            chain = steps.chain(initial=visits / visits.sum() if at.all() else begins, unseen="self-loop")
        else:
            chain = self.known
            rows = sp.vstack([sp.csr_array(chain.transition), sp.csr_array(chain.initial[None, :])]).tocsr()
            pooled = np.asarray(rows[sources, cells.targets]).ravel()
        cost = within(self.cost)
        U = np.array(Exact().solve(Problem(chain, chain, cost, γ)).values)
        np.fill_diagonal(U, 0.0)  # it is solved to a gap of 1e-8 of the largest cost
        law = sp.csr_array((pooled, (cells.rows, cells.targets)), shape=(cells.first.size, n))
        spread = np.add.reduceat(pooled * (law @ np.square(U))[cells.rows, cells.targets], cells.first)
        size = np.append(γ / (1 - γ) * chain.occupancy(γ), 1.0)
        return Yardstick(U, pooled, size[cells.states], spread, Merged.of(cells, 1e-7 * cost.max() >= U))

    def draws(self, number: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Counts (S, G, B, K), in batches: the truth, and then so many without a difference."""
        if self.permute:
            return dealt(self.counted, number + 1, rng)
        return drawn(self.counted, self.yard, number + 1, rng, self.known is not None)

    def names(self) -> tuple[Hashable, ...]:
        """Of the rows."""
        n = self.counted.n_states
        labels = range(n) if self.labels is None else self.labels
        return tuple(START if k == n else labels[k] for k in self.counted.cells.states.tolist())


def _shares(counts: Floats, cells: Cells) -> Floats:
    """Counts (…, K) as shares of their rows."""
    visits = np.add.reduceat(counts, cells.first, axis=-1)
    return np.asarray(counts / np.where(visits > 0, visits, 1.0)[..., cells.rows])


# --- draws under the null -----------------------------------------------------------------------------------------


def dealt(counted: Counted, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Counts (S, G, B, K) with episodes dealt anew within strata, ``draws`` in all; the first is the truth."""
    G, S = int(counted.groups.max()) + 1, int(counted.strata.max()) + 1
    members = [np.flatnonzero(counted.strata == s) for s in range(S)]
    parts = [sp.csr_array(counted.counts[at].T) for at in members]  # (K, E_s)
    K, E = counted.counts.shape[::-1]
    size = max(1, BATCH // (max(K * S, E) * G))
    for begin in range(0, draws, size):
        batch = min(size, draws - begin)
        out = np.empty((S, G, batch, K))
        for s, (at, part) in enumerate(zip(members, parts, strict=True)):
            labels = np.tile(counted.groups[at], (batch, 1))
            rng.permuted(labels[begin == 0 :], axis=1, out=labels[begin == 0 :])
            for g in range(G):
                out[s, g] = (part @ np.ascontiguousarray((labels == g).T, dtype=np.float64)).T
        yield out


def drawn(counted: Counted, yard: Yardstick, draws: int, rng: np.random.Generator, known: bool) -> Iterator[Floats]:
    """Counts (1, G, B, K) with single steps dealt anew, those out of a state among themselves; the first is the truth.

    ``known``: there is one more group, the kernel itself, and steps are drawn from it. Weighted steps count as as
    many as have the same variance.
    """
    cells, totals = counted.cells, counted.totals
    squares = counted._replace(counts=counted.counts.power(2)).totals
    visits, squared = (np.add.reduceat(t, cells.first, axis=1) for t in (totals, squares))
    whole = (counted.counts.data == np.round(counted.counts.data)).all()
    steps = visits if whole else np.square(visits) / np.where(squared > 0, squared, 1.0)
    truth = np.rint(_shares(totals, cells) * steps[:, cells.rows]).astype(np.int64)
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
                    out[0, g, :, lo:hi] = rng.multinomial(trials[g, r], yard.kernel[lo:hi], size=out.shape[2])
                else:
                    out[0, g, :, lo:hi] = taken = _hypergeometric(left, int(trials[g, r]), rng)
                    left -= taken
        if begin == 0:
            out[0, : len(truth), 0] = truth
        if known:
            out[0, -1] = KNOWN * yard.kernel
        yield out


def _hypergeometric(left: Integers, taken: int, rng: np.random.Generator) -> Integers:
    """``taken`` balls out of each urn (B, k), without replacement: one color after the other."""
    out, missing, rest = np.empty_like(left), np.full(len(left), taken), left.sum(axis=1)
    for color in range(left.shape[1]):
        rest = rest - left[:, color]
        out[:, color] = rng.hypergeometric(left[:, color], rest, missing)
        missing = missing - out[:, color]
    return out


# --- statistics ---------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """Rows of two groups, in B draws."""

    apart: Floats  # (B, R) W_x
    shift: Floats  # (B, R) √(h_x/v_x) W_x
    squares: Floats  # (B, R) χ²_x
    total: Floats  # (B,) T₁


def compared(cells: Cells, yard: Yardstick, one: Floats, two: Floats) -> Compared:
    """Two groups by their counts (S, B, K), standardized over the strata."""
    N, M = (np.add.reduceat(counts, cells.first, axis=-1) for counts in (one, two))  # (S, B, R)
    h = N * M / np.maximum(N + M, 1e-300)
    weight = h / np.maximum(h.sum(axis=0), 1e-300)
    shares = (np.where(h > 0, weight / np.where(h > 0, V, 1.0), 0.0)[..., cells.rows] for V in (N, M))
    p, q = ((share * counts).sum(axis=0) for share, counts in zip(shares, (one, two), strict=True))
    W = row_distances(yard.table, cells, p - q)
    noise = np.sqrt(yard.spread / np.where(h.sum(axis=0) > 0, h.sum(axis=0), np.inf))
    states = np.flatnonzero(cells.states < len(yard.table))
    weights = yard.size[states]
    total = _ratio(W[:, states] @ weights, noise[:, states] @ weights)
    return Compared(W, _ratio(W, noise), _squares(yard.merged, (one, two), (N, M), h), total)


def _squares(merged: Merged, counts: tuple[Floats, Floats], visits: tuple[Floats, Floats], h: Floats) -> Floats:
    """χ²_x (B, R), added over the strata."""
    one, two = (np.add.reduceat(part[..., merged.order], merged.cut, axis=-1) for part in counts)
    N, M = (np.where(h > 0, V, 1.0)[..., merged.rows] for V in visits)
    pooled = (one + two) / (N + M) + FLOOR / np.where(h > 0, h, 1.0)[..., merged.rows]
    terms = np.square(one / N - two / M) / pooled
    return np.asarray((h * np.add.reduceat(terms, merged.first, axis=-1)).sum(axis=0))


def standardized(statistics: Floats, axis: int = 0) -> Floats:
    """Minus their mean, in units of their deviation, over the draws."""
    finite = np.nan_to_num(statistics, posinf=1e12)
    deviation = finite.std(axis=axis, keepdims=True)
    return np.asarray((finite - finite.mean(axis=axis, keepdims=True)) / np.where(deviation > 0, deviation, 1.0))


def _ratio(value: Floats, noise: Floats) -> Floats:
    """value / noise; infinite where only the noise is nothing."""
    return np.divide(value, noise, out=np.where(value > 0, np.inf, 0.0), where=noise > 0)


def row_evidence(found: Compared) -> Floats:
    """z (B, R), how far each row of each draw is out of the ordinary."""
    return np.maximum(standardized(found.shift), standardized(found.squares))


def tail_shares(T: Floats) -> Floats:
    """For each of B draws the share of draws that are at least as large; equal but for rounding is equal."""
    top = float(np.max(T, where=np.isfinite(T), initial=0.0)) or 1.0
    key = np.round(T / top, 10)
    return np.asarray((T.size - np.searchsorted(np.sort(key), key, side="left")) / T.size)


def harmonic(*statistics: Floats) -> tuple[float, list[float]]:
    """The p-value of the harmonic mean of the p-values of several statistics (B,), by the same draws; and each."""
    each = np.stack([tail_shares(T) for T in statistics])
    return float(tail_shares((1 / each).sum(axis=0))[0]), each[:, 0].tolist()


# --- the tests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the test of two groups found."""

    p_value: float  # of the harmonic mean of the three below
    p_distance: float  # of T₁
    p_largest: float  # of T₂
    p_total: float  # of T₃
    rows: Rows  # W, size, z and p-value of every row
    draws: int
    permuted: bool  # whether episodes were dealt anew; else single steps were


@dataclass(frozen=True, eq=False)
class PairEvidence:
    """What the test of all pairs of several groups found; pairs (0, 1), (0, 2), …, (1, 2), …"""

    pairs: list[tuple[int, int]]
    p_values: Floats  # (pairs,) max-T: corrected for the number of pairs
    p_single: Floats  # (pairs,) of each pair alone
    p_value: float  # that all groups are alike
    z: Floats  # (pairs, R) of every row
    permuted: bool


def enough(counted: Counted) -> bool:
    """Whether the episodes can be dealt in enough ways."""
    G = int(counted.groups.max()) + 1
    ways = 1
    for s in range(int(counted.strata.max()) + 1):
        sizes = np.bincount(counted.groups[counted.strata == s], minlength=G).tolist()
        for g in range(1, G):
            ways *= comb(sum(sizes[: g + 1]), sizes[g])
    return bool(np.bincount(counted.groups, minlength=G).min() >= FEW) and ways >= WAYS


def compare_two(design: Design, draws: int, rng: np.random.Generator) -> Evidence:
    """The test of two groups, and z of every row with its p-value by max-T over the rows."""
    cells, yard = design.counted.cells, design.yard
    parts = [compared(cells, yard, counts[:, 0], counts[:, 1]) for counts in design.draws(draws, rng)]
    found = Compared(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    z = row_evidence(found)
    largest = z.max(axis=1)
    p_value, each = harmonic(found.total, largest - largest.min(), found.squares.sum(axis=1))
    W, own = found.apart[0].copy(), z[0].copy()
    adjusted = (largest[:, None] >= own - 1e-9).mean(axis=0)
    rows = Rows(design.names(), freeze(W), freeze(yard.size * W), freeze(own), freeze(adjusted))
    return Evidence(p_value, each[0], each[1], each[2], rows, draws, design.permute)


def compare_pairs(design: Design, draws: int, rng: np.random.Generator) -> PairEvidence:
    """Standardized max-T over all pairs of several groups."""
    cells, yard = design.counted.cells, design.yard
    G = int(design.counted.groups.max()) + 1
    pairs = [(g, k) for g in range(G) for k in range(g + 1, G)]
    parts = [
        [compared(cells, yard, counts[:, g], counts[:, k]) for g, k in pairs] for counts in design.draws(draws, rng)
    ]
    z, of_pair = [], []
    for of_one in zip(*parts, strict=True):
        found = Compared(*(np.concatenate(column) for column in zip(*of_one, strict=True)))
        rows = row_evidence(found)
        three = standardized(np.stack([found.total, rows.max(axis=1), found.squares.sum(axis=1)]), axis=1)
        z.append(rows[0])
        of_pair.append(three.max(axis=0))
    T = np.stack(of_pair)  # (pairs, B)
    p_values = (T.max(axis=0) >= T[:, :1] - 1e-9).mean(axis=1)
    single = (T[:, :1] - 1e-9 <= T).mean(axis=1)
    return PairEvidence(pairs, p_values, single, float(p_values.min()), np.stack(z), design.permute)


def null_counts(design: Design, draws: int, rng: np.random.Generator) -> list[Floats]:
    """Counts (G, K) of so many datasets without a difference."""
    parts = [np.swapaxes(counts.sum(axis=0), 0, 1) for counts in design.draws(draws, rng)]
    return list(np.concatenate(parts)[1:])
