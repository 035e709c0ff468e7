"""Identification: fit a model to data, with confidence intervals for its parameters.

The estimate is θ̂ = argmin_θ d(X̂, Y_θ), where X̂ is the empirical chain of the data. Its uncertainty comes from the
bootstrap: episodes are resampled with replacement, or clusters of them, such as all sequences of one id (single
transitions, if there are no episodes or fewer than four). The model is refitted to each replicate starting from θ̂, and
the interval of a parameter is θ̂ ± κ q, where q is the larger distance of θ̂ from two quantiles of its replicates: they
lie to one side of θ̂ if the estimate is biased, and then so would an interval between the quantiles. The factor
κ = √(n/(n-1)) t/z counts for few episodes n (Hesterberg 2015). A state that has no successor in a replicate keeps the
transitions of the original data.
"""

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diffbisim.common.checks import check_count, check_probability, state_rewards
from diffbisim.common.errors import InvalidArgument
from diffbisim.common.parallel import Executor, tasks
from diffbisim.common.progress import Progress
from diffbisim.learning.fit.fitting import empirical_chain, fit
from diffbisim.learning.fit.result import Array, FitResult
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.stochastic import as_generator
from diffbisim.statistics.estimation import bootstrap_sample, expansion


@dataclass(frozen=True, eq=False, repr=False)
class Identification:
    """A fitted model with confidence intervals.

    Attributes
    ----------
    fit : FitResult
        The fit to the original data.
    intervals : dict of str to array of shape (2, ...)
        Lower and upper end of the interval of each parameter.
    replicates : dict of str to array of shape (n_replicates, ...)
        Parameters of every bootstrap replicate.
    confidence : float
        Confidence of the intervals.
    """

    fit: FitResult
    intervals: Mapping[str, Array]
    replicates: Mapping[str, Array]
    confidence: float

    @property
    def chain(self) -> MarkovChain:
        """The fitted chain."""
        return self.fit.chain

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The fitted parameters by name."""
        return self.fit.parameters

    @property
    def value(self) -> float:
        """Distance between the model and the empirical chain."""
        return self.fit.value

    def __repr__(self) -> str:
        n = next((len(v) for v in self.replicates.values()), 0)
        return f"Identification({self.fit!r}, {n} replicates, confidence {self.confidence:g})"


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
    confidence: float = 0.95,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
    **options: Any,
) -> Identification:
    """Fit a model with the states of the data, with bootstrap confidence intervals for its parameters.

    Parameters
    ----------
    data : Transitions
        Observed transitions.
    kernel : torch.nn.Module, default=None
        Module that returns the kernel. None means a softmax over the observed transitions.
    cost, discount
        As in :func:`diffbisim.fit`.
    initial, rewards
        Initial distribution and rewards, shared by the data and the model.
    unseen : default="error"
        How to treat states without an observed successor; see :meth:`MarkovChain.from_transitions`.
    replicates : int, default=100
        Number of bootstrap replicates; 0 for no intervals.
    confidence : float, default=0.95
        Confidence of the intervals.
    rng : int or numpy.random.Generator, default=0
        Seed of the replicates.
    executor : default=None
        As in :func:`diffbisim.pairwise`; processes work best. None computes one replicate after the other.
    progress : bool or callable, default=False
        True for a progress bar, or a callable ``(done, total)``.
    **options
        Further options of :func:`diffbisim.fit`, e.g. ``max_iterations``, ``tol`` or ``solver``. A ``checkpoint``
        covers the fit to the original data, not the replicates.

    Returns
    -------
    Identification
        With ``fit``, ``intervals``, ``replicates`` and ``confidence``.

    Examples
    --------
    >>> from diffbisim.processes.examples import drift_walk
    >>> from diffbisim.learning.fit.kernels import DriftWalk
    >>> s, s_next = drift_walk(1.5, 5).sample_transitions(2_000, 0.9, rng=0)
    >>> data = Transitions.from_pairs(s, s_next, states=5)
    >>> found = identify(data, DriftWalk(0.0, 5), discount=0.9, initial=2, rewards=range(5), replicates=20)
    >>> low, high = found.intervals["drift"]
    >>> bool(low <= found.parameters["drift"] <= high)
    True
    """
    if not isinstance(data, Transitions):
        raise InvalidArgument(f"data is a {type(data).__name__}; pass Transitions, or fit a chain with diffbisim.fit")
    check_probability(confidence, "confidence")
    rewards = state_rewards(rewards, data.n_states, data.names)
    asked = {"cost": cost, "discount": discount, "initial": initial, "rewards": rewards, "unseen": unseen, **options}
    if kernel is None:
        kernel = _observed(data, unseen, initial, rewards)
    best = fit(data, kernel, **asked)
    seeds = as_generator(rng).spawn(check_count(replicates, "replicates"))
    refit = {name: value for name, value in asked.items() if name not in ("checkpoint", "every", "restarts")}
    refit["restarts"] = 0  # replicates start from the estimate
    with nullcontext(executor) if executor is not None else ThreadPoolExecutor(1) as worker:
        found = tasks(_replicate, seeds, (data, best.model, refit), worker, progress, "replicates")
    stacked = {name: np.array([parameters[name] for parameters in found]) for name in best.parameters if found}
    tail, intervals = (1 - confidence) / 2, {}
    for name, values in stacked.items():
        center = np.asarray(best.parameters[name])
        low, high = np.quantile(values, [tail, 1 - tail], axis=0, method="weibull")  # at most this share lies beyond
        half = expansion([data], tail) * np.maximum(high - center, center - low)
        intervals[name] = np.stack([center - half, center + half])
    return Identification(best, intervals, stacked, confidence)


def _replicate(given: tuple[Transitions, Any, dict[str, Any]], rng: np.random.Generator) -> Mapping[str, Array]:
    """Fit the model to one bootstrap replicate (runs in a worker)."""
    data, model, options = given
    return fit(resample(data, rng), copy.deepcopy(model), **options).parameters


def resample(data: Transitions, rng: np.random.Generator) -> Transitions:
    """Draw a replicate; states left without a successor keep their original transitions."""
    drawn = bootstrap_sample(data, rng)
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
        clusters=None,
    )


def _observed(data: Transitions, unseen: Any, initial: Any, rewards: Any) -> Any:
    """Return a softmax over the transitions of the empirical chain, initialized at their empirical probabilities."""
    from diffbisim.learning.fit.kernels import MaskedSoftmax

    chain = empirical_chain(data, unseen, initial, rewards)
    return MaskedSoftmax(chain, logits=np.log(chain.successors.probabilities))
