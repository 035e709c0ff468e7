"""D-BOT (the paper's Algorithm 1): fit a parametrized Markov model by gradient descent on the metric.

    repeat    solve      d(X, Y_θ) with the inner solver, warm-started, only as accurately as the step needs
              gradient   g = ∇_θ d from the envelope theorem (Theorem 1) and a backward pass through the model
              step       θ ← θ - η n, with the natural direction n (updates.py) and Polyak's step length η (steps.py)
    restart    if steps fail, also from starts that anybody would try (starts.py)
    until     the certified distance is within tol of zero, or the level shows that no further gain is possible

The distance d is sharp at an attainable minimum: with a fixed step size, iterates oscillate around it or approach it
very slowly. The default step rule has nothing to tune; any torch optimizer and scheduler can replace it. The best
iterate is kept and certified at the end.

*Tolerance.* A step that can gain at most d - ℓ does not benefit from an inner gap far below that. The inner gap is
therefore a fraction of d - ℓ (`inner_gap`, one twentieth by default).

*Single loop* (``loop="single"``, left open in the paper). Parameters and inner variables move together: one sweep of
the inner solver per step, with pivots only where they matter (exact/tracking.py). The value is a moving estimate that
becomes exact as the steps shrink, so the default is Adam with a learning rate annealed to zero. The mean of the last
iterates is certified at the end.

*SOMCOT* (the default for streams). The target is known only through samples, and what was learned about it is kept
from step to step. Values are estimates, so natural steps use lengths that decrease to zero (`Annealed` in steps.py),
and the mean of the last iterates replaces the best one. With ``loop="single"`` the coupling, multipliers and
occupancies carry over between steps, with few iterations per step at first and more as the steps shrink.
"""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.common.checks import as_number, check_count, check_discount, refuse_given
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.progress import Progress
from diffbisim.distances.chains import check_discount_is_used, make_solver
from diffbisim.learning.fit.result import FitResult
from diffbisim.learning.fit.simulators import SimulatorFit, fit_simulator
from diffbisim.learning.optimize.checkpoint import Session
from diffbisim.learning.optimize.loop import Callback, LoopOptions, LoopRun
from diffbisim.learning.optimize.steps import Annealed, PolyakLevel
from diffbisim.problems import Criterion, criterion_of
from diffbisim.processes.cells import is_paths
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.convert import as_process
from diffbisim.processes.gaussian import LinearGaussian
from diffbisim.processes.streams import Stream
from diffbisim.solvers import Exact, Somcot

#: Default number of other starts.
RESTARTS = 4

#: Default number of SOMCOT iterations per step for a stream.
SOMCOT_ITERATIONS = 4000


