"""Imitation from observations: find the policy whose chain is closest to the expert's (the paper's Algorithm 3).

    min_π d(X, Y_π),        P_π(s'|s) = Σ_a π(a|s) P(s'|s,a)

Only the states of the expert are observed, neither actions nor rewards. Each outer iteration

    solves     the distance between the expert and the chain of the current policy, from the last solution
    computes   the reward r(s,s') = Σ_x λ_Y(x|s) α_Y(x,s,s') and the advantages A(s,a) = Σ_s' P(s'|s,a) r(s,s')
    moves      the policy along A, toward a level below the current distance (updates.py)

The best policy is kept, with certified bounds on its distance. There are two differences from the paper: the reward is
maximized with a plus sign, and it is re-estimated after every step instead of being maximized to convergence. The
printed version is available for comparison as ``update=BestResponse(printed_sign=True)``.

The distance is not convex in the policy. If the expert can be reproduced, the minimum is zero and sharp, and most runs
find it directly. A run that settles above zero restarts at its best policy, with more cuts and a fraction of random
actions (updates.py), and ends if none of these restarts improves. It has then most likely found a local minimum; there
is no proof that this minimum is global, or that the expert cannot be reproduced.

The loop is optimize/loop.py; the objective is in objective.py and the steps in updates.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, as_number, check_discount
from diffbisim.common.errors import InvalidArgument, InvalidCost
from diffbisim.common.progress import Progress
from diffbisim.distances.chains import check_discount_is_used
from diffbisim.learning.imitate.control.cells import on_cells
from diffbisim.learning.imitate.control.learning import Control, ControlResult, ImitationInputs, RoundOptions, track
from diffbisim.learning.imitate.environment import Sampling, TransitionCounts, explore
from diffbisim.learning.imitate.expert import (
    expert_chain,
    observations,
    simplest_policy,
    steps_seen,
    warn_if_elsewhere,
    warn_if_impossible,
)
from diffbisim.learning.imitate.learner import Learner, TabularLearner, make_learner
from diffbisim.learning.imitate.objective import DISCOUNTED, ImitationTask, PolicyObjective
from diffbisim.learning.imitate.result import ImitationResult
from diffbisim.learning.imitate.updates import PolicyRun, PolicyUpdate, make_update
from diffbisim.learning.optimize.checkpoint import RunCheckpoint, Session
from diffbisim.learning.optimize.loop import Callback, LoopOptions, LoopRun
from diffbisim.problems import Criterion, criterion_of
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.convert import check_lags
from diffbisim.processes.cost import ground_cost
from diffbisim.processes.environments import first_states, has_numbers, is_env, sizes
from diffbisim.processes.mdp import MDP
from diffbisim.processes.stochastic import as_generator
from diffbisim.results.base import Status

#: Number of outer iterations of a round on cells.
CELL_ITERATIONS = 60


def imitate(
    mdp: Any,
    expert: Any,
    cost: Any = "indicator",
    discount: float = 0.95,
    *,
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    terminal: Any = None,
    rng: int | np.random.Generator = 0,
    policy: Any = None,
    features: Any = None,
    update: Any = "natural",
    attainable: bool | None = None,
    max_iterations: int = 300,
    tol: float = 1e-7,
    solver: Any = None,
    simplest: bool = False,
    sampling: Sampling | Control | None = None,
    callback: Callback | None = None,
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    every: int = 10,
) -> Any:
    """Find the policy whose chain is closest to the expert's, from observed states alone.

    Parameters
    ----------
    mdp : MDP or gymnasium.Env
        Where the learner acts. An environment with Discrete observations and actions is only sampled (environment.py);
        for Box observations see `policy`.
    expert : MarkovChain, Transitions, tuple or list
        The expert: a chain, Transitions (without actions or rewards), a pair of arrays (s, s_next), or a list of
        trajectories (state sequences). For Box observations, a list of (T, k) arrays, a Stable-Baselines3 model, or a
        function from observation to action.
    cost : {"indicator", "reward"}, array of shape (expert states, MDP states) or callable, default="indicator"
        Ground cost. With "indicator" the expert's states are the learner's; with any other cost the expert may have its
        own state space.
    discount : float, default=0.95
        Discount γ. It is refused where it has no effect, that is with the average or total cost and with `weights`.
    criterion, horizon, weights, terminal
        Which distance to minimize, as in :func:`diffbisim.distance`. Other criteria than "discounted" need a known MDP
        and the update "natural" or "gradient".
    rng : int or numpy.random.Generator, default=0
        Seed of updates and environments that sample.
    policy : array of shape (n_states, n_actions) or torch.nn.Module, default=None
        Initial policy; None means uniform. A module maps state numbers, or the rows of `features`, to logits, and is
        trained in place. For Box observations, the method: "tracking" (default) or "markov", on cells
        (docs/control.md). Then only `discount`, `rng`, `features`, `sampling`, `callback`, `progress` and `checkpoint`
        apply, the last three to rounds; other options are refused.
    features : array of shape (n_states, k), default=None
        Inputs of a module as policy. For Box observations, the observed features of the expert: columns, or a function
        from (n, d) to (n, k).
    update : {"natural", "gradient", "sampled", "best-response"} or Update, default="natural"
        How the policy moves; see :mod:`diffbisim.learning.imitate.updates`.
    attainable : bool, default=None
        True if the expert can be reproduced exactly, so that every step aims at zero. None means unknown: the level is
        then learned.
    max_iterations : int, default=300
        Maximum number of outer iterations.
    tol : float, default=1e-7
        Stop when the distance is below `tol` times the largest cost, or when almost nothing is left to gain.
    solver : str or solver, default=None
        Solver of the intermediate distances, as in :func:`diffbisim.distance`. None means exact, with a gap three
        digits below the distance. The final distance is always exact.
    simplest : bool, default=False
        Return the policy that takes the most likely action in every state if the data cannot distinguish it from the
        best policy (its distance is within 1.96 standard errors, expert.py). Needs data, not a chain, as expert.
    sampling : Sampling or Control, default=None
        How an environment is sampled: ``Sampling(steps=...)`` of :mod:`diffbisim.learning.imitate.environment`, or, for
        Box observations, ``Control(steps=...)`` of :mod:`diffbisim.learning.imitate.control`.
    callback : callable, default=None
        Called with every row of the history; returning True stops the run.
    progress : bool or callable, default=False
        True for a progress bar, or a callable ``(done, total)``.
    checkpoint : str or Path, default=None
        File to write during the run, and after every round in an environment. If it exists, the run resumes from it and
        gives bitwise the same result. A file of a different run is refused; only `max_iterations`, `simplest`, `every`,
        `callback`, `progress` and the solver's threads and time limit may change.
    every : int, default=10
        Number of iterations between checkpoints.

    Returns
    -------
    ImitationResult
        With ``policy``, ``distance`` (certified), ``history`` and ``reward``. With the update "natural" and a table as
        policy, no simple policy is closer to the expert (uniform, constant, most likely by an inverse model, its most
        likely actions, and all deterministic ones if they are at most 64). For Box observations, a
        :class:`~diffbisim.learning.imitate.control.ControlResult` with ``reset``, ``act``, ``walk`` and ``history``.

    Examples
    --------
    >>> from diffbisim import examples
    >>> mdp = examples.imitation_chain()
    >>> expert = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon=0.4))
    >>> imitate(mdp, expert, discount=0.9, tol=1e-3).distance.value < 1e-3
    True
    """
    if not as_number(tol) > 0 or not as_number(max_iterations) >= 1:
        raise InvalidArgument(f"tol is {tol!r} and max_iterations is {max_iterations!r}; both must be positive")
    chosen = criterion_of(criterion, horizon, weights, terminal)
    check_discount_is_used(discount, chosen)
    if simplest and not (is_env(mdp) and has_numbers(mdp)):
        expert = _data_for_simplest(expert, policy, chosen)
    watch = LoopOptions(max_iterations, callback, progress, checkpoint, every)
    asked = Request(
        expert, cost, check_discount(discount) if chosen.is_default else discount, make_update(update), tol, solver,
        attainable, as_generator(rng), policy, features, chosen,
    )  # fmt: skip
    if is_env(mdp) and has_numbers(mdp):
        given = {"cost": cost, "criterion": criterion, "horizon": horizon, "weights": weights, "terminal": terminal,
                 "update": update, "attainable": attainable, "max_iterations": max_iterations, "tol": tol,
                 "solver": solver, "simplest": simplest, "every": every}  # fmt: skip
        refuse_for_box(given)
        return in_box(mdp, asked, sampling, watch)
    if isinstance(sampling, Control):
        raise InvalidArgument("sampling is a Control, which needs an environment with Box observations; pass Sampling")
    if isinstance(mdp, MDP):
        if sampling is not None:
            raise InvalidArgument("sampling is given, but mdp is a known MDP, which is not sampled; leave sampling out")
        found = in_mdp(mdp, asked, watch)
    elif is_env(mdp):
        refuse_for_sampled(chosen)
        found = in_environment(mdp, asked, watch, sampling or Sampling())
    else:
        raise InvalidArgument(
            f"mdp is a {type(mdp).__name__}; pass diffbisim.MDP(kernels, initial=...) or a Gymnasium environment with "
            "Discrete observations and actions"
        )
    return simplest_policy(found, steps_seen(expert, found.mdp, asked.shared)) if simplest else found


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of :func:`imitate` that do not depend on where the learner acts."""

    expert: Any
    cost: Any
    discount: float
    update: PolicyUpdate
    tol: float
    solver: Any = None
    attainable: bool | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    policy: Any = None
    features: Any = None
    criterion: Criterion = DISCOUNTED

    def task(self, mdp: MDP) -> ImitationTask:
        """Return the task, with the expert as a chain and the cost as a table."""
        x = expert_chain(self.expert, mdp, self.shared)
        return ImitationTask(x, mdp, learner_cost(self.cost, x, mdp), self.discount, self.criterion)

    @property
    def shared(self) -> bool:
        """Whether the expert's states are the learner's."""
        return isinstance(self.cost, str) and self.cost == "indicator"

    def learner(self, mdp: MDP) -> Learner:
        return make_learner(self.policy, mdp, self.features)

    def run(self, task: ImitationTask, learner: Learner, objective: type[PolicyObjective] = PolicyObjective) -> LoopRun:
        """Return the loop for a task, starting from the learner's current policy."""
        minimized = objective(task, learner, self.solver)
        return LoopRun(minimized, PolicyRun.begin(self.update, minimized, self.rng, self.attainable), self.tol)

    def facts(self, **more: Any) -> dict[str, Any]:
        """Return everything that identifies this run."""
        own = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "criterion"}
        return own | self.criterion.facts() | more


