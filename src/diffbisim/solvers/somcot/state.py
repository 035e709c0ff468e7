"""The state of a SOMCOT run, which can be saved and resumed: supports, iterates and averages.

*Supports.* Samples are drawn in chunks. The transitions that occur in a chunk for the first time are added before its
first iteration (``_engine.somcot_enter_x``), so memory grows with the number of different transitions seen.

*Averages.* They are taken over a window that starts at a power of two and covers the last half to three quarters of all
iterations, whatever the planned number of steps. After 2^j steps it is exactly the last half. The averages of α and V
cost nothing, because log μ is their running sum.

*Chunks* always end at the same iterations: 64, 128, 256, 512, 1024, 2048, 3072, … The unused rest of a chunk is part of
the state. A resumed run is therefore bitwise equal to an uninterrupted one.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffbisim import _engine
from diffbisim.common.arrays import Array
from diffbisim.common.errors import InvalidData
from diffbisim.common.stopping import TimeUp, engine_run
from diffbisim.io.arrays import entry, is_count, numbers, part
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.streams import Draws, Stream, generator_from_state
from diffbisim.solvers.base import Arrays

Index = NDArray[np.int64]

#: Length of a chunk, and of the first one.
CHUNK, FIRST_CHUNK = 1024, 64

#: Maximum number of entries of the coupling (24 bytes each) that the engine lists; beyond it, every entry is visited.
MAX_LISTED = 1 << 23

#: Larger numbers in a file are refused, because sums could overflow.
MAX_STORED = 1e100


# --- what the engine reads and changes (engine/somcot.hpp has the letters) ------------------------------------------


class Seen(NamedTuple):
    """The transitions of one chain seen so far: a growing CSR matrix of counts."""

    at: Index  # (n+1,) state s has the edges at[s] … at[s+1]-1
    to: Index  # (E,)
    source: Index  # (E,)
    counts: Array  # (E,) total weights
    q: Array  # (E,) occupancy of the transitions
    rho: Array  # (n,) occupancy of the states
    initial: Array  # (n,)


class Iterates(NamedTuple):
    """The variables of the iteration."""

    U: Array  # (n_Y E_X,)
    W: Array  # (n_X E_Y,)
    L: Array  # (n_X, n_Y)
    S: Array
    A: Array  # α_X, laid out like U
    B: Array  # α_Y, laid out like W
    V: Array
    logit_x: Array  # (n_X, n_Y): log λ_X, up to a constant in each row
    logit_y: Array  # (n_Y, n_X)
    start: Array  # (n_X, n_Y): coupling of the starts; its logarithm is up to scalings of rows and columns
    log_start: Array
    sums: Array  # (4, n_X, n_Y): Σ η m, Σ η start, Σ η λ_X, Σ η λ_Yᵀ
    cold: Index  # (1,): 0 while marginals are computed by products, then 1


class SomcotOptions(NamedTuple):
    """Options of the solver, for costs scaled to at most one."""

    discount: float
    eta: float
    beta: float
    decay: float  # steps decrease like (1 + k / decay_from)^-decay
    decay_from: float
    anticipation: float  # primal steps use α + anticipation (α⁺ - α): 0 literal, 2 extrapolated
    memory: bool  # use all transitions seen so far, not only the last minibatch
    bound: float  # multipliers are clipped to ± this


class SaddlePoint(NamedTuple):
    """The problem that an iteration takes steps for."""

    x: Seen
    y: Seen
    costs: Array  # (n_X, n_Y), at most one
    rules: SomcotOptions


class Batches(NamedTuple):
    """Minibatches of one chain, one per iteration."""

    at: Index  # (n+1,) position of each minibatch
    edges: Index
    weights: Array


class Progress(NamedTuple):
    """How far a run has come."""

    done: Index  # (1,) iterations
    weight: Array  # (1,) sum of the steps η
    last: Array  # (1,) cost of the last coupling


# --- the state ------------------------------------------------------------------------------------------------------


def chunk_after(k: int) -> int:
    """Return the end of the chunk that contains iteration ``k``."""
    if k < FIRST_CHUNK:
        return FIRST_CHUNK
    return min(1 << k.bit_length(), (k // CHUNK + 1) * CHUNK)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Running sums at the beginning of a window."""

    weight: float  # Σ η
    U: Array
    W: Array
    L: Array
    sums: Array

    @classmethod
    def of(cls, weight: float, it: Iterates) -> "Snapshot":
        """Return a copy of the present running sums."""
        return cls(weight, it.U.copy(), it.W.copy(), it.L.copy(), it.sums.copy())


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages over the window, for the scaled cost."""

    alpha_x: Array  # laid out like U
    alpha_y: Array  # laid out like W
    V: Array
    m: Array  # (n_X, n_Y): Σ_x'y' μ
    start: Array
    lambda_x: Array  # (n_X, n_Y)
    lambda_y: Array  # (n_Y, n_X)


@dataclass(eq=False)
class State:
    """Everything that is needed to continue a run."""

    x: Seen
    y: Seen
    it: Iterates
    done: Index  # (1,) iterations
    weight: Array  # (1,) Σ η
    older: Snapshot
    newer: Snapshot
    pending: tuple[Draws, Draws]  # minibatches of the present chunk
    chunk: int  # first iteration of the present chunk
    generators: list[np.random.Generator]
    fingerprints: list[int]
    drawn: list[int] = field(default_factory=lambda: [0, 0])  # number of transitions drawn so far
    last: Array = field(default_factory=lambda: np.full(1, np.nan))  # (1,) cost of the last coupling

    # --- beginning -----------------------------------------------------------------------------------------

    @classmethod
    def fresh(cls, streams: tuple[Stream, Stream], rng: np.random.Generator, full: bool) -> "State":
        """Return the state before the first iteration, without transitions, or with all of them if ``full``."""
        x, y = (_side(s.frame.initial, full) for s in streams)
        n_x, n_y = x.rho.size, y.rho.size
        shape, flat = (n_x, n_y), (n_y * x.to.size, n_x * y.to.size)
        size = float(x.to.size) * y.to.size or 1.0
        log_size = float(_engine.logarithms(np.array([size]))[0])
        it = Iterates(
            U=np.zeros(flat[0]), W=np.zeros(flat[1]), L=np.zeros(shape), S=np.full(shape, -log_size),
            A=np.zeros(flat[0]), B=np.zeros(flat[1]), V=np.zeros(shape), logit_x=np.zeros(shape),
            logit_y=np.zeros(shape[::-1]), start=np.zeros(shape), log_start=np.zeros(shape),
            sums=np.zeros((4, *shape)), cold=np.zeros(1, np.int64),
        )  # fmt: skip
        begin = Snapshot(0.0, np.zeros(flat[0]), np.zeros(flat[1]), np.zeros(shape), np.zeros((4, *shape)))
        return cls(
            x, y, it, np.zeros(1, np.int64), np.zeros(1), begin, begin, (_nothing(), _nothing()), 0,
            list(rng.spawn(2)), [s.fingerprint for s in streams],
        )  # fmt: skip

    def copy(self) -> "State":
        """Return an independent copy."""
        arrays = {k: v.copy() for k, v in self._arrays().items()}
        return State.restore(arrays, self._meta())

    def restarted(self, streams: tuple[Stream, Stream], carry: bool) -> "State":
        """Return a state for other streams that keeps the multipliers and restarts the averages.

        A stream that is the same keeps its counts, so that a target need not be learned again when the learner changes.
        The counts of a stream that is different are reset. The coupling is reset, because the sums in log μ would take
        as many iterations to undo as they took to build up. With ``carry``, for short runs and streams that differ
        little, the coupling is kept. The occupancies ρ are then kept, too, since resetting them would pull the coupling
        along.
        """
        new = self.copy()
        for i, (side, stream) in enumerate(((new.x, streams[0]), (new.y, streams[1]))):
            if stream.fingerprint == self.fingerprints[i]:
                unused = _batches(side, self.pending[i], *self._unused)
                np.add.at(
                    side.counts, unused.edges, unused.weights
                )  # these have been drawn already and will not be drawn again
            else:
                side.counts[:] = 0.0
                side.rho[:] = side.rho if carry else stream.frame.initial
                new.drawn[i] = 0
            side.initial[:] = stream.frame.initial
        coupling = ("U", "W", "L", "S", "logit_x", "logit_y", "start", "log_start")
        for name in ("sums",) if carry else (*coupling, "sums"):
            getattr(new.it, name)[:] = 0.0
        begin = Snapshot.of(0.0, new.it)
        return replace(
            new, done=np.zeros(1, np.int64), weight=np.zeros(1), older=begin, newer=begin, chunk=0,
            pending=(_nothing(), _nothing()), fingerprints=[s.fingerprint for s in streams],
        )  # fmt: skip

    @property
    def _unused(self) -> tuple[int, int]:
        """The first unused minibatch of the chunk, and the end of the chunk."""
        return self.iterations - self.chunk, self.pending[0][0].size - 1

    # --- running -------------------------------------------------------------------------------------------

    @property
    def iterations(self) -> int:
        """Number of iterations so far."""
        return int(self.done[0])

    def draw(
        self, streams: tuple[Stream, Stream], batch: int, c: Array, rules: SomcotOptions, deadline: float = np.inf
    ) -> bool:
        """Draw the next chunk if this one is used up; return False if a stream has ended.

        Raises :class:`TimeUp` at the deadline; the state is then unchanged.
        """
        k = self.iterations
        if k < self.chunk + self.pending[0][0].size - 1:
            return True
        n = chunk_after(k) - k
        draws: list[Draws] = []
        begun = [generator.bit_generator.state for generator in self.generators]
        for i, stream in enumerate(streams):
            part = stream.draw(n, batch, rules.discount, self.generators[i])
            n = min(n, part[0].size - 1)
            draws.append(part)
        if n <= 0:
            return False
        draws = [(at[: n + 1], s[: at[n]], after[: at[n]], w[: at[n]]) for at, s, after, w in draws]
        try:
            self.enter(draws, c, rules, deadline)
        except BaseException:  # the chunk will be drawn again
            for generator, before in zip(self.generators, begun, strict=True):
                generator.bit_generator.state = before
            raise
        self.pending, self.chunk = (draws[0], draws[1]), k
        self.drawn = [d + part[1].size for d, part in zip(self.drawn, draws, strict=True)]
        return True

    def enter(self, draws: list[Draws], c: Array, rules: SomcotOptions, deadline: float = np.inf) -> None:
        """Add and initialize the transitions that are new; none, if this is interrupted."""
        before = self.x, self.y, self.it, self.older, self.newer
        fresh = self.x.counts.sum() == 0 and self.x.to.size == 0
        try:
            new_x, sources_x = self._grow(0, draws[0])
            if new_x.size and not fresh:
                share = 1.0 / (1.0 + self.x.counts.sum())
                with _run_until(deadline) as run:
                    _engine.somcot_enter_x(SaddlePoint(self.x, self.y, c, rules), self.it, new_x, share, run)
            new_y, _ = self._grow(1, draws[1])
            if new_y.size and not fresh:
                share = 1.0 / (1.0 + self.y.counts.sum())
                with _run_until(deadline) as run:
                    _engine.somcot_enter_y(SaddlePoint(self.x, self.y, c, rules), self.it, new_y, share, run)
            if new_x.size or new_y.size:
                self._date_back(new_x, sources_x, new_y)
        except BaseException:
            self.x, self.y, self.it, self.older, self.newer = before
            raise

    def run(self, until: int, c: Array, rules: SomcotOptions, deadline: float = np.inf) -> None:
        """Iterate to the end of the chunk, or to ``until``.

        Raises :class:`TimeUp` at the deadline; the iterations before it count, as they do after an interrupt.
        """
        begin, first = self.iterations, self.iterations - self.chunk
        last = min(until - self.chunk, self.pending[0][0].size - 1)
        draws_x = _batches(self.x, self.pending[0], first, last)
        draws_y = _batches(self.y, self.pending[1], first, last)
        progress = Progress(self.done, self.weight, self.last)
        try:
            with _run_until(deadline) as run:
                problem = SaddlePoint(self.x, self.y, c, rules)
                _engine.somcot_iterate(problem, self.it, draws_x, draws_y, progress, MAX_LISTED, run)
        finally:
            k = self.iterations
            if k > begin and k >= FIRST_CHUNK and k & (k - 1) == 0:
                self.older = self.newer  # before the copy, so that there are never three snapshots in memory
                self.newer = Snapshot.of(float(self.weight[0]), self.it)

    def mean_cost(self, c: Array) -> float:
        """Return <m̄, c>, averaged over the window."""
        return float(((self.it.sums[0] - self.older.sums[0]) * c).sum()) / (float(self.weight[0]) - self.older.weight)

    def averages(self, discount: float) -> Averages:
        """Return the averages over the window, which starts at the older snapshot."""
        begin, it = self.older, self.it
        if self.iterations == 0:
            return self._first_averages()
        span = float(self.weight[0]) - begin.weight
        α, β, V = begin.U - it.U, begin.W - it.W, begin.L - it.L
        for mean in (α, β, V):  # in place: α and β are large
            mean /= span
        sums = (it.sums - begin.sums) / span
        return Averages(α, β, V / discount, sums[0], sums[1], sums[2], sums[3].T.copy())

    def _first_averages(self) -> Averages:
        """Return what a run begins from, for one that ends before its first iteration."""
        it, (n_x, n_y) = self.it, self.it.V.shape
        starts = self.x.initial[:, None] * self.y.initial
        uniform = np.full((n_x, n_y), 1.0 / n_y), np.full((n_y, n_x), 1.0 / n_x)
        return Averages(it.A, it.B, it.V, starts, starts, *uniform)

    # --- supports ------------------------------------------------------------------------------------------

    def _grow(self, which: int, draws: Draws) -> tuple[Index, Index]:
        """Insert the edges of these draws that are new; return their positions and sources."""
        side = (self.x, self.y)[which]
        n = side.rho.size
        old = side.source * n + side.to
        added = np.setdiff1d(draws[1] * n + draws[2], old)
        if added.size == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        keys = np.sort(np.concatenate([old, added]))
        kept = np.searchsorted(keys, old)
        at = np.searchsorted(keys, np.arange(n + 1) * n).astype(np.int64)
        wide = {name: _spread(getattr(side, name), kept, keys.size) for name in ("counts", "q")}
        new = side._replace(at=at, to=keys % n, source=keys // n, **wide)
        if which == 0:
            self.x = new
            columns = self.y.rho.size
            self._relayout("UA", lambda v: _spread_blocks(v, side.at, new.at, kept, columns))
        else:
            self.y = new
            rows = self.x.rho.size
            self._relayout("WB", lambda v: _spread_columns(v, kept, rows, keys.size))
        return np.searchsorted(keys, added), added // n

    def _relayout(self, names: str, widen: Any) -> None:
        """Apply ``widen`` to these iterates, and to the first of them in the snapshots."""
        name = names[0]
        same = self.older is self.newer
        self.it = self.it._replace(**{n: widen(getattr(self.it, n)) for n in names})
        self.older = replace(self.older, **{name: widen(getattr(self.older, name))})
        self.newer = self.older if same else replace(self.newer, **{name: widen(getattr(self.newer, name))})

    def _date_back(self, new_x: Index, sources: Index, new_y: Index) -> None:
        """Set the new entries of the snapshots as if their α had always had its present value."""
        n_x, n_y = self.it.V.shape
        base, a = self.x.at[sources], self.x.at[sources + 1] - self.x.at[sources]
        at_u = (n_y * base + new_x - base)[:, None] + np.arange(n_y) * a[:, None]
        at_w = np.arange(n_x)[:, None] * self.y.to.size + new_y
        for snapshot in {id(s): s for s in (self.older, self.newer)}.values():
            span = float(self.weight[0]) - snapshot.weight
            snapshot.U[at_u] = self.it.U[at_u] + span * self.it.A[at_u]
            snapshot.W[at_w] = self.it.W[at_w] + span * self.it.B[at_w]

    # --- saving --------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays; the generators are stored as JSON."""
        text = json.dumps(self._meta(), default=np.ndarray.tolist)
        return {**self._arrays(), "run": np.frombuffer(text.encode(), dtype=np.uint8)}

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays of the state by name."""
        parts: dict[str, NDArray[Any]] = {"done": self.done, "weight": self.weight}
        for name, group in (("x", self.x), ("y", self.y), ("it", self.it)):
            parts |= {f"{name}.{key}": value for key, value in group._asdict().items()}
        for name, shot in (("older", self.older), ("newer", self.newer)):
            if name == "older" or self.newer is not self.older:
                parts |= {f"{name}.{f.name}": np.asarray(getattr(shot, f.name)) for f in fields(Snapshot)}
        for i, draws in enumerate(self.pending):
            parts |= {f"pending{i}.{k}": column for k, column in enumerate(draws)}
        return parts

    def _meta(self) -> dict[str, Any]:
        """Return everything that is not an array."""
        return {
            "chunk": self.chunk, "fingerprints": self.fingerprints, "drawn": self.drawn,
            "generators": [g.bit_generator.state for g in self.generators],
        }  # fmt: skip

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> "State":
        """Return the state with these arrays and metadata."""
        shots: list[dict[str, Any]] = [part(arrays, name) for name in ("older.", "newer.")]
        older, *newer = (Snapshot(**{**shot, "weight": float(shot["weight"])}) for shot in shots if shot)
        pending = tuple(tuple(part(arrays, f"pending{i}.")[str(k)] for k in range(4)) for i in (0, 1))
        generators = [generator_from_state(state) for state in meta["generators"]]
        return cls(
            Seen(**part(arrays, "x.")), Seen(**part(arrays, "y.")), Iterates(**part(arrays, "it.")), arrays["done"],
            arrays["weight"], older, newer[0] if newer else older, pending, meta["chunk"], generators,  # type: ignore[arg-type]
            list(meta["fingerprints"]), list(meta["drawn"]),
        )  # fmt: skip


@contextmanager
def _run_until(deadline: float) -> Iterator[Any]:
    """Yield how a call of the engine is run, and raise :class:`TimeUp` at a time of the monotonic clock."""
    try:
        yield engine_run(1, deadline)
    except TimeoutError:
        raise TimeUp from None


def _side(initial: Array, full: bool) -> Seen:
    """Return a chain with no transitions seen, or with all of them if ``full``."""
    n = initial.size
    at = np.arange(n + 1) * (n if full else 0)
    to = np.tile(np.arange(n), n) if full else np.empty(0, np.int64)
    source = np.repeat(np.arange(n), np.diff(at))
    return Seen(at.astype(np.int64), to, source, np.zeros(to.size), np.zeros(to.size), initial.copy(), initial.copy())


def _nothing() -> Draws:
    """Return an empty chunk."""
    none = np.empty(0, np.int64)
    return np.zeros(1, np.int64), none, none, np.empty(0)


def _batches(side: Seen, draws: Draws, first: int, last: int) -> Batches:
    """Return the minibatches of iterations first … last-1, with transitions as indices of edges."""
    at, s, after, w = draws
    take, n = slice(at[first], at[last]), side.rho.size
    keys = side.source * n + side.to
    return Batches(at[first : last + 1] - at[first], np.searchsorted(keys, s[take] * n + after[take]), w[take])


def _spread(v: Array, places: Index, size: int) -> Array:
    """Return an array of this size with ``v`` at ``places`` and zeros elsewhere."""
    out = np.zeros(size)
    out[places] = v
    return out


def _spread_blocks(v: Array, old: Index, new: Index, places: Index, columns: int) -> Array:
    """Insert columns for new edges into consecutive blocks of shape (n_Y, edges of x)."""
    out = np.zeros(columns * new[-1])
    for x in np.flatnonzero(np.diff(new)):
        block = out[columns * new[x] : columns * new[x + 1]].reshape(columns, -1)
        block[:, places[old[x] : old[x + 1]] - new[x]] = v[columns * old[x] : columns * old[x + 1]].reshape(columns, -1)
    return out


def _spread_columns(v: Array, places: Index, rows: int, size: int) -> Array:
    """Insert columns for new edges into a flat array of shape (rows, edges of Y)."""
    out = np.zeros((rows, size))
    out[:, places] = v.reshape(rows, -1)
    return out.ravel()


# --- checks of files ----------------------------------------------------------------------------------------------


def check_state(problem: ChainProblem, arrays: Arrays, meta: Any) -> None:
    """Check the arrays of a saved state, and ``meta``, the JSON stored with them."""
    n_x, n_y = shape = problem.shape
    edges = [_check_side(arrays, side, n) for side, n in (("x", n_x), ("y", n_y))]
    flat = {"U": (n_y * edges[0].size,), "W": (n_x * edges[1].size,)}
    sizes: dict[str, tuple[int, ...]] = {**flat, "A": flat["U"], "B": flat["W"], "logit_y": (n_y, n_x)}
    sizes |= dict.fromkeys(("L", "S", "V", "logit_x", "start", "log_start"), shape)
    for name, size in {**sizes, "sums": (4, *shape)}.items():
        numbers(arrays, f"it.{name}", size, least=0.0 if name in ("start", "sums") else -MAX_STORED, most=MAX_STORED)
    numbers(arrays, "it.cold", (1,), np.int64, least=0, most=1)
    weight = float(numbers(arrays, "weight", (1,), least=0.0, most=MAX_STORED)[0])
    done = int(numbers(arrays, "done", (1,), np.int64, least=0, most=2**62)[0])
    for shot in ("older", "newer"):
        if shot == "newer" and not any(name.startswith("newer.") for name in arrays):
            continue
        weight_then = float(numbers(arrays, f"{shot}.weight", (), least=0.0, most=MAX_STORED))
        if weight_then > weight or (shot == "older" and weight_then == weight and done):
            raise InvalidData(f"array '{shot}.weight' is from after the end")
        for name, size in {**flat, "L": shape, "sums": (4, *shape)}.items():
            numbers(arrays, f"{shot}.{name}", size, least=-MAX_STORED, most=MAX_STORED)
    lengths = [_check_draws(arrays, f"pending{i}", n, edges[i]) for i, n in enumerate(shape)]
    chunk = entry(meta, "chunk", is_count, "an iteration")
    if lengths[0] != lengths[1] or not chunk <= done <= chunk + lengths[0]:
        raise InvalidData(f"the draws of iterations {chunk} to {chunk + lengths[0]} do not go on from iteration {done}")
    for name in ("fingerprints", "drawn"):
        entry(meta, name, lambda two: isinstance(two, list) and len(two) == 2 and all(map(is_count, two)), "two counts")
    entry(meta, "generators", lambda two: isinstance(two, list) and len(two) == 2, "two generators")


def check_averages(state: State, discount: float) -> None:
    """Check that the averages are finite and that the occupancies have mass one."""
    if state.iterations == 0:
        return
    with np.errstate(all="ignore"):
        mean = state.averages(discount)
    if not all(np.abs(getattr(mean, part.name)).max(initial=0.0) <= MAX_STORED for part in fields(Averages)):
        raise InvalidData("the averages overflow")
    for name, mass in (("m", mean.m), ("start", mean.start)):
        if mass.min() < -1e-6 or not abs(float(mass.sum()) - 1.0) <= 1e-3:
            raise InvalidData(f"the average of {name} sums to {mass.sum():g}, with entries from {mass.min():g}")


def _check_side(arrays: Arrays, side: str, n: int) -> NDArray[np.int64]:
    """Check the transitions of one chain and return them as sorted keys ``source * n + to``."""
    at = numbers(arrays, f"{side}.at", (n + 1,), np.int64, least=0)
    size = int(at[-1])
    if at[0] != 0 or (np.diff(at) < 0).any() or size > n * n:
        raise InvalidData(f"array '{side}.at' does not ascend from 0")
    to = numbers(arrays, f"{side}.to", (size,), np.int64, least=0, most=n - 1)
    source = numbers(arrays, f"{side}.source", (size,), np.int64, least=0, most=n - 1)
    keys = np.asarray(source * n + to, dtype=np.int64)
    if not np.array_equal(source, np.repeat(np.arange(n), np.diff(at))) or (np.diff(keys) <= 0).any():
        raise InvalidData(f"the transitions of {side} are not in order")
    for name, length in (("counts", size), ("q", size), ("rho", n), ("initial", n)):
        numbers(arrays, f"{side}.{name}", (length,), least=0.0, most=MAX_STORED)
    return keys


def _check_draws(arrays: Arrays, name: str, n: int, keys: NDArray[np.int64]) -> int:
    """Check that the minibatches of a chunk contain only known transitions; return the number of minibatches."""
    at = arrays.get(f"{name}.0")
    if at is None or at.dtype != np.int64 or at.ndim != 1 or at.size == 0 or at[0] != 0 or (np.diff(at) < 0).any():
        raise InvalidData(f"array '{name}.0' does not ascend from 0")
    size = (int(at[-1]),)
    s, after = (numbers(arrays, f"{name}.{k}", size, np.int64, least=0, most=n - 1) for k in (1, 2))
    numbers(arrays, f"{name}.3", size, least=0.0, most=MAX_STORED)
    if not np.isin(s * n + after, keys).all():
        raise InvalidData(f"array '{name}.1' has transitions that are not among those seen")
    return int(at.size - 1)
