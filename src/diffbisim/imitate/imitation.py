"""Imitation from observations: find the policy whose chain is closest to the expert's (the paper's Algorithm 3).

    min_π d(X, Y_π),        P_π(s'|s) = Σ_a π(a|s) P(s'|s,a)

Only states of the expert are seen, no actions and no rewards. Each outer iteration

    solve      the distance between the expert and the current policy's chain, exactly, from the last solution
    reward     r(s,s') = Σ_x λ_Y(x|s) α_Y(x,s,s'), and A(s,a) = Σ_s' P(s'|s,a) r(s,s'), the advantage of an action
    move       the policy, along A to a level below the distance (updates.py)

and the best policy is kept, with certified bounds on its distance. Differences from the paper: the reward is
maximized with a plus sign, and it is re-estimated after every step instead of being maximized to the end; both as
printed are there to compare with, ``update=BestResponse(printed_sign=True)``.

The distance is not convex in the policy. Where the expert can be reproduced the minimum is zero and sharp. Steps find
it most of the time at once; a run that settles above zero begins again at its best policy, with more cuts and with a
share of random actions (updates.py), and gives up when none of that comes closer. It then is in a local minimum, as far
as it can tell; whether that is the least one, or whether the expert can be reproduced, nobody has proven.

The loop itself is optimize/loop.py; what is evaluated, objective.py; how the policy moves, updates.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import Floats, as_number, check_discount
from diffbisim.cost import ground_cost
from diffbisim.data.gymnasium import first_states, has_numbers, is_env, sizes
from diffbisim.errors import InvalidArgument, InvalidCost
from diffbisim.imitate.control.cells import on_cells
from diffbisim.imitate.control.learning import Control, ControlResult, Lesson, track
from diffbisim.imitate.environment import Model, Sampling, explore
from diffbisim.imitate.expert import (
    expert_chain,
    observations,
    simplest_policy,
    steps_seen,
    warn_if_elsewhere,
    warn_if_impossible,
)
from diffbisim.imitate.learner import Learner, TabularLearner, make_learner
from diffbisim.imitate.objective import DISCOUNTED, PolicyObjective, Task
from diffbisim.imitate.result import ImitationResult
from diffbisim.imitate.updates import Update, Walk, make_update
from diffbisim.mdp import MDP
from diffbisim.optimize.checkpoint import Session
from diffbisim.optimize.loop import Callback, Run, Watch
from diffbisim.progress import Progress
from diffbisim.questions import Question
from diffbisim.results import Status
from diffbisim.stochastic import as_generator

#: Outer iterations of a round on cells.
ON_CELLS = 20


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
    """The policy whose chain is closest to the expert's, from observed states alone.

    Parameters
    ----------
    mdp : what the learner acts in: an :class:`~diffbisim.MDP`, or a Gymnasium environment with Discrete observations
        and actions, which is then only sampled (environment.py); where observations are a Box, see `policy`
    expert : a MarkovChain, ``Transitions`` (no actions, no rewards), a pair of arrays (s, s_next), or a list of
        trajectories (state sequences); where observations are a Box, a list of (T, k) arrays, or who acts: a model of
        Stable-Baselines3, or a function from observation to action
    cost : "indicator" (the expert's states are the learner's), "reward", an array (expert states, MDP states), or a
        callable; with anything but "indicator" the expert may live in a state space of its own
    discount : weight γ of the next step
    criterion, horizon, weights, terminal : what distance, as for :func:`diffbisim.distance`; other ones than the
        discounted in a known MDP only, with the updates "natural" and "gradient"
    rng : seed or Generator, for the updates that sample
    policy : where to begin: a table (n_states, n_actions), or a torch module that maps state numbers, or the rows of
        ``features``, to logits; it is trained in place (default: a uniform table). Where observations are a Box: how
        to imitate, "tracking" (default) or "markov", on cells (docs/control.md); `cost`, `update` and what they need
        are then not for the caller to choose
    features : (n_states, k) numbers, what a module as policy sees of the states; where observations are a Box, what of
        them the expert shows: columns, or a function from (n, d) to (n, k)
    update : "natural", "gradient", "sampled", "best-response", or an object of :mod:`diffbisim.imitate.updates`
    attainable : True if the expert can be reproduced exactly, so that every step aims at zero (default: learned)
    max_iterations, tol : it stops when the distance is below ``tol`` times the largest cost, or when the level says
        that next to nothing is left to gain
    solver : of the distances on the way, a name or an object as for :func:`diffbisim.distance`; by default exact, to
        three digits beyond the distance itself; the last one is always exact
    simplest : take the most likely action of every state if the data cannot tell that policy from the best one (its
        distance is within 1.96 standard errors of sampling, expert.py); the expert must be data, not a chain
    sampling : how an environment is sampled, ``Sampling(steps=...)`` of :mod:`diffbisim.imitate.environment`, or
        ``Control(steps=...)`` of :mod:`diffbisim.imitate.control` where observations are a Box
    callback : called with every row of history; returning True stops the run
    progress : True for a bar, or a callable ``(done, total)``
    checkpoint, every : file to write every so many iterations, and after every round in an environment; if it exists,
        the run goes on from there, to the same bits. The file of another run is refused; `max_iterations`, `simplest`,
        `every`, `callback`, `progress` and the solver's threads and time limit may change

    Returns
    -------
    ImitationResult : ``policy``, ``distance`` (certified), ``history``, ``reward``. Where observations are a Box a
        :class:`~diffbisim.imitate.control.ControlResult`: ``reset``, ``act``, ``walk``, ``history``

    Examples
    --------
    >>> from diffbisim import examples
    >>> mdp = examples.imitation_chain()
    >>> expert = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon=0.4))
    >>> imitate(mdp, expert, discount=0.9, tol=1e-3).distance.value < 1e-3
    True
    """
    if not as_number(tol) > 0 or not as_number(max_iterations) >= 1:
        raise InvalidArgument(f"tol = {tol!r} and max_iterations = {max_iterations!r} must be positive")
    question = Question(criterion, horizon, weights, terminal)
    if simplest:
        expert = _data_for_the_rule(expert, policy, question)
    watch = Watch(max_iterations, callback, progress, checkpoint, every)
    asked = Request(
        expert, cost, check_discount(discount) if question.is_usual else discount, make_update(update), tol, solver,
        attainable, as_generator(rng), policy, features, question,
    )  # fmt: skip
    if is_env(mdp) and has_numbers(mdp):
        return in_numbers(mdp, asked, sampling)
    if isinstance(sampling, Control):
        raise InvalidArgument("sampling is a Control, which is for environments whose observations are a Box")
    if isinstance(mdp, MDP):
        found = in_mdp(mdp, asked, watch)
    elif is_env(mdp):
        if not question.is_usual:
            raise InvalidArgument(
                "mdp is an environment, which is explored for the discounted distance only; for another criterion give "
                "its table, data.gymnasium.from_env(env), or an MDP made of what was seen"
            )
        found = in_environment(mdp, asked, watch, sampling or Sampling())
    else:
        raise InvalidArgument(
            f"mdp is a {type(mdp).__name__}; make an MDP with diffbisim.MDP(kernels, initial=...), or give a "
            "Gymnasium environment with Discrete observations and actions"
        )
    return simplest_policy(found, steps_seen(expert, found.mdp, asked.shared)) if simplest else found


@dataclass(frozen=True, eq=False)
class Request:
    """All that a caller wants, but for what the learner acts in."""

    expert: Any
    cost: Any
    discount: float
    update: Update
    tol: float
    solver: Any = None
    attainable: bool | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    policy: Any = None
    features: Any = None
    question: Question = DISCOUNTED

    def task(self, mdp: MDP) -> Task:
        """The expert as a chain and the cost as a table, checked."""
        x = expert_chain(self.expert, mdp, self.shared)
        return Task(x, mdp, learner_cost(self.cost, x, mdp), self.discount, self.question)

    @property
    def shared(self) -> bool:
        """Whether the expert's states are the learner's."""
        return isinstance(self.cost, str) and self.cost == "indicator"

    def learner(self, mdp: MDP) -> Learner:
        return make_learner(self.policy, mdp, self.features)

    def run(self, task: Task, learner: Learner, objective: type[PolicyObjective] = PolicyObjective) -> Run:
        """The loop for a task, from where the learner is."""
        minimized = objective(task, learner, self.solver)
        return Run(minimized, Walk.begin(self.update, minimized, self.rng, self.attainable), self.tol)

    def facts(self, **more: Any) -> dict[str, Any]:
        """All that makes this run another than others."""
        own = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "question"}
        return own | self.question.facts() | more


def finished(run: Run, status: Status) -> ImitationResult:
    """The closest policy with its exact distance."""
    objective: Any = run.objective
    distance = objective.certify()
    return ImitationResult(objective.closest.policy, distance, tuple(run.history), objective.task.mdp, status)


def in_mdp(mdp: MDP, asked: Request, watch: Watch) -> ImitationResult:
    """In known dynamics."""
    task, learner = asked.task(mdp), asked.learner(mdp)
    if asked.shared and task.expert.n_states == mdp.n_states:
        warn_if_elsewhere(task.expert, mdp, asked.question)
        warn_if_impossible(task.expert, mdp, asked.question)

    def facts() -> dict[str, Any]:
        return asked.facts(mdp=mdp, expert=task.expert, cost=task.cost)

    with Session(watch.checkpoint, "imitate", facts, learner, "policy") as session:
        kept, run = session.read(), asked.run(task, learner)
        return finished(run, watch.run(run, session, None if kept is None else kept["run"]))


def in_environment(env: Any, asked: Request, watch: Watch, sampling: Sampling) -> ImitationResult:
    """Rounds of acting, counting and imitating in the optimistic model; the last in the model as it was seen."""
    if not isinstance(asked.expert, MarkovChain):
        asked = replace(asked, expert=observations(asked.expert))
    model = Model(*sizes(env))
    learner = asked.learner(model.mdp())
    rounds = Rounds(env, asked, sampling, model, learner)

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
            warn_if_impossible(task.expert, task.mdp, asked.question, model.known(sampling.enough))
        run = asked.run(task, learner)
        return finished(run, watch.run(run, session, kept and kept["run"], rounds.state()))


def in_numbers(env: Any, asked: Request, sampling: Any) -> ControlResult:
    """Where observations are a Box: by tracking, or on cells."""
    how = "tracking" if asked.policy is None else asked.policy
    if how not in ("tracking", "markov"):
        raise InvalidArgument(f'policy is {how!r}; where observations are a Box use "tracking" or "markov"')
    if sampling is not None and not isinstance(sampling, Control):
        raise InvalidArgument("observations of mdp are a Box: pass sampling=diffbisim.imitate.control.Control(...)")
    lesson = Lesson.of(env, asked.expert, asked.features, sampling or Control(), asked.discount, asked.rng)
    if how == "tracking":
        return track(lesson)

    def solve(mdp: MDP, expert: MarkovChain, cost: Floats, discount: float) -> ImitationResult:
        own = replace(asked, expert=expert, cost=cost, discount=discount, policy=None, features=None, tol=1e-2)
        return in_mdp(mdp, own, Watch(ON_CELLS, None, False, None, 1))

    return on_cells(lesson, solve)


class Rounds:
    """The rounds in which an environment is explored, for the imitation's sake only.

    A table of its own goes to explore, and the last run begins where the caller wants it: what was learned while less
    was known is a worse start than a uniform policy. A module is trained in what the table has seen; then it acts
    itself, because it may lead elsewhere, and is trained again.

    Every round resets the environment with a seed of its own, so the counts and the generator are all that a
    checkpoint has to hold of it.
    """

    def __init__(self, env: Any, asked: Request, sampling: Sampling, model: Model, learner: Learner) -> None:
        self.env, self.asked, self.sampling, self.model, self.learner = env, asked, sampling, model, learner
        self.rng, self.batches, self.done = asked.rng, sampling.batches(), 0
        self.policy = learner.table()
        self.uniform = np.full_like(self.policy, 1.0 / model.n_actions)

    def left(self) -> range:
        return range(self.done, len(self.batches) + (not self.learner.is_table))

    def advance(self) -> None:
        """One round: at random first, then by the table, and by the module itself at the end."""
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
        """Imitation in the model where what is not known is taken for perfect: a state ⊤ more, which costs nothing."""
        task = self.asked.task(self.model.mdp())
        free = np.hstack([task.cost, np.zeros((len(task.cost), 1))])
        hopeful = replace(task, mdp=self.model.optimistic_mdp(self.sampling.enough), cost=free)
        soft = 0.9 * self.policy + 0.1 * self.uniform  # not too sure of what was learned from less
        run = self._few_iterations(hopeful, TabularLearner(np.vstack([soft, self.uniform[:1]])))
        policy: Floats = run.objective.closest.policy
        return policy[: self.model.n_states]

    def _few_iterations(self, task: Task, learner: Learner) -> Any:
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
    """What can be told of an environment: its class, name and options, sizes, and its table if it carries one."""
    inner, spec = getattr(env, "unwrapped", env), getattr(env, "spec", None)
    named = [getattr(spec, "id", None), getattr(spec, "kwargs", None)]
    return [type(inner), named, sizes(env), getattr(inner, "P", None), getattr(inner, "mdp", None)]


def _data_for_the_rule(expert: Any, policy: Any, question: Question) -> Transitions:
    """What ``simplest=True`` needs: observations to count, and a table to return."""
    if question.criterion == "total":
        raise InvalidArgument("simplest=True: a deterministic policy may never end, and its total be infinite")
    if isinstance(expert, MarkovChain):
        raise InvalidArgument(
            "simplest=True asks what the data can tell apart, and expert is a MarkovChain, which is known exactly; "
            "give Transitions or trajectories, or leave simplest out"
        )
    if policy is not None and hasattr(policy, "parameters"):
        raise InvalidArgument("simplest=True returns a table; leave it out with a module as policy")
    return observations(expert)


def learner_cost(cost: Any, expert: MarkovChain, mdp: MDP) -> Floats:
    """The cost table (expert states, MDP states), which must not depend on the policy."""
    if isinstance(cost, str) and cost == "reward" and mdp.rewards is not None and mdp.rewards.ndim == 2:
        raise InvalidCost(
            'cost "reward": the rewards of this MDP depend on the action, and would change with the policy; '
            "give it one reward per state, or pass cost= an array"
        )
    return ground_cost(cost, expert, mdp.induced_chain(mdp.uniform_policy()))
