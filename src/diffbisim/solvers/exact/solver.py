"""Policy iteration on pairs of states, to a certified gap: the default solver.

The table U is the fixed point of the bicausal Bellman operator (the paper's Eq. 1, normalized)

    (T U)(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),          d = OT_U(ν_X, ν_Y)

and a *policy* assigns to every pair a coupling of its successors. Howard's policy iteration repeats three steps:

    improve    solve every transport for the current table, each from its last basis (engine/simplex.hpp): T U
    check      bound the fixed point by Δ = T U - U:  T U + γ/(1-γ) min Δ ≤ U* ≤ T U + γ/(1-γ) max Δ
    evaluate   compute the table of the new policy, (I - γ Π) U = (1-γ) c, as exactly as Δ makes sense (evaluation.py)

It takes a handful of iterations, most of them with almost no pivots. The certificate depends only on the last
*improve*, so it is also valid for runs that were stopped early. It includes rounding errors.

*Rounding* is derived beside the functions that compute the bounds (engine/certificates.hpp).

A sweep takes time proportional to Σ_xy (successors of x) × (successors of y). Memory is about 10 (a + b) + 90 bytes per
pair with a, b successors. With very many pairs and few successors it is about 10 (a + b) + 20 bytes, or 6 (a + b) + 25
from 2·10⁷ pairs on.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffbisim import _engine
from diffbisim.errors import InvalidArgument, InvalidData
from diffbisim.io.files import replacing
from diffbisim.problem import Array, Problem, lazy
from diffbisim.results import DistanceResult, check_warm
from diffbisim.solvers.base import Callback, Check, Run, finish
from diffbisim.solvers.certify import Band
from diffbisim.solvers.exact.coupling import PRICE, ExactCoupling, StartTransport
from diffbisim.solvers.exact.evaluation import PairChain, TreeCorrection
from diffbisim.solvers.exact.pairs import begin, first_table, pair_chain, sweep_band
from diffbisim.solvers.exact.transports import EPS, NO_SINGLE_PLANS
from diffbisim.stopping import engine_run

if TYPE_CHECKING:
    from diffbisim.solvers.exact import Exact

#: The smallest positive number. Bounds for costs of this order have few digits.
SMALLEST = 5e-324

#: While the table changes by Δ, pivots that gain less than LOOSE Δ are skipped, and the policy is evaluated to ROUGH Δ.
LOOSE, ROUGH = 0.001, 0.01

#: In the first sweep, pivots that gain less than this fraction of the largest entry of the table, 1-γ, are skipped.
FIRST = 1e-4


def solve(
    problem: Problem, options: "Exact", warm: DistanceResult | None = None, callback: Callback | None = None,
    values: Array | None = None,
) -> DistanceResult:  # fmt: skip
    """Run policy iteration to the certified gap, from a previous result or a table of ``values (n_X, n_Y)``."""
    file = None if options.checkpoint is None else Checkpoint(Path(options.checkpoint), problem)
    run = PolicyIteration(problem, options, warm, values, file)
    return finish(DistanceResult, run, problem, options, callback)


class Checkpoint:
    """The file from which a killed run resumes: the table after every iteration. Runs of other problems refuse it.

    It does not contain the trees, which are larger and are rebuilt by the first improvement. The resumed answer is
    therefore the same to the certified gap, not bit for bit. The file is replaced atomically, so that a kill leaves the
    previous one.
    """

    def __init__(self, path: Path, problem: Problem) -> None:
        self.path, self.shape, self.scale = path, problem.shape, problem.scale or 1.0
        digest = hashlib.sha256(repr((problem.discount, problem.shape)).encode())
        for part in (problem.cost, *problem.x.successors, *problem.y.successors):
            digest.update(np.ascontiguousarray(part).data)
        self.problem = np.frombuffer(digest.digest(), np.uint8)

    def read(self) -> Array | None:
        """Return the table (n_X, n_Y) in the units of the cost, or None if there is no file yet."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                problem, U = file["problem"], file["U"]
        except (OSError, ValueError, KeyError) as error:
            raise InvalidData(
                f"checkpoint {self.path} cannot be read ({error}); choose another file, or delete it"
            ) from error
        if not np.array_equal(problem, self.problem) or U.shape != (self.shape[0] * self.shape[1],):
            raise InvalidArgument(f"checkpoint {self.path} belongs to another problem; choose another, or delete it")
        return np.asarray(U, dtype=np.float64).reshape(self.shape) * self.scale

    def write(self, U: Array) -> None:
        """Replace the file with the scaled table."""
        with replacing(self.path, binary=True) as file:
            np.savez(file, problem=self.problem, U=U)


class Discounted(Run):
    """A run in which the fixed point is within ``gap``/2 of the table ``U`` after every sweep, both scaled."""

    problem: Any
    discount: float
    start: StartTransport
    U: Array
    gap: float
    floor: float  # part of the gap that is due to rounding

    def check(self, iteration: int) -> Check:
        """Compute the distance for the table, and its bounds."""
        bounds = self.start.solve(self.U, self.gap / 2)
        self.accuracy = bounds.gap
        floor = self.floor + PRICE / (1 - self.discount) + 4 * SMALLEST / (self.problem.scale or 1.0)
        return Check(bounds.row(self.work), bounds.gap, floor)


