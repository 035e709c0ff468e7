"""Identification: a model of the same states fitted to data, with intervals for its parameters.

The estimate is θ̂ = argmin_θ d(X̂, Y_θ), X̂ the empirical chain of the data. How far it could be off is found by the
bootstrap: episodes (single transitions, where there are no episodes) are drawn anew from the data with replacement, the
model is fitted to each replicate from θ̂, and the interval of a parameter is between the quantiles of its replicates.
A state that a replicate happens to miss keeps the transitions that the data have.
"""

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions
from diffbisim.checks import check_count, state_rewards
from diffbisim.errors import InvalidArgument
from diffbisim.fit.fitting import empirical_chain, fit
from diffbisim.fit.result import Array, FitResult
from diffbisim.parallel import Executor, tasks
from diffbisim.progress import Progress
from diffbisim.stochastic import as_generator


@dataclass(frozen=True, eq=False, repr=False)
class Identification:
    """A fitted model with intervals.

    Attributes:
        fit: the fit to the data themselves.
        intervals: by name of a parameter, (2, ...): lower and upper end.
        replicates: by name, (n_replicates, ...): the parameters of every replicate.
        level: of confidence.
    """

    fit: FitResult
    intervals: Mapping[str, Array]
    replicates: Mapping[str, Array]
    level: float

    @property
    def chain(self) -> MarkovChain:
        return self.fit.chain

    @property
    def parameters(self) -> Mapping[str, Array]:
        return self.fit.parameters

    @property
    def value(self) -> float:
        """Distance between the model and the empirical chain."""
        return self.fit.value

    def __repr__(self) -> str:
        n = next((len(v) for v in self.replicates.values()), 0)
        return f"Identification({self.fit!r}, {n} replicates, level {self.level:g})"


def identify(
    data: Transitions,
    kernel: Any = None,
    cost: Any = "reward",
    discount: float = 0.95,
    *,
    initial: Any = None,
    rewards: Any = None,
    unseen: Any = "error",
    replicates: int = 100,
    level: float = 0.95,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
    **options: Any,
) -> Identification:
    """Fit a model with the same states to data, with bootstrap intervals for its parameters.

    Parameters
    ----------
    data : observed Transitions
    kernel : a torch module that returns the kernel (default: a softmax over the transitions that occur)
    cost, discount : as for :func:`diffbisim.fit`
    initial, rewards : of the states, shared by data and model
    unseen : what follows a state that was never left; see :meth:`MarkovChain.from_transitions`
    replicates : how many bootstrap replicates; 0 for no intervals
    level : confidence of the intervals
    rng : seed of the replicates, an integer or a Generator
    executor : as for :func:`diffbisim.pairwise`, best of processes; None for one replicate after the other
    progress : True for a bar, or a callable ``(done, total)``
    options : of :func:`diffbisim.fit`, e.g. ``steps``, ``tol``, ``solver``; a ``checkpoint`` holds the fit to the data,
        not the replicates

    Examples
    --------
    >>> from diffbisim.data.examples import drift_walk
    >>> from diffbisim.fit.kernels import DriftWalk
    >>> s, s_next = drift_walk(1.5, 5).sample_transitions(2_000, 0.9, rng=0)
    >>> data = Transitions.from_pairs(s, s_next, states=5)
    >>> found = identify(data, DriftWalk(0.0, 5), discount=0.9, initial=2, rewards=range(5), replicates=20)
    >>> low, high = found.intervals["drift"]
    >>> bool(low <= found.parameters["drift"] <= high)
    True
    """
    if not isinstance(data, Transitions):
        raise InvalidArgument(f"data is a {type(data).__name__}; give Transitions, or fit a chain with diffbisim.fit")
    if not 0.0 < level < 1.0:
        raise InvalidArgument(f"level is {level!r}; it must lie strictly between 0 and 1, e.g. level=0.95")
    rewards = state_rewards(rewards, data.n_states, data.labels)
    how = {"cost": cost, "discount": discount, "initial": initial, "rewards": rewards, "unseen": unseen, **options}
    if kernel is None:
        kernel = _observed(data, unseen, initial, rewards)
    best = fit(data, kernel, **how)
    seeds = as_generator(rng).spawn(check_count(replicates, "replicates"))
    again = {name: value for name, value in how.items() if name not in ("checkpoint", "every")}  # each a fit of its own
    with nullcontext(executor) if executor is not None else ThreadPoolExecutor(1) as worker:
        found = tasks(_replicate, seeds, (data, best.model, again), worker, progress, "replicates")
    stacked = {name: np.array([parameters[name] for parameters in found]) for name in best.parameters if found}
    ends = [(1 - level) / 2, (1 + level) / 2]
    intervals = {name: np.quantile(values, ends, axis=0) for name, values in stacked.items()}
    return Identification(best, intervals, stacked, level)


def _replicate(given: tuple[Transitions, Any, dict[str, Any]], rng: np.random.Generator) -> Mapping[str, Array]:
    """Runs in the worker."""
    data, model, how = given
    drawn = resample(data, rng)
    return fit(drawn, copy.deepcopy(model), **how).parameters


def resample(data: Transitions, rng: np.random.Generator) -> Transitions:
    """Episodes drawn with replacement; states that this leaves without a successor keep those of the data."""
    drawn = data.take(rng.integers(0, data.n_episodes, size=data.n_episodes))
    lost = np.setdiff1d(data.states, drawn.states)
    if not lost.size:
        return drawn
    back = np.flatnonzero(np.isin(data.states, lost))
    weights = None
    if data.weights is not None and drawn.weights is not None:
        weights = np.concatenate([drawn.weights, data.weights[back]])
    return replace(
        drawn,
        states=np.concatenate([drawn.states, data.states[back]]),
        next_states=np.concatenate([drawn.next_states, data.next_states[back]]),
        weights=weights,
        episodes=None,
    )


def _observed(data: Transitions, unseen: Any, initial: Any, rewards: Any) -> Any:
    """A softmax over the transitions of the empirical chain, begun at the empirical chain's own probabilities."""
    from diffbisim.fit.kernels import MaskedSoftmax

    chain = empirical_chain(data, unseen, initial, rewards)
    return MaskedSoftmax(chain, logits=np.log(chain.successors.probabilities))