def finished(run: LoopRun, status: Status) -> ImitationResult:
    """Return the closest policy with its exact distance."""
    objective: Any = run.objective
    update: Any = run.update
    ended = status not in (Status.REACHED, Status.INTERRUPTED)
    if ended and update.update.compares and objective.take_simple():
        best = objective.closest.result
        status = Status.REACHED if best.upper <= run.tol * (best.problem.scale or 1.0) else status
    distance = objective.certify()
    return ImitationResult(objective.closest.policy, distance, tuple(run.history), objective.task.mdp, status)


def in_mdp(mdp: MDP, asked: Request, watch: LoopOptions) -> ImitationResult:
    """Imitate in a known MDP."""
    task, learner = asked.task(mdp), asked.learner(mdp)
    check_lags((task.expert, mdp), ("expert", "mdp"))
    if asked.shared and task.expert.n_states == mdp.n_states:
        warn_if_elsewhere(task.expert, mdp, asked.criterion)
        warn_if_impossible(task.expert, mdp, asked.criterion)

    def facts() -> dict[str, Any]:
        return asked.facts(mdp=mdp, expert=task.expert, cost=task.cost)

    with Session(watch.checkpoint, "imitate", facts, learner, "policy") as session:
        kept, run = session.read(), asked.run(task, learner)
        return finished(run, watch.run(run, session, None if kept is None else kept["run"]))