def fit(
    target: Any,
    kernel: Any,
    cost: Any = "reward",
    discount: float = 0.95,
    *,
    initial: Any = None,
    rewards: Any = None,
    solver: Any = None,
    max_iterations: int | None = None,
    tol: float = 1e-8,
    attainable: bool | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    scheduler: Callable[[Any], Any] | None = None,
    loop: str = "double",
    warm: bool = True,
    inner_gap: float = 0.05,
    restarts: int | None = None,
    unseen: Any = "error",
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    callback: Callback | None = None,
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    every: int = 10,
) -> FitResult:
    """Fit a Markov model to a chain or to data by minimizing their distance over the parameters of a torch module.

    Parameters
    ----------
    target : MarkovChain, Transitions or Stream
        What to fit. Transitions are replaced by their empirical chain; a Stream is known only through its samples. A
        list of (T, d) arrays, trajectories with continuous states, is passed on to :func:`diffbisim.fit_simulator`.
    kernel : torch.nn.Module
        A module that returns a row-stochastic matrix, e.g. from ``diffbisim.kernels``. For trajectories, a
        :class:`diffbisim.LinearGaussian` to start from, or a tuple ``(simulate, initial parameters)``.
    cost : {"reward", "indicator"}, array of shape (n_X, n_Y) or torch.nn.Module, default="reward"
        Ground cost. A module that returns such an array is learned.
    discount : float, default=0.95
        Discount γ; refused where it has no effect, that is together with another criterion or `weights`.
    initial : int, array of shape (n_Y,) or torch.nn.Module, default=None
        Initial state or distribution of the model; a module is learned. None uses that of the target.
    rewards : array of shape (n_Y,) or torch.nn.Module, default=None
        Rewards of the model's states; a module is learned. None uses those of the target.
    solver : str or solver, default=None
        Inner solver, a name or an object of :mod:`diffbisim.solvers`. None means exact, and ``Somcot(4000)`` for
        streams (shorter runs than the 300,000 iterations of "somcot").
    max_iterations : int, default=None
        Maximum number of iterations. None means 200, or 40 with SOMCOT.
    tol : float, default=1e-8
        Stop when the certified distance, or the possible further gain, is below this, relative to the largest cost.
    attainable : bool, default=None
        Whether a distance of zero can be reached. None means unknown: the attainable level is then learned.
    optimizer : callable, default=None
        ``parameters -> torch optimizer``, used instead of the step rule, e.g. ``lambda p: torch.optim.Adam(p, 0.1)``.
    scheduler : callable, default=None
        ``optimizer -> learning rate scheduler``.
    loop : {"double", "single"}, default="double"
        "double" solves the inner problem at every step; "single" updates its variables once per step.
    warm : bool, default=True
        Whether each inner solve starts from the previous solution.
    inner_gap : float, default=0.05
        Certified gap of the inner solves as a fraction of what the step can gain; 0 always uses the solver's own
        tolerance.
    restarts : int, default=None
        Number of other starts to descend from once the descent from the given parameters has failed to improve: those
        of maximum likelihood and of least squares (for a model with the states of the target), zero, and, for at most
        three parameters, points spread around zero. All are evaluated, and the best descend; all of this counts as
        iterations. 0 means only the given parameters. None means 4, and 0 where the parameters are moved by an
        `optimizer`, in a single loop or with SOMCOT, which do not restart.
    unseen : default="error"
        For Transitions, how to treat states without an observed successor; see :meth:`MarkovChain.from_transitions`.
        Refused for other targets and solvers, which have no such states.
    criterion, horizon, weights
        Which distance to minimize, as in :func:`diffbisim.distance`. Only with ``loop="double"``, and not for streams.
    callback : callable, default=None
        Called with every row of the history; returning True stops the fit.
    progress : bool or callable, default=False
        True for a progress bar, or a callable ``(done, total)``.
    checkpoint : str or Path, default=None
        File to write during the run. If it exists, the run resumes from it and gives bitwise the same result. A file of
        a different run (another target, model, cost or relevant option) is refused; only `max_iterations` (unless step
        lengths depend on it), `every`, `callback`, `progress` and the solver's threads and time limit may change.
    every : int, default=10
        Number of iterations between checkpoints.

    Returns
    -------
    FitResult
        With ``chain``, ``parameters``, ``distance`` (certified, except for streams), ``history`` and ``status``.

    Examples
    --------
    >>> from diffbisim.processes.examples import drift_walk
    >>> from diffbisim.learning.fit.kernels import DriftWalk
    >>> result = fit(drift_walk(1.5), DriftWalk(-2.0))
    >>> round(float(result.parameters["drift"]), 6)
    1.5
    """
    if is_paths(target):
        return _fit_to_paths(dict(locals()))  # type: ignore[return-value]
    from diffbisim.learning.fit.objectives import InnerProblem, LearnedModel, few_threads, fitted_chain

    if loop not in ("double", "single"):
        raise InvalidArgument(f'loop is {loop!r}; use "double" or "single"')
    if scheduler is not None and optimizer is None:
        raise InvalidArgument("scheduler needs an optimizer; pass optimizer=... too, or leave scheduler out")
    if not (as_number(tol) > 0 and as_number(inner_gap) >= 0):
        raise InvalidArgument(f"tol is {tol!r} and inner_gap is {inner_gap!r}; tol must be > 0 and inner_gap >= 0")
    inner = inner_solver(solver, target, tol, loop)
    restarts = _restarts(restarts, optimizer, loop, inner)
    limit = (40 if inner.samples else 200) if max_iterations is None else max_iterations
    max_iterations = check_count(limit, "max_iterations")
    watch = LoopOptions(max_iterations, callback, progress, checkpoint, every)
    source = _target(target, unseen, initial, rewards, inner.samples)
    model = LearnedModel(kernel, initial, rewards, cost)
    chosen = _criterion(inner, loop, criterion, horizon, weights)
    check_discount_is_used(discount, chosen)
    if chosen.is_default:
        check_discount(discount)
    problem = InnerProblem(source, discount, inner, chosen, warm or loop == "single")
    objective = _make_objective(problem, model, loop, max_iterations, inner_gap)
    update = _make_update(objective, (attainable, restarts, tol), (optimizer, scheduler), loop, max_iterations)

    def facts() -> dict[str, Any]:
        """Everything that identifies this run, except the initial parameters."""
        named = {"kernel": kernel, "initial": initial, "rewards": rewards, "cost": cost, "target": source}
        options = {"loop": loop, "inner_gap": inner_gap, "warm": problem.warm}
        asked = {"discount": discount, "solver": inner, "tol": tol, **options, **update.facts(), **chosen.facts()}
        lengths = {"max_iterations": max_iterations} if inner.samples else {}  # on which annealed lengths depend
        return {**named, **asked, **lengths}

    run = LoopRun(objective, update, tol)
    with few_threads(model.parameters), Session(checkpoint, "fit", facts, model, "the kernel") as session:
        kept = session.read()
        status = watch.run(run, session, None if kept is None else kept["run"])
        result = objective.certify()
        chain = fitted_chain(objective, result)
        best = {name: p.detach().numpy().copy() for name, p in zip(model.names, objective.best(), strict=True)}
        return FitResult(chain, result, best, kernel, status, tuple(run.history), dict(objective.work))


