"""The distance between two processes of which only data are known, with a confidence interval.

The *plug-in* estimate d̂ is the exact distance between the empirical chains. The interval comes from the bootstrap:
episodes are drawn with replacement, as many as there are, the chains counted anew, and the distance d* solved for each
such replicate, from the base solution.

*Bias.* Noise makes chains look different, so d̂ is too large on average, most visibly where the true distance is near
zero. The bootstrap repeats this with d̂ in the place of d: mean(d*) - d̂ estimates the ``bias``, and the interval

    [2 d̂ - q_hi, 2 d̂ - q_lo],        q the quantiles of d*                              (the *basic* interval)

is shifted by it, cut off at zero. So it may well lie below d̂ itself; ``corrected`` is d̂ minus the bias.

*Near zero* this fails: d has a kink there, and the quantiles of d* know nothing of it. By the triangle inequality
|d̂ - d| ≤ d(X̂, X) + d(Ŷ, Y) =: ``noise``, with the cost max_y |c(x,y) - c(x',y)| within X (Y alike), and the bootstrap
says how large that is. Unless d̂ exceeds its quantile, there is no evidence of a difference at this sample size, and the
interval begins at zero; ``p_value`` is that of the test for d = 0. The test is conservative: few data, or a small
difference, often leave it without evidence, so this is no evidence that the processes are equal.

Resampling whole episodes keeps whatever dependence there is within them. Pairs without episodes are drawn one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from diffbisim.chain import MarkovChain, Transitions, Unseen
from diffbisim.checks import as_number, check_count
from diffbisim.continuous import estimate_paths
from diffbisim.distance import distance, make_solver
from diffbisim.errors import InvalidArgument, warn
from diffbisim.horizon import TimedProblem
from diffbisim.parallel import Executor, batches, executor_map
from diffbisim.problem import Array, Problem
from diffbisim.process import taken
from diffbisim.progress import Progress
from diffbisim.quantize import is_paths
from diffbisim.results import DistanceResult
from diffbisim.stochastic import as_generator


@dataclass(frozen=True, eq=False)
class Estimate:
    """The plug-in distance between two datasets and its bootstrap interval."""

    value: float  # of the empirical chains
    lower: float
    upper: float
    confidence: float
    bias: float  # estimated by the bootstrap; the plug-in value is too large by about this
    standard_error: float
    distance: DistanceResult = field(repr=False)  # of the empirical chains: plans, encoder, gradient
    replicates: Array = field(repr=False)  # (n,) distances of the bootstrap replicates
    noise: Array = field(repr=False)  # (n,) how far the replicates are from the data, both sides added

    @property
    def p_value(self) -> float:
        """How often noise alone is as large as the value: if small, they differ; if not, there is no evidence of it."""
        return float((1 + (self.noise >= self.value).sum()) / (1 + self.noise.size))

    @property
    def conclusion(self) -> str:
        """What the p-value says at this confidence, in words; that there is no evidence does not make them equal."""
        differ = self.p_value <= 1 - self.confidence
        return "evidence that they differ" if differ else "no evidence of a difference at this sample size"

    @property
    def corrected(self) -> float:
        """The value minus its estimated bias, at least zero."""
        return max(0.0, self.value - self.bias)


def estimate(
    X: Transitions | MarkovChain,
    Y: Transitions | MarkovChain,
    cost: Any = "reward",
    discount: float = 0.95,
    solver: Any = "exact",
    *,
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    rewards: Any = None,
    initial: Any = None,
    unseen: Unseen = "self-loop",
    confidence: float = 0.95,
    replicates: int = 200,
    rng: int | np.random.Generator = 0,
    executor: Executor = None,
    progress: Progress = False,
) -> Estimate:
    """Distance between two datasets (or a dataset and a known chain), with a bootstrap confidence interval.

    Parameters
    ----------
    X, Y : observed :class:`Transitions`; a MarkovChain is taken as known and not resampled. Lists of (T, d) arrays are
        trajectories with continuous states (see docs/continuous and ``diffbisim.continuous.estimate_paths``)
    cost, discount, solver : as for :func:`diffbisim.distance`
    criterion, horizon, weights : as for :func:`diffbisim.distance`, but for the total cost, which may be infinite in a
        replicate, and is refused
    rewards, initial : for chains made from data; one for both, or a tuple ``(for X, for Y)``. Without ``initial`` a
        dataset starts as its episodes do; pairs without episodes start in the first state seen, which is a guess: if
        the two sides then start differently, a warning says so
    unseen : what follows a state that was never left ("self-loop", "uniform" or "error"); replicates lose states too
    confidence : nominal probability that the interval covers the true distance
    replicates : bootstrap samples; 200 for an interval, 1 000 for a fine one
    rng : seed or generator; the answer does not depend on the number of workers
    executor, progress : as for :func:`diffbisim.pairwise`

    Examples
    --------
    >>> from diffbisim import MarkovChain, Transitions, examples
    >>> walks = [[examples.drift_walk(f, 6).sample(30, rng=k) for k in range(40)] for f in (0.0, 1.0)]
    >>> A, B = (Transitions.from_trajectories(w, states=range(6)) for w in walks)
    >>> e = estimate(A, B, rewards=range(6), discount=0.9, rng=0)
    >>> e.lower < e.value < e.upper
    True
    """
    if is_paths(X) and is_paths(Y):
        named = "euclidean" if isinstance(cost, str) and cost == "reward" else cost
        how: Any = {"criterion": criterion, "confidence": confidence, "replicates": replicates, "rng": rng}
        return estimate_paths(X, Y, named, discount, solver, **how)  # type: ignore[return-value]
    if criterion not in ("discounted", "average"):
        raise InvalidArgument(f"criterion is {criterion!r}; an estimate has 'discounted' or 'average'")
    if not 0 < as_number(confidence) < 1:
        raise InvalidArgument(f"confidence is {confidence!r}; give a probability such as 0.95")
    if check_count(replicates, "replicates") < 20:
        raise InvalidArgument(f"replicates is {replicates!r}; a bootstrap interval needs at least 20")
    if unseen not in ("self-loop", "uniform", "error"):
        raise InvalidArgument(
            f'unseen is {unseen!r}; use "self-loop", "uniform" or "error": states must keep their place'
        )
    sources = []
    for i, (name, data) in enumerate((("X", X), ("Y", Y))):
        data = taken(data)
        if not isinstance(data, (Transitions, MarkovChain)):
            raise InvalidArgument(f"{name} is a {type(data).__name__}; give Transitions or a MarkovChain")
        sources.append(Source(data, _one_of(rewards, i), _one_of(initial, i), unseen))
    if all(source.known for source in sources):
        raise InvalidArgument("X and Y are both chains, so there is nothing to resample: use diffbisim.distance")
    chains = sources[0].chain(), sources[1].chain()
    if any(source.guessed for source in sources) and _start(chains[0]) != _start(chains[1]):
        x, y = ("{" + ", ".join(map(repr, list(_start(chain))[:3])) + "}" for chain in chains)
        warn(
            f"pairs do not say where a process starts; X starts in {x} and Y in {y}, by the first states seen, and the "
            "distance counts the difference: pass initial= to say where they start",
            category=UserWarning,
            stacklevel=2,
        )
    base = distance(*chains, cost, discount, solver, criterion=criterion, horizon=horizon, weights=weights)
    chosen = make_solver(solver)
    if chosen.threads is None:
        chosen = replace(chosen, threads=1)  # the replicates are the parallel part
    seeds = as_generator(rng).spawn(replicates)
    work = partial(_replicate, sources, base.problem, chosen)
    stars, noise = np.concatenate(executor_map(work, batches(seeds, 8), executor, progress, "replicates")).T
    tail = (1 - confidence) / 2
    low, high = np.quantile(stars, [tail, 1 - tail], method="weibull")  # unbiased for few replicates
    lower = (
        0.0
        if base.value <= np.quantile(noise, confidence, method="weibull")
        else max(0.0, float(2 * base.value - high))
    )
    return Estimate(
        base.value, lower, max(lower, float(2 * base.value - low)), float(confidence),
        float(stars.mean() - base.value), float(stars.std(ddof=1)), base, stars, noise,
    )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One side: data and what is needed to make a chain of them."""

    data: Any
    rewards: Any
    initial: Any
    unseen: Unseen

    @property
    def known(self) -> bool:
        return isinstance(self.data, MarkovChain)

    @property
    def guessed(self) -> bool:
        """Whether the start is only that of the first transition."""
        return isinstance(self.data, Transitions) and self.data.starts is None and self.initial is None

    def chain(self, rng: np.random.Generator | None = None) -> MarkovChain:
        """The empirical chain, of a bootstrap replicate if a generator is given."""
        if isinstance(self.data, MarkovChain):
            return self.data
        data = (
            self.data if rng is None else self.data.take(rng.integers(self.data.n_episodes, size=self.data.n_episodes))
        )
        chain: MarkovChain = data.chain(rewards=self.rewards, initial=self.initial, unseen=self.unseen)
        return chain