class PolicyIteration(Discounted):
    """One solve: the table, the trees of all transports, and the coupling of the starts.

    ``pairs (K,)`` are the flat indices of the pairs that are solved, or a slice for all of them. ``U (n_X*n_Y,)`` is
    scaled by the largest cost. If pairs are listed, the entries of all others are never read.
    """

    def __init__(
        self, problem: Problem, options: "Exact", warm: DistanceResult | None = None, values: Array | None = None,
        file: Checkpoint | None = None,
    ) -> None:  # fmt: skip
        self.file = file
        if file is not None and (known := file.read()) is not None:
            warm, values = None, known
        self.problem, self.discount, self.tol = problem, problem.discount, options.tol
        if warm is not None:
            check_warm(warm, problem.shape)
        coupling = warm.coupling if warm is not None and isinstance(warm.coupling, ExactCoupling) else None
        self.transports = self.begin(options, coupling)
        self.U = first_table(problem, values if warm is None else warm.values)
        self.pairs: NDArray[np.int64] | slice = self.transports.items.listed if self.listed else slice(None)
        self.TU = np.empty(self.transports.size)
        if self.transports.narrow:
            self.transports.keep_single_plans()
            self.residual = np.empty(self.transports.size, np.float32)
        self.start = StartTransport(problem)
        cold = warm is None and values is None
        self.products, self.price = 0, max(PRICE, FIRST * (1 - self.discount)) if cold else PRICE

    def begin(self, options: "Exact", known: Any) -> Any:
        """Return the transports; cluster.py overrides this to place them on the workers of a cluster."""
        return begin(self.problem, options.reachable, options.threads, known, store=options.store)

    @lazy
    def base(self) -> Array:
        """The term (1-γ) c of the Bellman operator, shape (K,)."""
        return np.asarray((1 - self.discount) * (self.problem.cost.ravel()[self.pairs] / (self.problem.scale or 1.0)))

    def chain(self) -> PairChain:
        """Return the Markov chain on pairs that is defined by the present plans."""
        return pair_chain(self.transports, self.discount)

    @property
    def listed(self) -> bool:
        """Whether only some pairs are solved."""
        return bool(self.transports.items.listed.size)

    @property
    def work(self) -> dict[str, int]:
        """Amount of work so far."""
        t = self.transports
        return {"pairs": t.size, "pivots": t.pivots, "improvements": t.sweeps, "sweeps": self.products}

    def improve(self, iteration: int) -> None:
        """Compute T U and optimal plans; U becomes the middle of the certified interval."""
        γ = self.discount
        solved = self.transports.solve(self.U, self.TU, self.price) and self.price < np.inf
        if self.transports.narrow:
            change = self._settle_narrow(solved)
        else:
            self.TU *= γ
            self.TU += self.base
            change = _engine.extremes(self.transports.items.listed, self.TU, self.U)
            self.U[self.pairs] = self.TU
            self.U[self.pairs] += self._band(change).shift if solved else 0.0
        band = self._band(change)
        self.change = change[1] - change[0]
        self.floor, self.gap = 2 * band.rounding, band.gap if solved else np.inf

    def _band(self, change: tuple[float, float, float]) -> Band:
        """Return the certified band around T U."""
        return sweep_band(self.transports, change, self.discount, self.price)

    def _settle_narrow(self, solved: bool) -> tuple[float, float, float]:
        """Do the same with all threads, and store the residual (:class:`TreeCorrection`) before U is overwritten."""
        γ, cost, scale = self.discount, self.problem.cost.ravel(), self.problem.scale or 1.0
        threads = self.transports.threads
        change = _engine.settle(cost, scale, γ, self.U, self.TU, engine_run(threads))
        shift = self._band(change).shift if solved else 0.0
        _engine.exchange((change[0] + change[1]) / 2, shift, self.U, self.TU, self.residual, engine_run(threads))
        return change

    def _correct(self, target: float) -> None:
        """Set U to the table of the plans up to a constant, which has no effect, as the old table plus a correction."""
        correction = TreeCorrection(self.transports, self.discount, self.TU.view(np.float32).reshape(2, -1))
        δ = correction.solve(self.residual, target)
        _engine.add_difference(δ, self.residual, self.U, engine_run(self.transports.threads))
        self.products += correction.products

    def evaluate(self) -> None:
        """Compute the table of the plans; its accuracy and the price of pivots depend on the last change."""
        target = max(ROUGH * self.change, 0.1 * self.tol * (1 - self.discount), 4 * EPS)
        self.price = max(PRICE, LOOSE * self.change)
        if self.transports.narrow:
            self._correct(target)
        else:
            self._evaluate(target)
        if self.file is not None:
            self.file.write(self.U)

    def _evaluate(self, target: float) -> None:
        """Compute the table of the plans if flows are stored, in double precision."""
        chain = self.chain()
        u = self.U[self.pairs]  # a view, or a copy if pairs are listed
        chain.evaluate(self.base, u, target, self.TU)
        if self.listed:
            self.U[self.pairs] = u
        self.products += chain.products

    def hurry(self) -> None:
        self.price = np.inf

    def coupling(self) -> ExactCoupling:
        """Return the coupling of the last sweep."""
        return ExactCoupling(self.problem, self.transports, self.U, self.start, self.accuracy)

    def end(self) -> None:
        self.transports.single = NO_SINGLE_PLANS
