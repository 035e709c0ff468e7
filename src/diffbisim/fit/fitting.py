"""D-BOT (the paper's Algorithm 1): fit a parametrized Markov model by the gradient of the metric.

    repeat    solve      d(X, Y_θ) by the inner solver, from the last solution, no more exactly than the step needs
              gradient   g = ∇_θ d by the envelope theorem (Theorem 1) and backward through the model
              step       θ ← θ - η n,  n the natural direction (updates.py), η Polyak's length for a level (steps.py)
    until     the certified distance is within tol of zero, or the level says that nothing is left to gain

d is sharp at an attainable minimum, where any fixed schedule rattles or crawls; the default rule has nothing to tune.
Any torch optimizer and scheduler can take its place. The best iterate is kept, and certified at the end.

Tolerance. A step that expects to gain d - ℓ is no better for a gap far below that: the inner gap is a twentieth of it
(``inner_gap``).

Single loop (``loop="single"``, which the paper leaves open): parameters and inner variables move together, the latter
by one sweep per step, with pivots only where they matter (exact/tracking.py). The value is a moving estimate that
becomes exact as the steps become short. So the steps have to become short by themselves: the default there is Adam,
annealed to zero. The mean of the last iterates is certified at the end.

SOMCOT inside (the default for streams): the target is known by samples only, and what was seen of it is kept from step
to step. Values are estimates, so the natural steps have lengths that fall to zero by themselves (steps.py,
``Annealed``), and the mean of the last iterates takes the place of the best. In its single loop coupling, multipliers
and occupancies go on, by few iterations per step at first, and by more as the steps become short.

The loop itself is optimize/loop.py; what is evaluated, objectives.py; how the parameters move, updates.py.
"""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import as_number, check_count, check_discount
from diffbisim.data.streams import Stream
from diffbisim.distance import make_solver
from diffbisim.errors import InvalidArgument
from diffbisim.fit.result import FitResult
from diffbisim.fit.simulators import SimulatorFit, fit_simulator
from diffbisim.gaussian import LinearGaussian
from diffbisim.optimize.checkpoint import Session
from diffbisim.optimize.loop import Callback, Run, Watch
from diffbisim.optimize.steps import Annealed, PolyakLevel
from diffbisim.process import as_process
from diffbisim.progress import Progress
from diffbisim.quantize import is_paths
from diffbisim.questions import Question
from diffbisim.solvers import Exact, Somcot

#: Iterations of SOMCOT per step, where it is chosen for a stream.
INNER = 4000


