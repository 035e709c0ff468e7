"""One problem on the workers of a Dask cluster: ``Exact(cluster=client)``.

The rows of X are divided into blocks. A worker keeps the trees of its blocks from sweep to sweep, because they take
most of the memory, and only tables are sent. Policy iteration (solver.py) runs on the client, and every sweep is done
by all workers at once.

    improve     send the table U to all workers; each solves the transports of its blocks and sends their values back
    check       the minimum and maximum of Δ over these values: the same certificate as on one machine
    evaluate    sweeps while worthwhile, then BiCGStab on the client: send v to all workers, get their rows of Π v back

So a sweep sends a table of 8 n_X n_Y bytes to every worker and receives one in total; docs/cluster.md has the numbers.

*If a worker dies*, the work on its blocks is lost. Dask gives its task to another worker, which rebuilds the trees from
the table of the last improvement. They are optimal for this table, as the lost ones were. Where optimal plans are not
unique, they may be different plans, and the answer is then the same up to the certified gap, not to the last bit.
*A worker that joins* gets its share of the blocks at the next improvement. Without any workers, the run waits.

The certificate comes from the last improvement, whose values were computed with the same kernels as on one machine.
Trees that were lost, moved or rebuilt only affect how fast it is reached.
"""

import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffbisim import _engine
from diffbisim.common.arrays import Array, lazy
from diffbisim.common.checks import freeze
from diffbisim.common.errors import DiffbisimError, InvalidArgument
from diffbisim.common.parallel import DEATHS, WATCH, broadcast, dask_client, is_lost
from diffbisim.common.stopping import engine_run
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.stochastic import Successors
from diffbisim.results.base import DistanceResult
from diffbisim.solvers.base import Callback, finish
from diffbisim.solvers.exact.coupling import PRICE, ExactCoupling, StartTransport
from diffbisim.solvers.exact.evaluation import STEPS, SWEEPS, PairChain, Plans
from diffbisim.solvers.exact.pairs import begin, pair_items
from diffbisim.solvers.exact.solver import PolicyIteration, TableCheckpoint
from diffbisim.solvers.exact.transports import NO_NUMBERS, Items, Transports

if TYPE_CHECKING:
    from diffbisim.solvers.exact import Exact

#: Blocks per worker at the start, so that four times as many workers can share them later; and the least number.
BLOCKS, LEAST_BLOCKS = 4, 16

#: Sweeps continue while at most AHEAD more are expected to suffice, and MOST_SWEEPS at most.
AHEAD, MOST_SWEEPS = 12, 60

NO_PLANS = Plans(*(np.empty(0, np.int64) for _ in Plans._fields))


def solve(
    problem: ChainProblem, options: "Exact", warm: DistanceResult | None = None, callback: Callback | None = None
) -> DistanceResult:
    """Policy iteration to the certified gap on the workers of ``options.cluster``."""
    if options.reachable:
        raise InvalidArgument("a cluster solves all pairs: leave reachable out, or cluster")
    file = None if options.checkpoint is None else TableCheckpoint(Path(options.checkpoint), problem)
    with dask_client(options.cluster) as client:
        run = OnCluster(problem, options, warm, client, file)
        try:
            return finish(DistanceResult, run, problem, options, callback)
        finally:
            run.transports.close()


class OnCluster(PolicyIteration):
    """Policy iteration whose transports are on the workers."""

    transports: "Blocks"

    def __init__(
        self,
        problem: ChainProblem,
        options: "Exact",
        warm: DistanceResult | None,
        client: Any,
        file: TableCheckpoint | None,
    ) -> None:
        self.client = client
        super().__init__(problem, options, warm, file=file)

    def begin(self, options: "Exact", known: Any) -> Any:
        return Blocks(self.client, pair_items(self.problem, False), options.threads)

    def chain(self) -> PairChain:
        return BlockChain(self.transports, self.discount)

    def coupling(self) -> ExactCoupling:
        return ClusterCoupling(self.problem, None, self.U, self.start, self.accuracy)


