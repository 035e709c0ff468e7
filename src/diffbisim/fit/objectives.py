"""What a fit minimizes: the distance of a torch model to its target, as a function of the model's parameters.

Three ways to evaluate it, one class each; the loop around them is optimize/loop.py.

=====================  =========================================================  ======================  =============
objective              the inner problem of a step                                steps are judged by     what is kept
=====================  =========================================================  ======================  =============
`ExactObjective`       solved, no more exactly than the step needs                the upper bound         the best
`TrackedObjective`     followed by one sweep (exact/tracking.py)                  a moving estimate       a mean
`SampledObjective`     SOMCOT on samples of the target                            an estimate             a mean
=====================  =========================================================  ======================  =============

Estimates cannot tell which iterate is best: the mean of the last ones, whose steps are short, takes its place.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from diffbisim._bridge import Settings
from diffbisim.chain import MarkovChain
from diffbisim.data.streams import Stream
from diffbisim.errors import InvalidArgument, InvalidData, MissingExtra
from diffbisim.fit.kernels import ChainModel
from diffbisim.optimize.checkpoint import Resumable, stored
from diffbisim.questions import Question
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers.exact.tracking import Tracking

try:
    import torch
    from threadpoolctl import ThreadpoolController

    from diffbisim.torch import evaluate
except ImportError as error:  # pragma: no cover - tested in a process of its own
    raise MissingExtra("fitting needs PyTorch and threadpoolctl: pip install 'diffbisim[torch]'") from error

#: The largest inner gap, relative to the largest cost.
LOOSEST = 1e-3

#: Models with fewer parameters than this run in one torch thread: waiting for a second takes longer than the work.
SMALL = 1_000_000

#: Iterations of the first inner run of a single loop over samples, and the share of the last steps that is averaged.
FIRST, TAIL = 128, 0.25

COUNTS = ("pivots", "improvements", "sweeps")

Vector = list[Any]  # one tensor per parameter

# --- the model ---------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """What the parameters make; each part a tensor if it is learned."""

    transition: Any  # (n, n), dense or sparse
    entries: Any  # the same if dense, else the values of a sparse kernel, which the graph goes through
    initial: Any
    rewards: Any
    cost: Any


class Model:
    """All that is learned: kernel, start, rewards and cost, each a module or a constant, and their parameters."""

    def __init__(self, kernel: Any, initial: Any, rewards: Any, cost: Any) -> None:
        if not isinstance(kernel, torch.nn.Module):
            raise InvalidArgument(f"kernel is a {type(kernel).__name__}; give a torch module that returns a kernel")
        self.chain, self.cost = ChainModel(kernel, initial, rewards), cost
        found = list(self.chain.named_parameters())
        if isinstance(cost, torch.nn.Module):
            found += [(f"cost.{name}", p) for name, p in cost.named_parameters()]
        learned = {name.removeprefix("kernel."): p for name, p in found if p.requires_grad}
        if not learned:
            raise InvalidArgument("kernel has no parameters that require a gradient; there is nothing to fit")
        self.names = list(learned)
        self.parameters: Vector = list(learned.values())

    def __call__(self) -> Made:
        parts = self.chain()
        cost = self.cost() if isinstance(self.cost, torch.nn.Module) else self.cost
        P: Any = parts.transition
        if P.layout == torch.strided:
            return Made(P, P, parts.initial, parts.rewards, cost)
        flat = (P if P.layout == torch.sparse_coo else P.to_sparse_coo()).coalesce()
        values = flat.values()
        rebuilt = torch.sparse_coo_tensor(flat.indices(), values, P.shape, is_coalesced=True, check_invariants=False)
        return Made(rebuilt, values, parts.initial, parts.rewards, cost)

    def snapshot(self) -> Vector:
        return [p.detach().clone() for p in self.parameters]

    def put(self, values: Vector) -> None:
        """The inverse of :meth:`snapshot`."""
        _copy(values, self.parameters)

    def state(self) -> Vector:
        """Parameters, and what a module may keep beside them."""
        return [tensor.detach().clone() for tensor in self._tensors()]

    def resume(self, state: Vector) -> None:
        _copy(state, self._tensors())

    def identity(self, state: Vector, best: Vector | None = None) -> Vector:
        return state if best is None else [*best, *state[len(best) :]]

    def _tensors(self) -> Vector:
        cost = self.cost.buffers() if isinstance(self.cost, torch.nn.Module) else ()
        return [*self.parameters, *self.chain.buffers(), *cost]


def _copy(values: Vector, tensors: Vector) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


# --- what is kept ------------------------------------------------------------------------------------------


@stored
@dataclass
class Lowest:
    """The parameters of the least value."""

    parameters: Vector
    value: float = float("inf")

    def add(self, value: float, snapshot: Callable[[], Vector]) -> None:
        if value < self.value:
            self.value, self.parameters = value, snapshot()


@stored
@dataclass
class MeanOfTheLast:
    """The mean of the parameters over the last quarter of the steps."""

    parameters: Vector
    steps: int
    seen: int = 0

    def add(self, value: float, snapshot: Callable[[], Vector]) -> None:
        self.seen += 1
        n = max(1, self.seen - int((1 - TAIL) * self.steps))
        self.parameters = [mean + (new - mean) / n for mean, new in zip(self.parameters, snapshot(), strict=True)]


# --- objectives --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The distance at one set of parameters."""

    result: DistanceResult
    distance: Any  # its value as a tensor, in the graph of the parameters
    made: Made  # the tensors between parameters and distance
    tol: float  # that the solver was asked for
    value: float  # what steps are judged by