def in_environment(env: Any, asked: Request, watch: LoopOptions, sampling: Sampling) -> ImitationResult:
    """Alternate sampling and imitation in the optimistic model; the last run uses the empirical model."""
    if not isinstance(asked.expert, MarkovChain):
        asked = replace(asked, expert=observations(asked.expert))
    model = TransitionCounts(*sizes(env))
    learner = asked.learner(model.mdp())
    rounds = ExplorationRounds(env, asked, sampling, model, learner)

    def facts() -> dict[str, Any]:
        return asked.facts(environment=_environment_facts(env), cost=asked.task(model.mdp()).cost, sampling=sampling)

    with Session(watch.checkpoint, "imitate", facts, learner, "policy") as session:
        kept = session.read()
        if kept is not None:
            rounds.resume(kept)
        for _ in rounds.left():
            rounds.advance()
            session.write(lambda: {**rounds.state(), "run": None})
        task = asked.task(model.mdp())
        if asked.shared and task.expert.n_states == model.n_states:
            warn_if_impossible(task.expert, task.mdp, asked.criterion, model.known(sampling.enough))
        run = asked.run(task, learner)
        return finished(run, watch.run(run, session, kept and kept["run"], rounds.state()))


def refuse_for_sampled(criterion: Criterion) -> None:
    """Raise if another distance than the discounted one is requested where transitions are sampled."""
    if not criterion.is_default:
        name = next(iter(criterion.options), "criterion")
        raise InvalidArgument(
            f"{name} is given, but mdp is an environment, for which only the discounted distance is available; "
            f"leave {name} out, or pass its MDP, environments.from_env(env), or an MDP estimated from transitions"
        )


