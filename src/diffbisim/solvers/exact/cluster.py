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

import sys
import uuid
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
from diffbisim.common.parallel import DEATHS, WATCH, Stop, broadcast, dask_client, is_lost, split
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.stochastic import Successors
from diffbisim.results.base import DistanceResult
from diffbisim.solvers.base import Callback, finish
from diffbisim.solvers.exact.coupling import PRICE, ExactCoupling, StartTransport
from diffbisim.solvers.exact.evaluation import PairChain, Plans, apply_system
from diffbisim.solvers.exact.pairs import begin, pair_chain, pair_items
from diffbisim.solvers.exact.solver import PolicyIteration, TableCheckpoint
from diffbisim.solvers.exact.transports import NO_NUMBERS, Items, Transports
from diffbisim.solvers.krylov import Operator

if TYPE_CHECKING:
    from diffbisim.solvers.exact import Exact

#: Blocks per worker at the start, so that four times as many workers can share them later; and the least number.
BLOCKS, LEAST_BLOCKS = 4, 16

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
        self.blocks = blocks

    def system(self, transposed: bool = False) -> Operator:
        """``v ↦ (I - γ Π) v``."""

        def applied(v: Array, out: Array) -> None:
            self.blocks.product(v, out)
            out *= -self.discount
            out += v
            self.count += 1

        return applied

    @property
    def _entries(self) -> int:
        """Treated as very large, because products are expensive: :meth:`relax` is tried at any size."""
        return sys.maxsize

    def _swept(self, source: Array, v: Array, out: Array) -> tuple[float, float]:
        self.blocks.product(v, out)
        out *= self.discount
        out += source
        self.count += 1
        low, high, _ = _engine.extremes(NO_NUMBERS, out, v)
        return low, high

    def preconditioned(self, source: Array, guess: Array, target: float, transposed: bool) -> bool:
        """Not available, because the matrix is distributed."""
        return False


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
    plans: Plans | None = None


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
        held.plans = held.plans or pair_chain(held.transports, 1.0).plans
        found.append(np.empty(held.transports.size))
        _apply(held.plans, v, found[-1], held.transports.threads)
    return BlockResults(found)


def _apply(plans: Plans, v: Array, out: Array, threads: int) -> None:
    """out (K,) = Π v for K rows, where v covers all pairs; apply_system computes the first K of v minus this."""

    def run(piece: int, lo: int, hi: int, stop: Stop) -> None:
        apply_system(lo, hi, plans, 1.0, v, out)

    split(run, out.size, float(plans.flow.size), threads)
    np.subtract(v[: out.size], out, out)


def _forget(run: str, before: float = np.inf) -> None:
    """Free the blocks of a run that were last improved before this improvement."""
    for key in [key for key, held in _held.items() if key[0] == run and held.improvement < before]:
        del _held[key]
