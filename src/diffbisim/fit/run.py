"""The state of a fit, one step at a time; everything that a checkpoint must hold is an attribute of :class:`Run`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock, Thread
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.data.streams import Stream
from diffbisim.errors import InvalidArgument, InvalidData, MissingExtra
from diffbisim.fit.result import FitResult, FitStatus
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers.exact.tracking import Tracking
from diffbisim.steps import Annealed, PolyakLevel

try:
    import torch
except ImportError as error:  # pragma: no cover - tested in a process of its own
    raise MissingExtra("fitting needs PyTorch: pip install 'diffbisim[torch]'") from error

from diffbisim.fit import checkpoint
from diffbisim.fit.checkpoint import Checkpoint
from diffbisim.fit.kernels import ChainModel, Parts
from diffbisim.fit.natural import fisher_weights, inner, natural_direction
from diffbisim.torch import evaluate

#: The largest inner gap, relative to the largest cost.
LOOSEST = 1e-3

#: Largest natural step: √(2 × nats per transition).
CAP = 0.5

#: A value so many times the best means that the step left the region where the gradient says anything.
FAR = 3.0

#: Models with fewer parameters than this run in one torch thread: waiting for a second takes longer than the work.
SMALL = 1_000_000

#: Iterations of the first inner run of a single loop over samples, and the share of the last steps that is averaged.
FIRST, TAIL = 128, 0.25

_ONE_AT_A_TIME = Lock()

COUNTS = ("pivots", "improvements", "sweeps")


@contextmanager
def few_threads(parameters: list[Any]) -> Iterator[None]:
    """One torch thread for a small model: of this thread only, and its own number of threads afterwards.

    ``torch.set_num_threads`` sets the number of the thread that calls it, and that of all threads which have not used
    torch yet. A helper thread gives the latter back at once, so that nobody else is slowed down for good.
    """
    if sum(p.numel() for p in parameters) >= SMALL:
        yield
        return
    with _ONE_AT_A_TIME:
        before = torch.get_num_threads()
    try:
        with _ONE_AT_A_TIME:
            torch.set_num_threads(1)
            others = Thread(target=torch.set_num_threads, args=(before,))
            others.start()
            others.join()
        yield
    finally:
        torch.set_num_threads(before)


class Run:
    """Parameters, step rule, warm solution and history of a fit."""

    def __init__(
        self, target: MarkovChain | Stream, kernel: Any, cost: Any, discount: float, initial: Any, rewards: Any,
        solver: Any, attainable: bool | None, optimizer: Callable[[Any], Any] | None,
        scheduler: Callable[[Any], Any] | None, warm: bool, tol: float, inner_gap: float, single: bool, steps: int,
    ) -> None:  # fmt: skip
        self.target, self.cost, self.discount, self.solver = target, cost, discount, solver
        self.keep_warm, self.tol, self.inner_gap, self.single = warm or single, tol, inner_gap, single
        self.steps, self.sampling = steps, isinstance(target, Stream)
        self.model = ChainModel(kernel, initial, rewards)
        self.names, self.parameters = _trainable(self.model, cost)
        self.optimizer = None if optimizer is None else optimizer(self.parameters)
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InvalidArgument("optimizer is LBFGS, which asks for many gradients per step; leave optimizer out")
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        few = min(20, 4 + 2 * sum(p.numel() for p in self.parameters))  # more parameters, more kinks to get past
        self.rule: Any = PolyakLevel(attainable=attainable, cap=CAP, patience=few)
        if self.sampling:
            self.rule = Annealed(steps)
        self.warm: DistanceResult | None = None
        self.best = self._snapshot()
        self.history: list[dict[str, float]] = []
        self.work = dict.fromkeys((*COUNTS, "gradient_sweeps", "iterations", "transitions"), 0)
        self.outcome = FitStatus.STEPS
        self.iterable = target if isinstance(target, Stream) and target.items is not None else None
        self.kept = self._tensors()
        self.begun = checkpoint.digest(self.kept)

    @property
    def settled(self) -> bool:
        return self.outcome in (FitStatus.REACHED, FitStatus.STALLED)

    # --- one step ------------------------------------------------------------------------------------------

    def advance(self) -> Mapping[str, float]:
        """Solve, differentiate, step; returns the row of history."""
        solver = self._solver()
        value, result, outputs = self._evaluate(solver, self.warm if self.keep_warm else None)
        g = _gradient(value, self.parameters)
        n, size = self._direction(outputs, result, g)
        slope = inner(g, n)
        certain = not self.single and not self.sampling
        value_now = result.upper if certain else result.value  # a value with a wide gap must not pass for the best
        length = self.rule.length(value_now, slope, size if size > 0 else slope**0.5)
        if not certain:
            self._average()
        elif self.rule.improved:
            self.best = self._snapshot()
        self._count(result)
        row = {
            "step": float(len(self.history)), "value": result.value, "lower": result.lower, "upper": result.upper,
            "level": self.rule.level, "length": length, "tol": float("nan") if solver.tol is None else solver.tol,
            **{k: float(v) for k, v in self.work.items()},
        }  # fmt: skip
        self.history.append(row)
        self.warm = result
        self._judge(result, length)
        if not self.settled:
            self._move(g, n, length, value_now)
        return row

    def _solver(self) -> Any:
        """The inner solver, no more exact than the next step deserves."""
        if self.sampling:
            return self._short_run() if self.single else replace(self.solver, certify=False)
        if self.single:
            return Tracking(self.solver)
        if self.solver.tol is None or self.inner_gap == 0.0:
            return self.solver
        wanted = LOOSEST
        if self.warm is not None:
            gain = max(self.history[-1]["upper"] - self.rule.level, 0.0)
            wanted = min(LOOSEST, self.inner_gap * gain / (self.warm.problem.scale or 1.0))
        return replace(self.solver, tol=max(self.solver.tol, wanted))

    def _short_run(self) -> Any:
        """All goes on from step to step, in runs that are the longer the less the parameters still move."""
        full, share = self.solver.steps, min(1.0, (1 + len(self.history)) / self.steps)
        short = round(min(FIRST, full) ** (1 - share) * full**share)
        return replace(self.solver, steps=short, certify=False, carry=True)

    def _average(self) -> None:
        """Estimates cannot tell which iterate is best: the mean of the last ones, whose steps are short."""
        n = max(1, len(self.history) + 1 - int((1 - TAIL) * self.steps))
        self.best = [mean + (new - mean) / n for mean, new in zip(self.best, self._snapshot(), strict=True)]

    def _evaluate(self, solver: Any, warm: DistanceResult | None) -> tuple[Any, DistanceResult, Any]:
        """The distance in the graph, the result, and the tensors in between with their weights in the metric."""
        parts = self.model()
        P, values = _split(parts)
        cost = self.cost() if isinstance(self.cost, torch.nn.Module) else self.cost
        how = P, cost, self.discount, parts.initial, None, parts.rewards, solver, None
        try:
            value, result = evaluate(self.target, *how, warm, warn=False)
            ended = result.outcome is Status.ENDED
        except InvalidData:
            if not (isinstance(self.target, Stream) and self.target.ended and warm is not None):
                raise
            result, ended = warm, True
        if ended:  # from now on, draws from what the stream has shown
            self.target = Stream(result.problem.x)
            value, result = evaluate(self.target, *how, result, warn=False)
        return value, result, (P, values, parts, cost)

    def _direction(self, made: Any, result: DistanceResult, g: list[Any]) -> tuple[list[Any], float]:
        """The natural direction (size 0: the rule measures it by its slope), or the gradient with its largest entry."""
        if self.optimizer is None:
            n = natural_direction(*_outputs(made, result), self.parameters, g)
            if n is not None and all(bool(torch.isfinite(x).all()) for x in n) and inner(g, n) > 0:
                return n, 0.0
        return g, max(float(x.abs().max()) for x in g)

    def _move(self, g: list[Any], n: list[Any], length: float, value: float) -> None:
        if self.optimizer is None and not self.sampling and (length == 0.0 or value > FAR * self.rule.best):
            self._put(self.best)  # the step went where the model is another: back, and shorter steps
            self.rule.cap /= 2
            return
        if self.optimizer is None:
            if self.rule.improved:  # never of an annealed one
                self.rule.cap = min(CAP, 1.2 * self.rule.cap)
            with torch.no_grad():
                for p, direction in zip(self.parameters, n, strict=True):
                    p -= length * direction
            return
        for p, derivative in zip(self.parameters, g, strict=True):
            p.grad = derivative
        self.optimizer.step()
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(value)
        elif self.scheduler is not None:
            self.scheduler.step()

    def _judge(self, result: DistanceResult, length: float) -> None:
        scale = result.problem.scale or 1.0
        if result.upper <= self.tol * scale:
            self.outcome = FitStatus.REACHED
        elif self.optimizer is None and not self.single and not self.sampling:
            learned = not self.rule.attainable and self.rule.delta <= self.tol * scale
            if learned or (length == 0.0 and self.rule.improved):
                self.outcome = FitStatus.STALLED

    def _count(self, result: DistanceResult) -> None:
        """Work of the inner solve, and the sweeps that the occupancy took after it for the gradient."""
        for name in COUNTS:
            self.work[name] += int(result.work.get(name, 0))
        if self.sampling:
            self.work["iterations"] += result.iterations
            self.work["transitions"] = int(result.work["transitions_x"])
        self.work["gradient_sweeps"] += result.coupling.sweeps

    def _snapshot(self) -> list[Any]:
        return [p.detach().clone() for p in self.parameters]

    def _put(self, values: list[Any]) -> None:
        with torch.no_grad():
            for p, value in zip(self.parameters, values, strict=True):
                p.copy_(value)

    # --- the end -------------------------------------------------------------------------------------------

    def finish(self, solver: Any) -> FitResult:
        """Certify the best iterate, and keep it."""
        if self.sampling and self.outcome is FitStatus.STEPS and len(self.history) >= self.steps:
            self.outcome = FitStatus.ESTIMATED
        self._put(self.best)
        if self.sampling and self.single:
            solver = replace(solver, carry=True)
        result = self._evaluate(solver, self.warm)[1]
        self._count(result)
        parts = self.model()
        rewards = parts.rewards.detach().numpy() if isinstance(parts.rewards, torch.Tensor) else parts.rewards
        y = result.problem.y
        target = self.target.frame if isinstance(self.target, Stream) else self.target
        if rewards is None and y.n_states == target.n_states:
            rewards = target.rewards
        chain = MarkovChain(y.transition, initial=y.initial, rewards=rewards)
        named = {name: p.detach().numpy().copy() for name, p in zip(self.names, self.best, strict=True)}
        return FitResult(chain, result, named, self.model.kernel, self.outcome, tuple(self.history), dict(self.work))

    # --- on disk -------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """All that makes this run another than others, but for where its parameters begin."""
        made, plan = self.optimizer, self.scheduler
        facts = {
            "target": self.target, "kernel": self.model.kernel, "cost": self.cost, "discount": self.discount,
            "initial": self.model.initial, "rewards": self.model.rewards, "solver": self.solver,
            "loop": "single" if self.single else "double", "attainable": getattr(self.rule, "attainable", None),
            "optimizer": made and [type(made), made.state_dict()["param_groups"]],
            "scheduler": plan and [type(plan), plan.state_dict()],
            "tol": self.tol, "inner_gap": self.inner_gap, "warm": self.keep_warm,
        }  # fmt: skip
        return {**facts, "steps": self.steps} if self.sampling else facts  # their lengths depend on how many there are

    def save(self, file: Checkpoint) -> None:
        """Write all of it."""
        self.kept = self._tensors()
        state = {
            "begun": self.begun, "tensors": self.kept, "best": self.best,
            "optimizer": self.optimizer and self.optimizer.state_dict(),
            "scheduler": self.scheduler and self.scheduler.state_dict(),
            "rule": self.rule.state(), "history": self.history, "work": self.work, "outcome": self.outcome.name,
            "warm": self.warm, "stream": self._stream(),
        }  # fmt: skip
        file.write(state)

    def restore(self, file: Checkpoint) -> None:
        """Go on from the file, if there is one."""
        state = file.read()
        if state is None:
            return
        tensors, n = state["tensors"], len(self.parameters)
        ended = [*state["best"], *tensors[n:]]  # what a run leaves in the module
        if self.begun not in (state["begun"], checkpoint.digest(tensors), checkpoint.digest(ended)):
            raise file.of_another_run("the values at which the parameters of the kernel begin")
        self.begun, self.kept, self.best = state["begun"], tensors, state["best"]
        self.rewind()
        if self.optimizer is not None:
            _load(self.optimizer, state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.rule, self.history = type(self.rule).from_state(state["rule"]), state["history"]
        self.work, self.outcome, self.warm = state["work"], FitStatus[state["outcome"]], state["warm"]
        if not self.settled:
            self.outcome = FitStatus.STEPS  # it goes on
        if isinstance(self.target, Stream) and state["stream"] is not None:
            taken, seen = state["stream"]
            self.target.skip(taken)
            self.target = self.target if seen is None else Stream(seen)

    def rewind(self) -> None:
        """The module as the file has it (as it was given, where there is none yet), so that the same call goes on."""
        with torch.no_grad():
            for tensor, value in zip(self._live(), self.kept, strict=True):
                tensor.copy_(value)

    def _stream(self) -> Any:
        """Items that were read of an iterable, and the chain that took its place when it ended."""
        if self.iterable is None or not isinstance(self.target, Stream):
            return None
        return self.iterable.taken, None if self.target is self.iterable else self.target.source

    def _live(self) -> list[Any]:
        """Parameters, and what a module may keep beside them."""
        cost = self.cost.buffers() if isinstance(self.cost, torch.nn.Module) else ()
        return [*self.parameters, *self.model.buffers(), *cost]

    def _tensors(self) -> list[Any]:
        return [tensor.detach().clone() for tensor in self._live()]


def _trainable(model: ChainModel, cost: Any) -> tuple[list[str], list[Any]]:
    """Names and tensors of what is learned."""
    if not isinstance(model.kernel, torch.nn.Module):
        raise InvalidArgument(f"kernel is a {type(model.kernel).__name__}; give a torch module that returns a kernel")
    found = list(model.named_parameters())
    if isinstance(cost, torch.nn.Module):
        found += [(f"cost.{name}", p) for name, p in cost.named_parameters()]
    found = [(name.removeprefix("kernel."), p) for name, p in found if p.requires_grad]
    if not found:
        raise InvalidArgument("kernel has no parameters that require a gradient; there is nothing to fit")
    names, parameters = zip(*found, strict=True)
    return list(names), list(parameters)


def _load(optimizer: Any, state: dict[str, Any]) -> None:
    """``load_state_dict``, which converts numbers to the type of the parameters, and then as they were."""
    optimizer.load_state_dict(state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for k, entries in state["state"].items():
        optimizer.state[parameters[k]].update({name: v for name, v in entries.items() if isinstance(v, torch.Tensor)})


def _split(parts: Parts) -> tuple[Any, Any]:
    """The kernel and its values: a sparse one is rebuilt on values that the graph goes through."""
    P: Any = parts.transition
    if P.layout == torch.strided:
        return P, P
    flat = (P if P.layout == torch.sparse_coo else P.to_sparse_coo()).coalesce()
    values = flat.values()
    rebuilt = torch.sparse_coo_tensor(flat.indices(), values, P.shape, is_coalesced=True, check_invariants=False)
    return rebuilt, values


def _outputs(made: Any, result: DistanceResult) -> tuple[list[Any], list[Any]]:
    """What the parameters make, and how much each number counts in the metric."""
    P, values, parts, cost = made
    m = torch.from_numpy(np.array(result.occupancy))
    rho = m.sum(dim=0)
    by_entry = rho[:, None] if P.layout == torch.strided else rho[P.indices()[0]]
    learned = [(values, fisher_weights(values, by_entry.to(values.dtype)))]
    units = (result.problem.scale or 1.0) ** 2
    if isinstance(parts.initial, torch.Tensor):
        once = torch.full_like(parts.initial, 1.0 - result.discount)  # drawn once, for 1/(1-γ) transitions
        learned.append((parts.initial, fisher_weights(parts.initial, once)))
    if isinstance(parts.rewards, torch.Tensor):
        learned.append((parts.rewards, rho / units))
    if isinstance(cost, torch.Tensor):
        learned.append((cost, m / units))
    learned = [(out, weight) for out, weight in learned if out.requires_grad]
    return [out for out, _ in learned], [weight for _, weight in learned]


def _gradient(value: Any, parameters: list[Any]) -> list[Any]:
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return [x.detach() for x in found]
