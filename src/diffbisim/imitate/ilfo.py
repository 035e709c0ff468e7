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
share of random actions (run.py), and gives up when none of that comes closer. It then is in a local minimum, as far as
it can tell; whether that is the least one, or whether the expert can be reproduced, nobody has proven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import Floats, as_number, check_count, check_discount
from diffbisim.cost import ground_cost
from diffbisim.data.gymnasium import first_states, is_env, sizes
from diffbisim.errors import InvalidArgument, InvalidCost
from diffbisim.imitate.environment import Model, Sampling, explore
from diffbisim.imitate.expert import expert_chain, observations, steps_seen, warn_if_elsewhere, warn_if_impossible
from diffbisim.imitate.keeping import Keeper, environment_facts
from diffbisim.imitate.learner import TabularLearner, make_learner
from diffbisim.imitate.result import Ending, ImitationResult
from diffbisim.imitate.run import Callback, Run, Task
from diffbisim.imitate.simplest import simplest as simplest_policy
from diffbisim.imitate.updates import make_update
from diffbisim.mdp import MDP
from diffbisim.progress import Progress, tracking
from diffbisim.stochastic import as_generator


def imitate(
    mdp: Any,
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
    simplest: bool = False,
    sampling: Sampling | None = None,
    callback: Callback | None = None,
    progress: Progress = False,
    checkpoint: str | Path | None = None,
    every: int = 10,
) -> ImitationResult:
    """The policy whose chain is closest to the expert's, from observed states alone.

    Parameters
    ----------
    mdp : what the learner acts in: an :class:`~diffbisim.MDP`, or a Gymnasium environment with Discrete observations
        and actions, which is then only sampled (environment.py)
    expert : a MarkovChain, ``Transitions`` (no actions, no rewards), a pair of arrays (s, s_next), or a list of
        trajectories (state sequences)
    cost : "indicator" (the expert's states are the learner's), "reward", an array (expert states, MDP states), or a
        callable; with anything but "indicator" the expert may live in a state space of its own
    discount : weight γ of the next step
    rng : seed or Generator, for the updates that sample
    policy : where to begin: a table (n_states, n_actions), or a torch module that maps state numbers, or the rows of
        ``features``, to logits; it is trained in place (default: a uniform table)
    features : (n_states, k) numbers, what a module as policy sees of the states
    update : "natural", "gradient", "sampled", "best-response", or an object of :mod:`diffbisim.imitate.updates`
    attainable : True if the expert can be reproduced exactly, so that every step aims at zero (default: learned)
    max_iterations, tol : it stops when the distance is below ``tol`` times the largest cost, or when the level says
        that next to nothing is left to gain
    solver : of the distances, as for :func:`diffbisim.distance`; the last one is always exact
    simplest : take the most likely action of every state if the data cannot tell that policy from the best one (its
        distance is within 1.96 standard errors of sampling, simplest.py); the expert must be data, not a chain
    sampling : how an environment is sampled, ``Sampling(steps=...)`` of :mod:`diffbisim.imitate.environment`
    callback : called with every row of history; returning True stops the run
    progress : True for a bar, or a callable ``(done, total)``
    checkpoint, every : file to write every so many iterations, and after every round in an environment; if it exists,
        the run goes on from there, to the same bits. The file of another run is refused; `max_iterations`, `simplest`,
        `every`, `callback`, `progress` and the solver's threads and time limit may change

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
    if not as_number(tol) > 0 or not as_number(max_iterations) >= 1:
        raise InvalidArgument(f"tol = {tol!r} and max_iterations = {max_iterations!r} must be positive")
    if simplest:
        expert = _data_for_the_rule(expert, policy)
    if check_count(every, "every") == 0:
        raise InvalidArgument("every is 0; a checkpoint is written every so many iterations: give at least 1")
    generator = as_generator(rng)
    how = (check_discount(discount), make_update(update), tol, solver, attainable, generator)
    options = dict(zip(("discount", "update", "tol", "solver", "attainable", "rng"), how, strict=True))
    options |= {"policy": policy, "features": features}
    with tracking(progress, max_iterations, "imitating") as advance:

        def report(row: Any) -> bool:
            advance(1)
            return callback is not None and bool(callback(row))

        def until_done(run: Run, keeper: Keeper, begun: Mapping[str, Any] | None, beside: Mapping[str, Any]) -> Ending:
            if begun is not None:
                run.resume(begun)
                advance(len(run.history))

            def keep() -> None:
                keeper.write(lambda: {**beside, "run": run.state()}, run.start)

            ending = run.until_done(max_iterations, report, keep, every)
            keep()
            return ending

        if isinstance(mdp, MDP):
            task = make_task(mdp, expert, cost, how)
            if cost_is_shared(cost) and task.expert.n_states == mdp.n_states:
                warn_if_elsewhere(task.expert, mdp)
                warn_if_impossible(task.expert, mdp, task.discount)
            learner = make_learner(policy, mdp, features)
            facts = {"mdp": mdp, "expert": task.expert, "cost": task.cost, **options}
            keeper = Keeper(checkpoint, learner, generator, lambda: facts)
            with keeper:
                kept, run = keeper.read(), Run(task, mdp, learner)
                found = run.finish(until_done(run, keeper, None if kept is None else kept["run"], {}))
            return simplest_policy(found, steps_seen(expert, mdp, cost_is_shared(cost))) if simplest else found
        if not is_env(mdp):
            raise InvalidArgument(
                f"mdp is a {type(mdp).__name__}; make an MDP with diffbisim.MDP(kernels, initial=...), or give a "
                "Gymnasium environment with Discrete observations and actions"
            )
        found = imitate_sampled(
            mdp, expert, cost, how, (policy, features), sampling or Sampling(), checkpoint, options, until_done
        )
        return simplest_policy(found, steps_seen(expert, found.mdp, cost_is_shared(cost))) if simplest else found


def _data_for_the_rule(expert: Any, policy: Any) -> Transitions:
    """What ``simplest=True`` needs: observations to count, and a table to return."""
    if isinstance(expert, MarkovChain):
        raise InvalidArgument(
            "simplest=True asks what the data can tell apart, and expert is a MarkovChain, which is known exactly; "
            "give Transitions or trajectories, or leave simplest out"
        )
    if policy is not None and hasattr(policy, "parameters"):
        raise InvalidArgument("simplest=True returns a table; leave it out with a module as policy")
    return observations(expert)


def cost_is_shared(cost: Any) -> bool:
    """Whether the expert's states are the learner's."""
    return isinstance(cost, str) and cost == "indicator"


def make_task(mdp: MDP, expert: Any, cost: Any, how: tuple[Any, ...]) -> Task:
    """The expert as a chain and the cost as a table, checked."""
    x = expert_chain(expert, mdp, cost_is_shared(cost))
    return Task(x, learner_cost(cost, x, mdp), *how)


def imitate_sampled(
    env: Any, expert: Any, cost: Any, how: tuple[Any, ...], begin: tuple[Any, Any], sampling: Sampling,
    checkpoint: str | Path | None, options: Mapping[str, Any], until_done: Callable[..., Ending],
) -> ImitationResult:  # fmt: skip
    """Rounds of acting, counting and imitating in the optimistic model; the last in the model as it was seen.

    A table of its own goes to explore, and the last round begins where the caller wants it: what was learned while
    less was known is a worse start than a uniform policy. A module is trained in what the table has seen; then it
    acts itself, because it may lead elsewhere, and is trained again.

    Every round resets the environment with a seed of its own, so the counts and the generator are all that a
    checkpoint has to hold of it.
    """
    model, rng = Model(*sizes(env)), how[-1]
    expert = expert if isinstance(expert, MarkovChain) else observations(expert)
    n, k = model.n_states, model.n_actions
    learner = make_learner(begin[0], model.mdp(), begin[1])
    policy, uniform = learner.table(), np.full((n, k), 1.0 / k)
    batches = sampling.batches()

    def facts() -> dict[str, Any]:
        shown = expert, make_task(model.mdp(), expert, cost, how).cost
        return {"environment": environment_facts(env), "expert": shown, "sampling": sampling, **options}

    with Keeper(checkpoint, learner, rng, facts) as keeper:
        kept = keeper.read() or {"rounds": 0, "run": None}
        done = kept["rounds"]
        if done:
            model.resume(kept["model"])
            policy = kept["policy"]

        def beside() -> dict[str, Any]:
            return {"rounds": done, "model": model.state(), "policy": policy, "run": None}

        if not done:
            model.add_starts(first_states(env, sampling.resets, rng))
            explore(env, model, uniform, 1.0, batches[0], rng)
            done = 1
            keeper.write(beside)
        for steps in batches[done:]:
            task = make_task(model.mdp(), expert, cost, how)
            free = replace(task, cost=np.hstack([task.cost, np.zeros((len(task.cost), 1))]))  # ⊤ costs nothing
            soft = 0.9 * policy + 0.1 * uniform  # not too sure of what was learned from less
            run = Run(free, model.optimistic_mdp(sampling.enough), TabularLearner(np.vstack([soft, uniform[:1]])))
            run.until_done(sampling.iterations, lambda row: False)
            policy = run.best_policy()[:n]
            explore(env, model, policy, sampling.explore, steps, rng)
            done += 1
            keeper.write(beside)
        if not isinstance(learner, TabularLearner) and done == len(batches):
            mdp = model.mdp()
            Run(make_task(mdp, expert, cost, how), mdp, learner).until_done(sampling.iterations, lambda row: False)
            explore(env, model, learner.table(), sampling.explore, batches[-1], rng)
            done += 1
            keeper.write(beside)
        mdp = model.mdp()
        task = make_task(mdp, expert, cost, how)
        if cost_is_shared(cost) and task.expert.n_states == mdp.n_states:
            warn_if_impossible(task.expert, mdp, task.discount, model.known(sampling.enough))
        run = Run(task, mdp, learner)
        return run.finish(until_done(run, keeper, kept["run"], beside()))


def learner_cost(cost: Any, expert: MarkovChain, mdp: MDP) -> Floats:
    """The cost table (expert states, MDP states), which must not depend on the policy."""
    if isinstance(cost, str) and cost == "reward" and mdp.rewards is not None and mdp.rewards.ndim == 2:
        raise InvalidCost(
            'cost "reward": the rewards of this MDP depend on the action, and would change with the policy; '
            "give it one reward per state, or pass cost= an array"
        )
    return ground_cost(cost, expert, mdp.induced_chain(mdp.uniform_policy()))