def fit(
    target: Any,
    kernel: Any,
    cost: Any = "reward",
    discount: float = 0.95,
    *,
    initial: Any = None,
    rewards: Any = None,
    solver: Any = None,
    steps: int | None = None,
    tol: float = 1e-8,
    attainable: bool | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    scheduler: Callable[[Any], Any] | None = None,
    loop: str = "double",
    warm: bool = True,
    inner_gap: float = 0.05,
    unseen: Any = "error",
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    callback: Callback | None = None,
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    every: int = 10,
) -> FitResult:
    """Fit a Markov model to a chain or to data: minimize the distance over the parameters of a torch module.

    Parameters
    ----------
    target : a MarkovChain, Transitions (then its empirical chain), or a Stream, known by its samples only. For a list
        of (T, d) arrays, trajectories with continuous states, this is :func:`diffbisim.fit_simulator`
    kernel : a torch module whose output is a row-stochastic matrix, e.g. from :mod:`diffbisim.fit.kernels`; for
        trajectories a :class:`diffbisim.LinearGaussian` to start from, or ``(simulate, parameters to start from)``
    cost : "reward", "indicator", an (n_X, n_Y) array, or a torch module that returns one (learned)
    discount : weight γ of the next step
    initial : start of the model: a state, a distribution, or a module (learned); default that of the target
    rewards : of the model's states: an array, or a module (learned); default those of the target
    solver : inner solver, a name or an object of :mod:`diffbisim.solvers`; by default exact, and for streams
        ``Somcot(4000)``, shorter runs than the 300,000 iterations of "somcot"
    steps : at most so many; by default 200, with SOMCOT 40
    tol : stop when the certified distance, or what is left to gain, is below this, relative to the largest cost
    attainable : True if distance zero can be reached, False if not, None if unknown (the level is then learned)
    optimizer : ``parameters -> torch optimizer`` instead of the step rule, e.g. ``lambda p: torch.optim.Adam(p, 0.1)``
    scheduler : ``optimizer -> scheduler``
    loop : "double" solves the inner problem at every step, "single" moves its variables along, once per step
    warm : whether inner solves start from the last solution
    inner_gap : certified gap of the inner solves, as a share of what the step expects to gain; 0 for the solver's own
    unseen : for Transitions, what follows a state that was never left; see :meth:`MarkovChain.from_transitions`
    criterion, horizon, weights : what distance, as for :func:`diffbisim.distance`; not for streams, and with
        ``loop="double"`` only
    callback : called with every row of history; returning True stops
    progress : True for a bar, or a callable ``(done, total)``
    checkpoint, every : file to write every so many steps; if it exists, the run goes on from there, to the same bits.
        The file of another run (target, model, cost, any option that matters to the result) is refused; only `steps`
        (unless they are annealed), `every`, `callback`, `progress` and the solver's threads and time limit may change

    Returns
    -------
    FitResult : ``chain``, ``parameters``, ``distance`` (certified, unless from a stream), ``history``, ``status``

    Examples
    --------
    >>> from diffbisim.data.examples import drift_walk
    >>> from diffbisim.fit.kernels import DriftWalk
    >>> result = fit(drift_walk(1.5), DriftWalk(-2.0))
    >>> round(float(result.parameters["drift"]), 6)
    1.5
    """
    if is_paths(target):
        return _fit_to_paths(dict(locals()))  # type: ignore[return-value]
    from diffbisim.fit.objectives import Model, few_threads, fitted_chain

    if loop not in ("double", "single"):
        raise InvalidArgument(f'loop is {loop!r}; use "double" or "single"')
    if scheduler is not None and optimizer is None:
        raise InvalidArgument("scheduler needs an optimizer; the step rule has its own schedule")
    if not (as_number(tol) > 0 and as_number(inner_gap) >= 0):
        raise InvalidArgument(f"tol = {tol!r} must be positive, and inner_gap = {inner_gap!r} at least 0")
    inner = inner_solver(solver, target, tol, loop)
    steps = check_count((40 if inner.samples else 200) if steps is None else steps, "steps")
    watch = Watch(steps, callback, progress, checkpoint, every)
    source = target_of(target, unseen, initial, rewards, inner.samples)
    model = Model(kernel, initial, rewards, cost)
    how: dict[str, Any] = {"loop": loop, "inner_gap": inner_gap, "warm": warm or loop == "single"}
    question = asked_of(inner, loop, criterion, horizon, weights)
    if question.is_usual:
        check_discount(discount)
    objective = make_objective(source, model, discount, inner, steps, question=question, **how)
    update = make_update(objective, attainable, optimizer, scheduler, loop, steps)

    def facts() -> dict[str, Any]:
        """All that makes this run another than others, but for where its parameters begin."""
        named = {"kernel": kernel, "initial": initial, "rewards": rewards, "cost": cost, "target": source}
        asked = {"discount": discount, "solver": inner, "tol": tol, **how, **update.facts(), **question.facts()}
        return {**named, **asked, **({"steps": steps} if inner.samples else {})}  # their lengths depend on it

    run = Run(objective, update, tol)
    with few_threads(model.parameters), Session(checkpoint, "fit", facts, model, "the kernel") as session:
        kept = session.read()
        status = watch.run(run, session, None if kept is None else kept["run"])
        result = objective.certify()
        chain = fitted_chain(objective, result)
        best = {name: p.detach().numpy().copy() for name, p in zip(model.names, objective.best(), strict=True)}
        return FitResult(chain, result, best, kernel, status, tuple(run.history), dict(objective.work))


def _fit_to_paths(given: dict[str, Any]) -> SimulatorFit:
    """Of the arguments of :func:`fit`, by :func:`fit_simulator`, which has other options."""
    kernel, cost = given["kernel"], given["cost"]
    for name, parameter in signature(fit).parameters.items():
        if name not in ("target", "kernel", "cost", "discount") and given[name] is not parameter.default:
            raise InvalidArgument(f"{name} is not for trajectories; fit_simulator has other options for them")
    if isinstance(kernel, LinearGaussian):
        kernel = (kernel, None)
    if not (isinstance(kernel, tuple) and len(kernel) == 2):
        raise InvalidArgument(
            f"kernel is a {type(kernel).__name__}; trajectories are fitted by a LinearGaussian to start from, or by "
            "(simulate, parameters to start from)"
        )
    named = "sqeuclidean" if isinstance(cost, str) and cost == "reward" else cost
    return fit_simulator(given["target"], *kernel, cost=named, discount=given["discount"])