class ClusterCoupling(ExactCoupling):
    """The table and the coupling of the starts; the trees of all pairs are computed here, by one sweep, on request."""

    def __init__(
        self, problem: ChainProblem, transports: Transports | None, U: Array, start: StartTransport, gap: float
    ) -> None:
        self.problem, self.U, self._start, self.gap = problem, U, start, gap
        self.complete, self.sweeps = True, 0
        if transports is not None:
            self.__dict__["transports"] = transports

    @lazy
    def transports(self) -> Transports:
        made = begin(self.problem, False, None, None)
        made.solve(self.U, np.empty(made.size), PRICE)
        return made


# --- on the client ---------------------------------------------------------------------------------------------


class RowBlock(NamedTuple):
    """A block: the pairs of the rows lo … hi-1 of X with all of Y."""

    lo: int
    hi: int


class Blocks:
    """The transports of all pairs, in blocks on workers, with the interface of :class:`Transports`.

    ``W (n_X*n_Y,)`` is the table of the last improvement, for which the trees are optimal up to ``price``.
    """

    def __init__(self, client: Any, items: Items, threads: int | None) -> None:
        self.client, self.items, self.threads, self.name = client, items, threads, uuid.uuid4().hex
        a, b = np.diff(items.x.indptr), np.diff(items.y.indptr)
        self.size, self.nodes = a.size * b.size, int(a.max() + b.max())
        self.clipped, self.pivots, self.sweeps, self.narrow = 0.0, 0, 0, False
        edges = np.concatenate([[0.0], np.cumsum(a + b.mean())])
        n = min(a.size, max(LEAST_BLOCKS, BLOCKS * len(client.nthreads())))
        cuts = np.unique(np.searchsorted(edges, np.linspace(0.0, edges[-1], n + 1))).tolist()
        self.blocks = list(map(RowBlock, cuts[:-1], cuts[1:]))
        self.homes: dict[str, list[RowBlock]] = {}
        self.W, self.price = np.empty(0), PRICE

    @lazy
    def unbalanced(self) -> float:
        """How far the masses of two rows that are matched may be from one, in total."""
        sides = self.items.x, self.items.y
        return sum(float(np.abs(np.add.reduceat(s.probabilities, s.indptr[:-1]) - 1.0).max()) for s in sides)

    def solve(self, W: Array, values: Array, price: float) -> bool:
        """All transports for the table W, as :meth:`Transports.solve`."""
        self.W, self.price = W.copy(), price  # a copy, because the caller changes it later
        self.sweeps += 1
        self._settle()
        self._send()
        found = self._sweep(_improve, values)
        self.pivots += sum(swept.pivots for swept in found)
        self.clipped = max(self.clipped, *(swept.clipped for swept in found))
        return all(swept.solved for swept in found)

    def product(self, v: Array, out: Array) -> None:
        """out = Π v for the present plans."""
        self._sweep(_product, out, v)

    def close(self) -> None:
        """Free the memory of the workers."""
        with suppress(Exception):  # workers may be gone
            self.client.run(_forget, self.name, on_error="ignore")

    def _settle(self) -> None:
        """Assign blocks to workers. A block moves only if its worker is gone or has more than its share."""
        alive = sorted(self.client.nthreads()) or [""]  # any worker that joins
        most = -(-len(self.blocks) // len(alive))
        homes = {home: self.homes.get(home, [])[:most] for home in alive}
        placed = {block for blocks in homes.values() for block in blocks}
        for block in self.blocks:
            if block not in placed:
                homes[min(alive, key=lambda home: len(homes[home]))].append(block)
        self.homes = {home: blocks for home, blocks in homes.items() if blocks}

    def _send(self) -> None:
        facts = Facts(self.name, self.sweeps, self.items, self.threads, self.price)
        self.sent = broadcast(self.client, [facts, self.W])

    def _sweep(self, work: Any, into: Array, *tables: Array) -> "list[BlockResults]":
        """Run ``work`` on the blocks of every worker and write its values ``into`` a table; repeats if data is lost."""
        n_y = self.items.n_y
        for _ in range(DEATHS):
            sent = broadcast(self.client, list(tables)) if tables else []
            futures = [
                self.client.submit(
                    partial(work, blocks), *self.sent, *sent, pure=False,
                    workers=[home] if home else None, allow_other_workers=bool(home),
                )
                for home, blocks in self.homes.items()
            ]  # fmt: skip
            found = self._gathered(futures, [*self.sent, *sent])
            if found is None:
                self._send()
                continue
            for swept, blocks in zip(found, self.homes.values(), strict=True):
                for values, (lo, hi) in zip(swept.values, blocks, strict=True):
                    into[lo * n_y : hi * n_y] = values
            return found
        raise DiffbisimError(f"the cluster lost its tables {DEATHS} times in a row: give its workers more memory")

    def _gathered(self, futures: list[Any], sent: list[Any]) -> "list[BlockResults] | None":
        """The results of all workers; None if a table that they need was lost."""
        wait: Any = import_module("distributed").wait
        while True:
            try:
                wait(futures, timeout=WATCH)
                found: list[BlockResults] = self.client.gather(futures)
                return found
            except CancelledError:
                return None
            except TimeoutError:
                if is_lost(self.client, sent):
                    return None


class BlockChain(PairChain):
    """The chain of pairs that the plans on the workers define; the vectors of a Krylov solve are on the client."""

    def __init__(self, blocks: Blocks, discount: float) -> None:
        super().__init__(NO_PLANS, blocks.size, discount)
        self.blocks, self.count = blocks, 0

    @property
    def products(self) -> int:
        """Products with Π so far."""
        return self.count

    def evaluate(self, source: Array, U: Array, target: float, spare: Array | None = None) -> None:
        """Improve ``U`` as :meth:`PairChain.evaluate` does, without a factorization."""
        if self._relax(source, U, np.empty_like(U) if spare is None else spare, target):
            return
        if bicgstab(self._applied, source, U, target, STEPS) <= 2 * target:
            return
        bound = float(np.abs(source).max()) / (1 - self.discount)
        if not float(np.abs(U).max()) <= 2.0 * bound:  # it diverged: restart from a bound on the solution
            U.fill(bound)
        other = np.empty_like(U)
        for _ in range(SWEEPS // 2):
            self._swept(source, U, other)
            self._swept(source, other, U)

    def _relax(self, source: Array, U: Array, spare: Array, target: float) -> bool:
        """Sweep while that is worthwhile, and add the constant; returns whether the residual fell below ``target``."""
        tables, spread, before = (U, spare), np.inf, np.inf
        for k in range(MOST_SWEEPS):
            v, out = tables[k % 2], tables[1 - k % 2]
            low, high = self._swept(source, v, out)
            spread, before = high - low, spread
            if not 2 * target < spread < before or spread * (spread / before) ** AHEAD > 2 * target:
                break
        np.add(out, self.discount / (1 - self.discount) * (low + high) / 2, out=U)
        return bool(spread <= 2 * target)

    def _applied(self, v: Array) -> Array:
        """(I - γ Π) v"""
        self.blocks.product(v, out := np.empty_like(v))
        self.count += 1
        return np.asarray(v - self.discount * out)

    def _swept(self, source: Array, v: Array, out: Array) -> tuple[float, float]:
        """out = source + γ Π v; returns the least and the largest change."""
        self.blocks.product(v, out)
        out *= self.discount
        out += source
        self.count += 1
        low, high, _ = _engine.extremes(NO_NUMBERS, out, v)
        return low, high


def bicgstab(product: Callable[[Array], Array], b: Array, u: Array, target: float, most: int) -> float:
    """Improve ``u`` until the largest entry of b - A u is below ``target``; returns that entry (engine/krylov.hpp)."""

    def ratio(a: float, b: float) -> float:
        value = a / b if b else 0.0
        return value if np.isfinite(value) else 0.0

    def dot(v: Array, w: Array) -> float:
        return float((v * w).sum())

    r = b - product(u)
    worst, shadow, p = float(np.abs(r).max()), r, r
    rho = dot(shadow, r)
    for _ in range(most):
        if not np.isfinite(worst):
            break
        if worst <= target:
            r = b - product(u)  # the recurrence drifts, so it is computed again
            worst = float(np.abs(r).max())
            if worst <= 2 * target:
                return worst
        q = product(p)
        alpha = ratio(rho, dot(shadow, q))
        u += alpha * p
        r = r - alpha * q
        t = product(r)
        omega, before = ratio(dot(t, r), dot(t, t)), rho
        u += omega * r
        r = r - omega * t
        rho, worst = dot(shadow, r), float(np.abs(r).max())
        beta = ratio(rho, before) * ratio(alpha, omega)
        if beta == 0.0:  # breakdown: restart
            shadow = p = r = b - product(u)
            rho = dot(shadow, r)
        else:
            p = r + beta * (p - omega * q)
    worst = float(np.abs(b - product(u)).max())
    return worst if np.isfinite(worst) else np.inf


# --- on a worker -----------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What a worker needs to know about a run."""

    run: str  # its name
    improvement: int  # the number of the last one
    items: Items  # all pairs
    threads: int | None  # of a worker; None for the number that it was started with
    price: float  # of the last improvement


class BlockResults(NamedTuple):
    """The results of a worker for its blocks."""

    values: list[Array]
    solved: bool = True
    pivots: int = 0
    clipped: float = 0.0


@dataclass
class BlockTrees:
    """The trees of a block, the number of their last improvement, and their plans once requested."""

    transports: Transports
    improvement: int = 0
    plans: _engine.PairChain | None = None


_held: dict[tuple[str, RowBlock], BlockTrees] = {}  # by run and block, for the lifetime of this worker


def _begin(facts: Facts, block: RowBlock) -> BlockTrees:
    """A block without trees."""
    x, y, (lo, hi) = facts.items.x, facts.items.y, block
    first, last = x.indptr[lo], x.indptr[hi]
    rows = x.indptr[lo : hi + 1] - first, x.indices[first:last], x.probabilities[first:last]
    items = facts.items._replace(
        x=Successors(*map(_own, rows)), order_x=np.array(facts.items.order_x[first:last]),
        y=Successors(*map(_own, y)), order_y=np.array(facts.items.order_y), listed=np.array(facts.items.listed),
    )  # fmt: skip
    return BlockTrees(Transports(items, facts.threads or _own_threads()))


def _own(array: Any) -> Any:
    """A read-only copy: kernels are compiled for the read-only arrays of a chain."""
    return freeze(np.array(array))


def _own_threads() -> int:
    from distributed import get_worker

    return int(get_worker().state.nthreads)


def _improve(blocks: list[RowBlock], facts: Facts, W: Array) -> BlockResults:
    """Solve the transports of some blocks for the table W; frees blocks that have moved elsewhere."""
    _forget(facts.run, facts.improvement - 1)
    found = BlockResults([])
    for block in blocks:
        held = _held[facts.run, block] = _held.get((facts.run, block)) or _begin(facts, block)
        before, values = held.transports.pivots, np.empty(held.transports.size)
        solved = held.transports.solve(W, values, facts.price)
        held.improvement, held.plans = facts.improvement, None
        found = BlockResults(
            [*found.values, values], found.solved and solved, found.pivots + held.transports.pivots - before,
            max(found.clipped, held.transports.clipped),
        )  # fmt: skip
    return found


def _product(blocks: list[RowBlock], facts: Facts, W: Array, v: Array) -> BlockResults:
    """Π v at the pairs of some blocks; missing trees are rebuilt for the table W of the last improvement."""
    found = []
    for block in blocks:
        held = _held.get((facts.run, block))
        if held is None or held.improvement != facts.improvement:
            _improve([block], facts, W)
            held = _held[facts.run, block]
        t = held.transports
        held.plans = held.plans or _engine.PairChain(Plans(t.at, *t.plans(), NO_NUMBERS), v.size)
        held.plans.multiply(v, values := np.empty(t.size), engine_run(t.threads))
        found.append(values)
    return BlockResults(found)


def _forget(run: str, before: float = np.inf) -> None:
    """Free the blocks of a run that were last improved before this improvement."""
    for key in [key for key, held in _held.items() if key[0] == run and held.improvement < before]:
        del _held[key]
