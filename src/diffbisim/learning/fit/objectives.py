"""The objective of a fit: the distance between a torch model and its target as a function of the model's parameters.

There are three ways to evaluate it; the loop around them is optimize/loop.py.

=====================  ===================================================  =======================  =============
objective              inner problem of a step                              steps are judged by      what is kept
=====================  ===================================================  =======================  =============
`ExactObjective`       solved as accurately as the step needs               the upper bound          the best
`TrackedObjective`     followed with one sweep (exact/tracking.py)          a moving estimate        a mean
`SampledObjective`     SOMCOT on samples of the target                      an estimate              a mean
=====================  ===================================================  =======================  =============

Estimates cannot tell which iterate is best, so the mean of the last iterates, whose steps are short, is kept instead.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from diffbisim.autodiff.bridge import Settings
from diffbisim.common.errors import InvalidArgument, InvalidData, MissingExtra
from diffbisim.learning.fit.kernels import ChainModel
from diffbisim.learning.optimize.checkpoint import Resumable, stored
from diffbisim.problems import Criterion
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.streams import Stream
from diffbisim.results.base import DistanceResult, Status
from diffbisim.solvers.exact.tracking import TrackingSolver

try:
    import torch
    from threadpoolctl import ThreadpoolController

    from diffbisim.autodiff.torch import evaluate
except ImportError as error:  # pragma: no cover - tested in a process of its own
    raise MissingExtra("fitting needs PyTorch and threadpoolctl: pip install 'diffbisim[torch]'") from error

#: The largest inner gap, relative to the largest cost.
LARGEST_GAP = 1e-3

#: Models with fewer parameters than this use one torch thread, because synchronizing threads takes longer than the
#: work.
MIN_PARAMETERS_FOR_THREADS = 1_000_000

#: Iterations of the first inner run of a single loop over samples.
FIRST_ITERATIONS = 128

#: Fraction of the steps, at the end, over which parameters are averaged.
AVERAGED_SHARE = 0.25

COUNTS = ("pivots", "improvements", "sweeps")

Vector = list[Any]  # one tensor per parameter

# --- the model ---------------------------------------------------------------------------------------------


class Outputs(NamedTuple):
    """Outputs of a model; each part is a tensor if it is learned."""

    transition: Any  # (n, n), dense or sparse
    entries: Any  # the same tensor if dense, else the values of the sparse kernel, which are in the autograd graph
    initial: Any
    rewards: Any
    cost: Any


class LearnedModel:
    """The learned parts (kernel, start, rewards and cost, each a module or a constant) and their parameters."""

    def __init__(self, kernel: Any, initial: Any, rewards: Any, cost: Any) -> None:
        if not isinstance(kernel, torch.nn.Module):
            raise InvalidArgument(f"kernel is a {type(kernel).__name__}; pass a torch module that returns a kernel")
        self.chain, self.cost = ChainModel(kernel, initial, rewards), cost
        found = list(self.chain.named_parameters())
        if isinstance(cost, torch.nn.Module):
            found += [(f"cost.{name}", p) for name, p in cost.named_parameters()]
        learned = {name.removeprefix("kernel."): p for name, p in found if p.requires_grad}
        if not learned:
            raise InvalidArgument("kernel has no parameters that require a gradient; there is nothing to fit")
        self.names = list(learned)
        self.parameters: Vector = list(learned.values())

    def __call__(self) -> Outputs:
        parts = self.chain()
        cost = self.cost() if isinstance(self.cost, torch.nn.Module) else self.cost
        P: Any = parts.transition
        if P.layout == torch.strided:
            return Outputs(P, P, parts.initial, parts.rewards, cost)
        flat = (P if P.layout == torch.sparse_coo else P.to_sparse_coo()).coalesce()
        values = flat.values()
        rebuilt = torch.sparse_coo_tensor(flat.indices(), values, P.shape, is_coalesced=True, check_invariants=False)
        return Outputs(rebuilt, values, parts.initial, parts.rewards, cost)

    def snapshot(self) -> Vector:
        """Return copies of the parameters."""
        return [p.detach().clone() for p in self.parameters]

    def put(self, values: Vector) -> None:
        """Set the parameters to the values of a :meth:`snapshot`."""
        _copy(values, self.parameters)

    def state(self) -> Vector:
        """Return copies of the parameters and buffers."""
        return [tensor.detach().clone() for tensor in self._tensors()]

    def resume(self, state: Vector) -> None:
        """Set the parameters and buffers to a saved :meth:`state`."""
        _copy(state, self._tensors())

    def identity(self, state: Vector, best: Vector | None = None) -> Vector:
        """Return the state with the best parameters in place of the current ones."""
        return state if best is None else [*best, *state[len(best) :]]

    def _tensors(self) -> Vector:
        cost = self.cost.buffers() if isinstance(self.cost, torch.nn.Module) else ()
        return [*self.parameters, *self.chain.buffers(), *cost]


def _copy(values: Vector, tensors: Vector) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


# --- the iterate that is kept ------------------------------------------------------------------------------


@stored
@dataclass
class Lowest:
    """The parameters with the lowest value so far."""

    parameters: Vector
    value: float = float("inf")

    def add(self, value: float, snapshot: Callable[[], Vector]) -> None:
        if value < self.value:
            self.value, self.parameters = value, snapshot()


@stored
@dataclass
class MeanOfTheLast:
    """The mean of the parameters over the last quarter of the iterations."""

    parameters: Vector
    max_iterations: int
    seen: int = 0

    def add(self, value: float, snapshot: Callable[[], Vector]) -> None:
        self.seen += 1
        n = max(1, self.seen - int((1 - AVERAGED_SHARE) * self.max_iterations))
        self.parameters = [mean + (new - mean) / n for mean, new in zip(self.parameters, snapshot(), strict=True)]


# --- objectives --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FitEvaluation:
    """The distance at one set of parameters."""

    result: DistanceResult
    distance: Any  # its value as a tensor in the autograd graph of the parameters
    outputs: Outputs  # the tensors between parameters and distance
    tol: float  # requested from the solver
    value: float  # what steps are judged by


class InnerProblem(NamedTuple):
    """What is solved at every step, apart from the model."""

    target: Any  # a MarkovChain, or a Stream
    discount: float
    solver: Any
    criterion: Criterion = Criterion()
    warm: bool = True  # whether to start from the previous solution


class ModelObjective(Resumable, ABC):
    """The distance between a target and a model; `kept` stores the parameters to return."""

    at_limit = Status.ITERATIONS_OF_FIT
    changing = ("last", "evaluations", "work", "kept")

    def __init__(self, problem: InnerProblem, model: LearnedModel, kept: Any) -> None:
        self.problem, self.model, self.kept = problem, model, kept
        self.target, self.solver = problem.target, problem.solver
        self.last: DistanceResult | None = None
        self.evaluations = 0
        self.work = dict.fromkeys((*COUNTS, "gradient_sweeps", "iterations", "transitions"), 0)

    def evaluate(self, level: float) -> FitEvaluation:
        """Solve for the distance at the current parameters, given a lower level for what can be attained."""
        solver, outputs = self._solver_for(level), self.model()
        distance, result = self._solve(outputs, solver, self.last if self.problem.warm else None)
        tol = float("nan") if solver.tol is None else solver.tol
        at = FitEvaluation(result, distance, outputs, tol, self._value(result))
        self.kept.add(at.value, self.model.snapshot)
        self.last, self.evaluations = result, self.evaluations + 1
        return at

    def certify(self) -> DistanceResult:
        """Set the model to the parameters kept, and solve for their distance with the solver as it was given."""
        self.model.put(self.kept.parameters)
        result = self._solve(self.model(), self._final_solver(), self.last)[1]
        self._count(result)
        return result

    @abstractmethod
    def _solver_for(self, level: float) -> Any:
        """Return the solver for the next step."""

    def _final_solver(self) -> Any:
        return self.solver

    def _value(self, result: DistanceResult) -> float:
        return result.value

    def _solve(self, outputs: Outputs, solver: Any, warm: DistanceResult | None) -> tuple[Any, DistanceResult]:
        settings = Settings(self.problem.discount, solver, warm=warm, criterion=self.problem.criterion, warn=False)
        P, cost = outputs.transition, outputs.cost
        return evaluate(self.target, P, cost, settings, initial=outputs.initial, rewards=outputs.rewards)

    def _count(self, result: DistanceResult) -> None:
        """Add up the work of the inner solve and the occupancy sweeps of the gradient."""
        for name in COUNTS:
            self.work[name] += int(result.work.get(name, 0))
        self.work["gradient_sweeps"] += result.coupling.sweeps

    def account(self, at: FitEvaluation) -> dict[str, float]:
        """Return the row of the history for this evaluation."""
        self._count(at.result)
        return {"step": self.evaluations - 1.0, "tol": at.tol, **{k: float(v) for k, v in self.work.items()}}

    def best(self) -> Vector:
        """Return the parameters kept."""
        best: Vector = self.kept.parameters
        return best


class ExactObjective(ModelObjective):
    """Solved with certified bounds; the requested gap is `inner_gap` times what the step can gain."""

    def __init__(self, problem: InnerProblem, model: LearnedModel, kept: Any, inner_gap: float) -> None:
        super().__init__(problem, model, kept)
        self.inner_gap = inner_gap

    def _solver_for(self, level: float) -> Any:
        """Relax the tolerance, because a step that can gain d - level does not benefit from a far smaller gap."""
        if self.solver.tol is None or self.inner_gap == 0.0:
            return self.solver
        wanted = LARGEST_GAP
        if self.last is not None:
            gain = max(self.last.upper - level, 0.0)
            wanted = min(LARGEST_GAP, self.inner_gap * gain / (self.last.problem.scale or 1.0))
        return replace(self.solver, tol=max(self.solver.tol, wanted))

    def _value(self, result: DistanceResult) -> float:
        return result.upper  # so that a low value with a wide gap is not taken for the best


class TrackedObjective(ModelObjective):
    """The exact solver's variables follow the parameters with one sweep per step."""

    def _solver_for(self, level: float) -> Any:
        return TrackingSolver(self.solver)