#: The discounted distance.
USUAL = Question()


class ModelObjective(Resumable, ABC):
    """The distance between a target and a model, solved from the last solution if ``warm``."""

    at_limit = Status.STEPS
    changing = ("last", "evaluations", "work", "kept")

    def __init__(
        self, target: Any, model: Model, discount: float, solver: Any, kept: Any, question: Question = USUAL,
        warm: bool = True,
    ) -> None:  # fmt: skip
        self.target, self.model, self.discount, self.solver, self.kept = target, model, discount, solver, kept
        self.question, self.warm = question, warm
        self.last: DistanceResult | None = None
        self.evaluations = 0
        self.work = dict.fromkeys((*COUNTS, "gradient_sweeps", "iterations", "transitions"), 0)

    def evaluate(self, level: float) -> Evaluation:
        solver, made = self._solver_for(level), self.model()
        distance, result = self._solve(made, solver, self.last if self.warm else None)
        tol = float("nan") if solver.tol is None else solver.tol
        at = Evaluation(result, distance, made, tol, self._judged(result))
        self.kept.add(at.value, self.model.snapshot)
        self.last, self.evaluations = result, self.evaluations + 1
        return at

    def certify(self) -> DistanceResult:
        """The best parameters into the model, and their distance by the solver as it was given."""
        self.model.put(self.kept.parameters)
        result = self._solve(self.model(), self._last_solver(), self.last)[1]
        self._count(result)
        return result

    @abstractmethod
    def _solver_for(self, level: float) -> Any:
        """The solver of the next step."""

    def _last_solver(self) -> Any:
        return self.solver

    def _judged(self, result: DistanceResult) -> float:
        return result.value

    def _solve(self, made: Made, solver: Any, warm: DistanceResult | None) -> tuple[Any, DistanceResult]:
        asked = Settings(self.discount, solver, warm=warm, question=self.question, warn=False)
        return evaluate(self.target, made.transition, made.cost, asked, initial=made.initial, rewards=made.rewards)

    def _count(self, result: DistanceResult) -> None:
        """Work of the inner solve, and the sweeps that the occupancy took after it for the gradient."""
        for name in COUNTS:
            self.work[name] += int(result.work.get(name, 0))
        self.work["gradient_sweeps"] += result.coupling.sweeps

    def account(self, at: Evaluation) -> dict[str, float]:
        self._count(at.result)
        return {"step": self.evaluations - 1.0, "tol": at.tol, **{k: float(v) for k, v in self.work.items()}}

    def best(self) -> Vector:
        best: Vector = self.kept.parameters
        return best