def _fit_to_paths(given: dict[str, Any]) -> SimulatorFit:
    """Pass the arguments of :func:`fit` on to :func:`fit_simulator`, rejecting options it does not have."""
    kernel, cost = given["kernel"], given["cost"]
    for name, parameter in signature(fit).parameters.items():
        if name not in ("target", "kernel", "cost", "discount") and given[name] is not parameter.default:
            raise InvalidArgument(
                f"{name} is not for trajectories with continuous states; see fit_simulator for their options"
            )
    if isinstance(kernel, LinearGaussian):
        kernel = (kernel, None)
    if not (isinstance(kernel, tuple) and len(kernel) == 2):
        raise InvalidArgument(
            f"kernel is a {type(kernel).__name__}; for trajectories, pass a LinearGaussian to start from or a tuple "
            "(simulate, initial parameters)"
        )
    cost = "sqeuclidean" if isinstance(cost, str) and cost == "reward" else cost
    return fit_simulator(given["target"], *kernel, cost=cost, discount=given["discount"])


def inner_solver(solver: Any, target: Any, tol: float, loop: str) -> Any:
    """Return the solver for the steps, with a tolerance no larger than half of `tol`."""
    if solver is None:
        inner: Any = Somcot(SOMCOT_ITERATIONS) if isinstance(target, Stream) else Exact()
    else:
        inner = make_solver(solver)
    if loop == "single" and not inner.tracks:
        raise InvalidArgument(f'loop="single" needs solver="exact" or "somcot", not {solver!r}; use loop="double"')
    return replace(inner, tol=min(inner.tol, tol / 2)) if inner.tol is not None else inner


def _criterion(solver: Any, loop: str, criterion: str, horizon: Any, weights: Any) -> Criterion:
    """Return which distance to minimize; a single loop and sampling solvers support only the discounted one."""
    chosen = criterion_of(criterion, horizon, weights)
    if not chosen.is_default and (loop == "single" or solver.samples):
        raise InvalidArgument(
            'criterion, horizon and weights need loop="double" and a solver for known chains, e.g. solver="exact"'
        )
    return chosen