class SampledObjective(ModelObjective):
    """The target is a stream; if `single`, the variables of SOMCOT carry over between steps.

    When an iterable stream ends, the run continues with samples from the chain estimated so far.
    """

    at_limit = Status.ESTIMATED

    def __init__(
        self, problem: InnerProblem, model: LearnedModel, kept: Any, single: bool, max_iterations: int
    ) -> None:
        super().__init__(problem, model, kept)
        self.single, self.max_iterations = single, max_iterations
        self.iterable = self.target if self.target.items is not None else None

    def _solver_for(self, level: float) -> Any:
        """In a single loop, use more iterations as the parameters move less."""
        if not self.single:
            return replace(self.solver, certify=False)
        full, done = self.solver.max_iterations, min(1.0, (1 + self.evaluations) / self.max_iterations)
        iterations = round(min(FIRST_ITERATIONS, full) ** (1 - done) * full**done)
        return replace(self.solver, max_iterations=iterations, certify=False, carry=True)

    def _final_solver(self) -> Any:
        return replace(self.solver, carry=True) if self.single else self.solver

    def _solve(self, outputs: Outputs, solver: Any, warm: DistanceResult | None) -> tuple[Any, DistanceResult]:
        try:
            distance, result = super()._solve(outputs, solver, warm)
            if result.outcome is not Status.ENDED:
                return distance, result
        except InvalidData:
            if not self.target.ended or warm is None:
                raise
            result = warm
        self.target = Stream(result.problem.x)
        return super()._solve(outputs, solver, result)

    def _count(self, result: DistanceResult) -> None:
        super()._count(result)
        self.work["iterations"] += result.iterations
        self.work["transitions"] = int(result.work["transitions_x"])

    def state(self) -> dict[str, Any]:
        """Include the number of items read and, if the stream has ended, the chain that replaced it."""
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
    """Return the model as a chain, whose steps take as long as the target's.

    Its rewards are its own, or those of a target with equally many states.
    """
    rewards = objective.model.chain().rewards
    y, target = result.problem.y, objective.target
    known = target.frame if isinstance(target, Stream) else target
    if isinstance(rewards, torch.Tensor):
        rewards = rewards.detach().numpy()
    elif rewards is None and y.n_states == known.n_states:
        rewards = known.rewards
    return MarkovChain(y.transition, initial=y.initial, rewards=rewards, lag=known.lag)


# --- threads -----------------------------------------------------------------------------------------------


@contextmanager
def few_threads(parameters: Vector) -> Iterator[None]:
    """Limit torch to one thread for a small model, in the current thread only.

    ``torch.set_num_threads`` would also affect every other thread that has not used torch yet; OpenMP, which torch
    consults, keeps a number per thread.
    """
    if sum(p.numel() for p in parameters) >= MIN_PARAMETERS_FOR_THREADS:
        yield
        return
    torch.get_num_threads()  # torch initializes this number on first use in a thread; do it before the limit is set
    with _openmp().limit(limits=1):
        yield


@cache
def _openmp() -> ThreadpoolController:
    """Return the OpenMP libraries of this process."""
    return ThreadpoolController().select(user_api="openmp")