class ExactObjective(ModelObjective):
    """By any solver that certifies; ``inner_gap`` is the gap it is asked for, as a share of what the step may gain."""

    def __init__(self, *given: Any, inner_gap: float, **options: Any) -> None:
        super().__init__(*given, **options)
        self.inner_gap = inner_gap

    def _solver_for(self, level: float) -> Any:
        """A step that expects to gain d - level is no better for a gap far below that."""
        if self.solver.tol is None or self.inner_gap == 0.0:
            return self.solver
        wanted = LOOSEST
        if self.last is not None:
            gain = max(self.last.upper - level, 0.0)
            wanted = min(LOOSEST, self.inner_gap * gain / (self.last.problem.scale or 1.0))
        return replace(self.solver, tol=max(self.solver.tol, wanted))

    def _judged(self, result: DistanceResult) -> float:
        return result.upper  # a value with a wide gap must not pass for the best


class TrackedObjective(ModelObjective):
    """The exact solver's variables move along with the parameters, by one sweep per step."""

    def _solver_for(self, level: float) -> Any:
        return Tracking(self.solver)


class SampledObjective(ModelObjective):
    """The target is a stream; with ``single`` the variables of SOMCOT move along with the parameters.

    A stream that has ended is followed by draws from what it has shown.
    """

    at_limit = Status.ESTIMATED

    def __init__(self, *given: Any, single: bool, steps: int, **options: Any) -> None:
        super().__init__(*given, **options)
        self.single, self.steps = single, steps
        self.iterable = self.target if self.target.items is not None else None

    def _solver_for(self, level: float) -> Any:
        """In a single loop, runs that are the longer the less the parameters still move."""
        if not self.single:
            return replace(self.solver, certify=False)
        full, share = self.solver.steps, min(1.0, (1 + self.evaluations) / self.steps)
        short = round(min(FIRST, full) ** (1 - share) * full**share)
        return replace(self.solver, steps=short, certify=False, carry=True)

    def _last_solver(self) -> Any:
        return replace(self.solver, carry=True) if self.single else self.solver

    def _solve(self, made: Made, solver: Any, warm: DistanceResult | None) -> tuple[Any, DistanceResult]:
        try:
            distance, result = super()._solve(made, solver, warm)
            if result.outcome is not Status.ENDED:
                return distance, result
        except InvalidData:
            if not self.target.ended or warm is None:
                raise
            result = warm
        self.target = Stream(result.problem.x)
        return super()._solve(made, solver, result)

    def _count(self, result: DistanceResult) -> None:
        super()._count(result)
        self.work["iterations"] += result.iterations
        self.work["transitions"] = int(result.work["transitions_x"])

    def state(self) -> dict[str, Any]:
        """With the items that were read of an iterable, and the chain that took its place when it ended."""
        if self.iterable is None:
            return super().state()
        shown = None if self.target is self.iterable else self.target.source
        return {**super().state(), "read": self.iterable.n_read, "shown": shown}

    def resume(self, state: Mapping[str, Any]) -> None:
        super().resume(state)
        if self.iterable is not None:
            self.iterable.skip_to(state["read"])
            self.target = self.iterable if state["shown"] is None else Stream(state["shown"])


def fitted_chain(objective: ModelObjective, result: DistanceResult) -> MarkovChain:
    """The model as a chain, with its rewards, or those of the target if there are as many states."""
    rewards = objective.model.chain().rewards
    y, target = result.problem.y, objective.target
    known = target.frame if isinstance(target, Stream) else target
    if isinstance(rewards, torch.Tensor):
        rewards = rewards.detach().numpy()
    elif rewards is None and y.n_states == known.n_states:
        rewards = known.rewards
    return MarkovChain(y.transition, initial=y.initial, rewards=rewards)


# --- threads -----------------------------------------------------------------------------------------------


@contextmanager
def few_threads(parameters: Vector) -> Iterator[None]:
    """One torch thread for a small model: of this thread only, and its own number of threads afterwards.

    ``torch.set_num_threads`` would also set the number of all threads that have not used torch yet. OpenMP, which torch
    asks, counts for every thread by itself.
    """
    if sum(p.numel() for p in parameters) >= SMALL:
        yield
        return
    torch.get_num_threads()  # torch sets a thread's number once, when it is first used there: now, not in between
    with _openmp().limit(limits=1):
        yield


@cache
def _openmp() -> ThreadpoolController:
    """The OpenMP libraries of this process."""
    return ThreadpoolController().select(user_api="openmp")