def refuse_for_box(given: Mapping[str, Any]) -> None:
    """Raise if an option is given that has no meaning for Box observations."""
    defaults = inspect.signature(imitate).parameters
    for name, value in given.items():
        usual = defaults[name].default
        if value is not usual and (type(value) is not type(usual) or value != usual):
            raise InvalidArgument(
                f"{name} is given, but mdp has Box observations, for which it is fixed: the method follows recorded "
                f"paths in rounds; leave {name} out, and see sampling=diffbisim.control.Control(...)"
            )


def in_box(env: Any, asked: Request, sampling: Any, watch: LoopOptions) -> ControlResult:
    """Imitate in an environment with Box observations, by tracking or on cells."""
    method = "tracking" if asked.policy is None else asked.policy
    if method not in ("tracking", "markov"):
        raise InvalidArgument(f'policy is {method!r}; for Box observations use "tracking" or "markov"')
    if sampling is not None and not isinstance(sampling, Control):
        raise InvalidArgument(
            f"sampling is a {type(sampling).__name__}; for Box observations pass "
            "sampling=diffbisim.control.Control(...)"
        )
    lesson = ImitationInputs.of(env, asked.expert, asked.features, sampling or Control(), asked.discount, asked.rng)
    rounds = RoundOptions(watch.callback, watch.progress, None if watch.checkpoint is None else RunCheckpoint(
        watch.checkpoint, "imitate", {
            "environment": _box_facts(env), "demonstrations": [*lesson.shown.paths, list(lesson.shown.ended)],
            "discount": asked.discount, "policy": method, "features": asked.features, "sampling": lesson.options,
            "rng": lesson.rng,
        }))  # fmt: skip
    if method == "tracking":
        return track(lesson, rounds)

    def solve(mdp: MDP, expert: MarkovChain, cost: Floats, discount: float) -> ImitationResult:
        tabular = replace(asked, expert=expert, cost=cost, discount=discount, policy=None, features=None, tol=1e-2)
        return in_mdp(mdp, tabular, LoopOptions(CELL_ITERATIONS, None, False, None, 1))

    return on_cells(lesson, solve, rounds)