def _replicate(sources: Sequence[Source], base: Problem, solver: Any, seeds: Sequence[np.random.Generator]) -> Array:
    """(distance, noise) of some bootstrap replicates; runs in a worker."""
    rows = []
    tables = _tables(base)
    within = [_within(table) for table in tables], [_within(table.T) for table in tables]
    for generator in seeds:
        X, Y = (source.chain(generator) for source in sources)
        noise = 0.0
        for source, new, old, cost in zip(sources, (X, Y), (base.x, base.y), within, strict=True):
            if not source.known:
                noise += solver.solve(_between(base, new, old, cost)).value
        rows.append((solver.solve(replace(base, x=X, y=Y)).value, noise))
    return np.array(rows)


def _tables(problem: Any) -> tuple[Array, ...]:
    """The different costs of a problem: one, or one for every time."""
    timed = isinstance(problem, TimedProblem) and not problem.one_cost
    return problem.costs if timed else (problem.cost,)


def _between(problem: Any, x: MarkovChain, y: MarkovChain, cost: Sequence[Array]) -> Any:
    """The same question about two other chains, with other costs."""
    if isinstance(problem, TimedProblem):
        times = len(problem.costs)
        return replace(problem, x=x, y=y, costs=tuple(cost) if len(cost) == times else (cost[0],) * times)
    return replace(problem, x=x, y=y, cost=cost[0])


def _within(cost: Array) -> Array:
    """max_y |c(x,y) - c(x',y)|: the least cost on X with which the triangle inequality holds."""
    gap = np.zeros((len(cost), len(cost)))
    for column in cost.T:
        np.maximum(gap, np.abs(np.subtract.outer(column, column)), out=gap)
    return gap


def _start(chain: MarkovChain) -> dict[Any, float]:
    """Where a chain starts: name of the state -> probability."""
    return {chain.label(k): float(chain.initial[k]) for k in np.flatnonzero(chain.initial).tolist()}


def _one_of(given: Any, i: int) -> Any:
    return given[i] if isinstance(given, tuple) else given