def _make_objective(problem: Any, model: Any, loop: str, max_iterations: int, inner_gap: float) -> Any:
    """Return a sampled objective if the solver samples, a tracked one for a single loop, and an exact one otherwise."""
    from diffbisim.learning.fit.objectives import (
        ExactObjective,
        Lowest,
        MeanOfTheLast,
        SampledObjective,
        TrackedObjective,
    )

    if loop == "double" and not problem.solver.samples:
        return ExactObjective(problem, model, Lowest(model.snapshot()), inner_gap=inner_gap)
    mean = MeanOfTheLast(model.snapshot(), max_iterations)
    if problem.solver.samples:
        return SampledObjective(problem, model, mean, single=loop == "single", max_iterations=max_iterations)
    return TrackedObjective(problem, model, mean)


def _restarts(restarts: int | None, optimizer: Any, loop: str, solver: Any) -> int:
    """Return the number of restarts, which only the step rule has, on values that are not estimates."""
    descends = optimizer is None and loop == "double" and not solver.samples
    if restarts is None:
        return RESTARTS if descends else 0
    if check_count(restarts, "restarts", 0) and not descends:
        raise InvalidArgument(
            f"restarts is {restarts}, but an optimizer, a single loop and SOMCOT do not restart; leave it out"
        )
    return restarts


def _make_update(
    objective: Any, search: tuple[bool | None, int, float], chosen: tuple[Any, Any], loop: str, max_iterations: int
) -> Any:
    """Return the step rule, or a torch optimizer if one is given or the values come from a single loop."""
    from diffbisim.learning.fit.updates import CUTS, MAX_STEP, OptimizerSteps, RuleSteps

    (attainable, restarts, tol), (optimizer, scheduler) = search, chosen
    model, sampled = objective.model, objective.solver.samples
    size = sum(p.numel() for p in model.parameters)
    patience = min(20, 4 + 2 * size)  # more parameters mean more kinks
    shrink = 0.125 if size < CUTS else 0.5  # the cuts determine a sharp minimum of few parameters
    rule = Annealed(max_iterations) if sampled else PolyakLevel(attainable, MAX_STEP, patience=patience, shrink=shrink)
    if loop == "single" and optimizer is None and not sampled:
        optimizer, scheduler = annealed(max_iterations)
    if optimizer is None:
        return RuleSteps(objective, rule, restarts, tol)
    return OptimizerSteps(model, rule, optimizer, scheduler)


def annealed(max_iterations: int, rate: float = 0.05) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return factories of Adam and of a cosine schedule to zero, for objectives whose values are estimates."""
    import torch

    def scheduler(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max_iterations)

    return lambda parameters: torch.optim.Adam(parameters, rate), scheduler


def _target(target: Any, unseen: Any, initial: Any, rewards: Any, sampling: bool) -> MarkovChain | Stream:
    """Return the target as a chain, or as a stream if the solver samples."""
    target = as_process(target)
    if isinstance(target, Transitions) and not sampling:
        return empirical_chain(target, unseen, initial, rewards)
    reason = "samples have no rows to fill" if sampling else "the target is a chain, whose rows are all known"
    refuse_given(reason, {"unseen": "error"}, unseen=unseen)
    if isinstance(target, MarkovChain):
        return Stream(target) if sampling else target
    if isinstance(target, Transitions):
        return Stream(target, **_constants(target, initial, rewards))
    if isinstance(target, Stream):
        if sampling:
            return target
        raise InvalidArgument('target is a stream, which needs a stochastic inner solver; use solver="somcot"')
    raise InvalidArgument(
        f"target is a {type(target).__name__}; pass a MarkovChain, Transitions, or a stream, "
        "diffbisim.Stream(iterable, n_states=...)"
    )


def empirical_chain(data: Transitions, unseen: Any, initial: Any, rewards: Any) -> MarkovChain:
    """Return the empirical chain of the data."""
    return data.chain(unseen=unseen, **_constants(data, initial, rewards))


def _constants(data: Transitions, initial: Any, rewards: Any) -> dict[str, Any]:
    """Return the model's constant `initial` and `rewards`, where their sizes fit the data."""
    return {
        name: value
        for name, value in (("initial", initial), ("rewards", rewards))
        if value is not None and not callable(value) and np.size(value) in (1, data.n_states)
    }