class ExplorationRounds:
    """The rounds in which an environment is explored, as far as imitation needs it.

    A separate table explores, and the last run starts from the caller's policy: a policy learned from fewer data is a
    worse start than a uniform one. A module is trained on the data of the table; then it acts itself, because it may
    reach other states, and is trained again.

    Every round resets the environment with its own seed, so a checkpoint needs only the counts and the generator.
    """

    def __init__(self, env: Any, asked: Request, sampling: Sampling, model: TransitionCounts, learner: Learner) -> None:
        self.env, self.asked, self.sampling, self.model, self.learner = env, asked, sampling, model, learner
        self.rng, self.batches, self.done = asked.rng, sampling.batches(), 0
        self.policy = learner.table()
        self.uniform = np.full_like(self.policy, 1.0 / model.n_actions)

    def left(self) -> range:
        """Return the numbers of the remaining rounds."""
        return range(self.done, len(self.batches) + (not self.learner.is_table))

    def advance(self) -> None:
        """Run one round: random actions first, then the table's policy, and the module's own policy at the end."""
        if self.done == 0:
            self.model.add_starts(first_states(self.env, self.sampling.resets, self.rng))
            self._explore(self.uniform, 1.0, self.batches[0])
        elif self.done < len(self.batches):
            self.policy = self._optimistic_policy()
            self._explore(self.policy, self.sampling.explore, self.batches[self.done])
        else:
            self._few_iterations(self.asked.task(self.model.mdp()), self.learner)
            self._explore(self.learner.table(), self.sampling.explore, self.batches[-1])
        self.done += 1

    def _explore(self, policy: Floats, share: float, steps: int) -> None:
        explore(self.env, self.model, policy, share, steps, self.rng)

    def _optimistic_policy(self) -> Floats:
        """Imitate in the model where unknown actions lead to an additional state ⊤ that costs nothing."""
        task = self.asked.task(self.model.mdp())
        free = np.hstack([task.cost, np.zeros((len(task.cost), 1))])
        optimistic = replace(task, mdp=self.model.optimistic_mdp(self.sampling.enough), cost=free)
        soft = 0.9 * self.policy + 0.1 * self.uniform  # the last policy was learned from fewer data
        run = self._few_iterations(optimistic, TabularLearner(np.vstack([soft, self.uniform[:1]])))
        policy: Floats = run.objective.closest.policy
        return policy[: self.model.n_states]

    def _few_iterations(self, task: ImitationTask, learner: Learner) -> Any:
        run = self.asked.run(task, learner)
        run.until_done(max(self.sampling.iterations, 1))
        return run

    def state(self) -> dict[str, Any]:
        return {"rounds": self.done, "model": self.model.state(), "policy": self.policy, "rng": self.rng}

    def resume(self, state: Mapping[str, Any]) -> None:
        self.done, self.policy = state["rounds"], state["policy"]
        self.model.resume(state["model"])
        self.rng.bit_generator.state = state["rng"].bit_generator.state


def _environment_facts(env: Any) -> list[Any]:
    """Return what identifies an environment: class, name, options, sizes, and its table if it has one."""
    inner, spec = getattr(env, "unwrapped", env), getattr(env, "spec", None)
    named = [getattr(spec, "id", None), getattr(spec, "kwargs", None)]
    return [type(inner), named, sizes(env), getattr(inner, "P", None), getattr(inner, "mdp", None)]


def _box_facts(env: Any) -> list[Any]:
    """Return what identifies an environment with Box observations: class, name, options and spaces."""
    inner, spec = getattr(env, "unwrapped", env), getattr(env, "spec", None)
    named = [getattr(spec, "id", None), getattr(spec, "kwargs", None)]
    return [type(inner), named, str(env.observation_space), str(env.action_space)]


def _data_for_simplest(expert: Any, policy: Any, criterion: Criterion) -> Transitions:
    """Return the observations that ``simplest=True`` needs, or raise."""
    if criterion.kind.may_be_infinite:
        raise InvalidArgument(
            "simplest=True is not available for the total criterion, because the total cost of a deterministic policy "
            "may be infinite; leave simplest out"
        )
    if isinstance(expert, MarkovChain):
        raise InvalidArgument(
            "simplest=True needs data to estimate a sampling error, but expert is a MarkovChain, which is known "
            "exactly; pass Transitions or trajectories, or leave simplest out"
        )
    if policy is not None and hasattr(policy, "parameters"):
        raise InvalidArgument("simplest=True returns a table; leave it out if policy is a torch module")
    return observations(expert)


def learner_cost(cost: Any, expert: MarkovChain, mdp: MDP) -> Floats:
    """Return the cost table of shape (expert states, MDP states), which must not depend on the policy."""
    if isinstance(cost, str) and cost == "reward" and mdp.rewards is not None and mdp.rewards.ndim == 2:
        raise InvalidCost(
            'cost is "reward", but the rewards of this MDP depend on the action, so the cost would change with the '
            "policy; give the MDP one reward per state, or pass an array as cost"
        )
    return ground_cost(cost, expert, mdp.induced_chain(mdp.uniform_policy()))
