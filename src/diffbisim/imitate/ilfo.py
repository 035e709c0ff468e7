"""Imitation from observations: find the policy whose chain is closest to the expert's (the paper's Algorithm 2).

    min_π d(X, Y_π),        P_π(s'|s) = Σ_a π(a|s) P(s'|s,a)

Only states of the expert are seen, no actions and no rewards. Each outer iteration

    solve      the distance between the expert and the current policy's chain, exactly, from the last solution
    reward     r(s,s') = Σ_x λ_Y(x|s) α_Y(x,s,s'), and A(s,a) = Σ_s' P(s'|s,a) r(s,s'), the advantage of an action
    move       the policy, along A to a level below the distance (updates.py)

and the best policy is kept, with certified bounds on its distance. Differences from the paper: the reward is
maximized with a plus sign, and it is re-estimated after every step instead of being maximized to the end; both as
printed are there to compare with, ``update=BestResponse(printed_sign=True)``.

The distance is not convex in the policy. Where the expert can be reproduced the minimum is zero and sharp, and steps
that aim at zero find it; where it cannot, the run settles in a local minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import Floats, check_discount
from diffbisim.cost import ground_cost
from diffbisim.distance import make_solver
from diffbisim.errors import InvalidArgument, InvalidCost
from diffbisim.imitate.expert import expert_chain, warn_if_impossible
from diffbisim.imitate.learner import Evaluation, make_learner
from diffbisim.imitate.result import Ending, ImitationResult
from diffbisim.imitate.updates import Natural, Update, Walk, make_update
from diffbisim.mdp import MDP
from diffbisim.planning import action_values
from diffbisim.problem import Problem
from diffbisim.progress import Progress, tracking
from diffbisim.results import DistanceResult
from diffbisim.solvers import Exact
from diffbisim.steps import PolyakLevel
from diffbisim.stochastic import as_generator

Callback = Callable[[Mapping[str, float]], object]

#: A run has settled when the level is this close to the best distance, relative to it.
SETTLED = 1e-4


def imitate(
    mdp: MDP,
    expert: Any,
    cost: Any = "indicator",
    discount: float = 0.95,
    *,
    rng: int | np.random.Generator = 0,
    policy: Any = None,
    features: Any = None,
    update: Any = "natural",
    attainable: bool | None = None,
    max_iterations: int = 300,
    tol: float = 1e-7,
    solver: Any = "exact",
    callback: Callback | None = None,
    progress: Progress = False,
) -> ImitationResult:
    """The policy whose chain is closest to the expert's, from observed states alone.

    Parameters
    ----------
    mdp : what the learner acts in, an :class:`~diffbisim.MDP`
    expert : a MarkovChain, ``Transitions`` (no actions, no rewards), or a list of trajectories (state sequences)
    cost : "indicator" (the expert's states are the learner's), "reward", an array (expert states, MDP states), or a
        callable; with anything but "indicator" the expert may live in a state space of its own
    discount : weight γ of the next step
    rng : seed or Generator, for the updates that sample
    policy : where to begin: a table (n_states, n_actions), or a torch module that maps state numbers, or the rows of
        ``features``, to logits; it is trained in place (default: a uniform table)
    update : "natural", "gradient", "sampled", "best-response", or an object of :mod:`diffbisim.imitate.updates`
    attainable : True if the expert can be reproduced exactly, so that every step aims at zero (default: learned)
    max_iterations, tol : it stops when the distance is below ``tol`` times the largest cost, or when the level says
        that next to nothing is left to gain
    solver : of the distances, as for :func:`diffbisim.distance`; the last one is always exact
    callback : called with every row of history; returning True stops the run

    Returns
    -------
    ImitationResult : ``policy``, ``distance`` (certified), ``history``, ``reward``

    Examples
    --------
    >>> from diffbisim import examples
    >>> mdp = examples.imitation_chain()
    >>> expert = mdp.induced_chain(examples.soft_right_policy(mdp, epsilon=0.4))
    >>> imitate(mdp, expert, discount=0.9, tol=1e-3).distance.value < 1e-3
    True
    """
    if not isinstance(mdp, MDP):
        raise InvalidArgument(f"mdp is a {type(mdp).__name__}; make one with diffbisim.MDP(kernels, initial=...)")
    if not tol > 0 or max_iterations < 1:
        raise InvalidArgument(f"tol = {tol} and max_iterations = {max_iterations} must be positive")
    shared = isinstance(cost, str) and cost == "indicator"
    x, γ = expert_chain(expert, mdp, shared), check_discount(discount)
    if shared and x.n_states == mdp.n_states:
        warn_if_impossible(x, mdp, γ)
    table = learner_cost(cost, x, mdp)
    learner = make_learner(policy, mdp, features)
    walk = Walk(learner, mdp, γ, as_generator(rng), PolyakLevel(attainable=attainable, floor=0.0, patience=16))
    with tracking(progress, max_iterations, "imitating") as advance:
        run = Run(x, table, walk, make_update(update), tol * (float(table.max()) or 1.0), solver)
        outcome = run.until_done(max_iterations, lambda row: (advance(1), callback is not None and callback(row))[1])
    return run.finish(outcome)


def learner_cost(cost: Any, expert: MarkovChain, mdp: MDP) -> Floats:
    """The cost table (expert states, MDP states), which must not depend on the policy."""
    if isinstance(cost, str) and cost == "reward" and mdp.rewards is not None and mdp.rewards.ndim == 2:
        raise InvalidCost(
            'cost "reward": the rewards of this MDP depend on the action, and would change with the policy; '
            "give it one reward per state, or pass cost= an array"
        )
    return ground_cost(cost, expert, mdp.induced_chain(mdp.uniform_policy()))


class Run:
    """One run: the loop, the last solution to start the next from, and the best policy so far."""

    def __init__(self, x: MarkovChain, cost: Floats, walk: Walk, update: Update, goal: float, solver: Any) -> None:
        self.x, self.cost, self.walk, self.update, self.goal = x, cost, walk, update, goal
        self.exact, self.solver = isinstance(solver, str) and solver == "exact", make_solver(solver)
        self.scale = float(cost.max()) or 1.0
        self.last: DistanceResult | None = None
        self.best: DistanceResult | None = None
        self.policy: Floats | None = None
        self.history: list[dict[str, float]] = []

    def until_done(self, max_iterations: int, report: Callback) -> Ending:
        while True:
            at = self.evaluate()
            if at.result.value <= self.goal:
                self._record(at.result, 0.0)
                return Ending.REACHED
            step = self.update.step(self.walk, at)
            self.walk.iteration += 1
            self._record(at.result, step)
            if report(self.history[-1]):
                return Ending.INTERRUPTED
            if isinstance(self.update, Natural) and self._settled():
                return Ending.SETTLED
            if len(self.history) >= max_iterations:
                return Ending.ITERATIONS

    def _settled(self) -> bool:
        """Whether the level has come up to the best distance."""
        rule = self.walk.rule
        return rule.delta <= max(0.1 * self.goal, SETTLED * rule.best)

    def evaluate(self) -> Evaluation:
        """Distance, reward and advantage of the current policy; remembers the best."""
        pi = self.walk.learner.table()
        result = self._solve(pi)
        if self.best is None or result.value < self.best.value:
            self.best, self.policy, self.walk.best = result, pi, self.walk.learner.snapshot()
        reward = result.implicit_reward()
        A = action_values(self.walk.mdp, reward)
        A -= (pi * A).sum(axis=1, keepdims=True)  # zero up to rounding already
        return Evaluation(pi, result, reward, A, result.occupancy.sum(axis=0))

    def _solve(self, pi: Floats) -> DistanceResult:
        problem = Problem(self.x, self.walk.mdp.induced_chain(pi), self.cost, self.walk.discount)
        solver = self.solver
        if self.exact:  # three digits beyond the distance itself
            value = self.scale if self.last is None else self.last.value
            solver = replace(solver, tol=float(np.clip(1e-4 * value / self.scale, 1e-12, 1e-7)))
        self.last = solver.solve(problem, warm=self.last)
        return self.last

    def _record(self, result: DistanceResult, step: float) -> None:
        row = {"value": result.value, "lower": result.lower, "upper": result.upper}
        self.history.append({**row, "level": self.walk.rule.level, "step": step})

    def finish(self, outcome: Ending) -> ImitationResult:
        """The best policy with its certified distance."""
        assert self.best is not None
        assert self.policy is not None
        self.walk.learner.restore(self.walk.best)
        distance = self.best if self.exact else Exact().solve(self.best.problem)
        return ImitationResult(self.policy, distance, tuple(self.history), self.walk.mdp, outcome)