def inner_solver(solver: Any, target: Any, tol: float, loop: str) -> Any:
    """The solver of the steps, tight enough for the goal."""
    if solver is None:
        inner: Any = Somcot(INNER) if isinstance(target, Stream) else Exact()
    else:
        inner = make_solver(solver)
    if loop == "single" and not inner.tracks:
        raise InvalidArgument(f'loop="single" needs solver="exact" or "somcot", not {solver!r}; use loop="double"')
    return replace(inner, tol=min(inner.tol, tol / 2)) if inner.tol is not None else inner


def asked_of(solver: Any, loop: str, criterion: str, horizon: Any, weights: Any) -> Question:
    """What distance is minimized; only discounted ones are followed in a single loop, or known by samples."""
    question = Question(criterion, horizon, weights)
    if not question.is_usual and (loop == "single" or solver.samples):
        raise InvalidArgument(
            'criterion, horizon and weights need loop="double" and a solver of known chains, e.g. solver="exact"'
        )
    return question


def make_objective(
    target: Any, model: Any, discount: float, solver: Any, steps: int, *, question: Question, loop: str,
    inner_gap: float, warm: bool,
) -> Any:  # fmt: skip
    """From samples where the solver takes them, tracked in a single loop, else exactly."""
    from diffbisim.fit.objectives import ExactObjective, Lowest, MeanOfTheLast, SampledObjective, TrackedObjective

    given = target, model, discount, solver
    if solver.samples:
        mean = MeanOfTheLast(model.snapshot(), steps)
        return SampledObjective(*given, mean, warm=warm, single=loop == "single", steps=steps)
    if loop == "single":
        return TrackedObjective(*given, MeanOfTheLast(model.snapshot(), steps))
    return ExactObjective(*given, Lowest(model.snapshot()), question, warm=warm, inner_gap=inner_gap)


def make_update(objective: Any, attainable: bool | None, optimizer: Any, scheduler: Any, loop: str, steps: int) -> Any:
    """By a rule, unless there is an optimizer, or the values are those of a single loop."""
    from diffbisim.fit.updates import CAP, OptimizerSteps, RuleSteps

    model, sampled = objective.model, objective.solver.samples
    few = min(20, 4 + 2 * sum(p.numel() for p in model.parameters))  # more parameters, more kinks to get past
    rule = Annealed(steps) if sampled else PolyakLevel(attainable=attainable, cap=CAP, patience=few)
    if loop == "single" and optimizer is None and not sampled:
        optimizer, scheduler = annealed(steps)
    if optimizer is None:
        return RuleSteps(objective, rule)
    return OptimizerSteps(model, rule, optimizer, scheduler)


def annealed(steps: int, rate: float = 0.05) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Adam, and a cosine that takes its rate to zero: for objectives whose values are estimates."""
    import torch

    def scheduler(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    return lambda parameters: torch.optim.Adam(parameters, rate), scheduler


def target_of(target: Any, unseen: Any, initial: Any, rewards: Any, sampling: bool) -> MarkovChain | Stream:
    """What to fit: a chain, or for a stochastic solver a stream."""
    target = as_process(target)
    if isinstance(target, MarkovChain):
        return Stream(target) if sampling else target
    if isinstance(target, Transitions):
        if not sampling:
            return empirical_chain(target, unseen, initial, rewards)
        return Stream(target, **_shared(target, initial, rewards))
    if isinstance(target, Stream):
        if sampling:
            return target
        raise InvalidArgument('target is a stream, which needs a stochastic inner solver: solver="somcot"')
    raise InvalidArgument(
        f"target is a {type(target).__name__}; give a MarkovChain, Transitions, or a stream: "
        "diffbisim.Stream(iterable, n_states=...)"
    )


def empirical_chain(data: Transitions, unseen: Any, initial: Any, rewards: Any) -> MarkovChain:
    """The chain of data."""
    return data.chain(unseen=unseen, **_shared(data, initial, rewards))


def _shared(data: Transitions, initial: Any, rewards: Any) -> dict[str, Any]:
    """The constants of the model that hold for the data as well."""
    return {
        name: value
        for name, value in (("initial", initial), ("rewards", rewards))
        if value is not None and not callable(value) and np.size(value) in (1, data.n_states)
    }
