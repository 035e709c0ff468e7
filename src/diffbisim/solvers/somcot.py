"""SOMCOT: the distance from streams of observed transitions, by stochastic primal-dual steps.

The paper's linear program is a saddle point of

    L = <μ, δ> - <ν_X λ_X, α_X> - <ν_Y λ_Y, α_Y> + (1-γ) <μ_0, V>
    δ(x,y,x',y') = c(x,y) + α_X(x,x',y) + α_Y(x,y,y') + γ V(x',y') - V(x,y)

with a coupling μ of transitions, encoder λ_X, decoder λ_Y and the multipliers α_X, α_Y (causality) and V (flow). The
kernels enter through the transition occupancies ν_X, ν_Y alone, so samples will do. An iteration draws a minibatch from
each stream and steps: multiplicatively in the simplex variables (μ ∝ μ e^(-ηδ), λ_X ∝ λ_X e^(η ν α_X), and the coupling
μ_0 of the starts, whose marginals are kept by Sinkhorn's scaling), additively in the multipliers (by β times the
residual of their constraint, clipped to the range that optimal ones have). The answer is the average over the last
iterates: ``value`` = <μ̄, c>.

*Factorized coupling.* log μ is a sum of functions of (x,y), (x,x',y), (x,y,y') and (x',y'), which is all that is kept:
n_X n_Y (n_X + n_Y) numbers at most, and only for transitions that were seen (somcot_kernels.py, somcot_state.py).

*The default steps* differ from the literal ones (``memory=False, anticipation=0``) in three points, which
benchmarks/long/somcot_schedule.py compares. (1) All transitions seen so far take the place of the last minibatch,
balanced to a discounted occupancy: ν̂ = ρ̂ P̂ with one sweep ρ̂ ← (1-γ) ν_0 + γ ρ̂ P̂ per iteration; so the noise of the
estimate is that of the data, and streams need not be drawn from the discounted occupancy. (2) Dual steps are divided
by the occupancy of their constraint. (3) Primal steps see the multipliers one step ahead (Chambolle and Pock's
extrapolation), without which such games spiral instead of settling.

A run that begins from a previous one (``warm``) goes on to the same bits if the streams are the same. If one of them is
another, as in fitting, the multipliers go on, and the memory of the other; the coupling begins anew, or goes on too
(``carry``) if the streams differ little.

With chains whose kernels are known, one exact Bellman sweep at the end certifies bounds; from data alone none can be.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.checks import as_number, check_discount
from diffbisim.cost import ground_cost
from diffbisim.data.streams import Stream
from diffbisim.errors import InvalidArgument, InvalidData
from diffbisim.problem import Array, Problem
from diffbisim.results import DistanceResult, Status
from diffbisim.stochastic import as_generator

if TYPE_CHECKING:
    from diffbisim.solvers.somcot_kernels import Rules
    from diffbisim.solvers.somcot_state import State

Callback = Callable[[Mapping[str, float]], object]


@dataclass(frozen=True, slots=True)
class Somcot:
    """Stochastic primal-dual iterations on sample streams (``solver="somcot"``).

    Attributes:
        steps: iterations in all, those of a resumed run included.
        rng: seed or generator for drawing from chains and datasets; a run with ``warm`` goes on with the old ones.
        batch: transitions per iteration from each stream (minibatches of an iterable are taken as they come).
        eta: step η of μ, λ_X and λ_Y, for costs whose largest is one (others are scaled).
        beta: step β of α_X, α_Y and V, likewise.
        decay: steps fall like (1 + k/decay_from)^-decay; 0 for constant steps.
        decay_from: see ``decay``.
        memory: use all transitions seen so far in every iteration; False for the last minibatch alone.
        anticipation: how far ahead primal steps see the multipliers; 2 extrapolates, 0 is literal.
        full: give every conceivable transition room from the start, as the paper's dense coupling does.
        carry: let the coupling go on as well when ``warm`` is of other streams, as single loops do.
        certify: with known kernels, certify bounds by an exact Bellman sweep at the end.
        time_limit: seconds after which no further chunk of iterations starts.
    """

    steps: int = 300_000
    rng: int | np.random.Generator = 0
    batch: int = 1
    eta: float = 0.2
    beta: float = 0.01
    decay: float = 0.0
    decay_from: float = 10_000.0
    memory: bool = True
    anticipation: float = 2.0
    full: bool = False
    carry: bool = False
    certify: bool = True
    time_limit: float | None = None

    name: ClassVar[str] = "somcot"
    samples: ClassVar[bool] = True
    criteria: ClassVar[tuple[str, ...]] = ("discounted",)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "eta", "beta", "decay_from", "time_limit"):
            option = getattr(self, name)
            if option is not None and not 0 < as_number(option) < float("inf"):
                raise InvalidArgument(f"{name} is {option!r}; it must be positive and finite")
        for name in ("steps", "batch"):
            if getattr(self, name) != int(getattr(self, name)):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; it must be a whole number")
        for name in ("decay", "anticipation"):
            if not 0 <= as_number(getattr(self, name)) < float("inf"):
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; it must be at least 0")

    def solve(
        self, problem: Problem, warm: DistanceResult | None = None, callback: Callback | None = None
    ) -> DistanceResult:
        """Sample from the two chains of a problem."""
        return self._run(
            (Stream(problem.x), Stream(problem.y)), problem.cost, problem.discount, problem, warm, callback
        )

    def estimate(
        self,
        X: Any,
        Y: Any,
        cost: Any,
        discount: float,
        warm: DistanceResult | None = None,
        callback: Callback | None = None,
    ) -> DistanceResult:
        """From two streams: chains, :class:`Transitions` or :class:`Stream` objects, in any mixture."""
        streams = Stream.of(X, "X"), Stream.of(Y, "Y")
        if not (self.memory or (streams[0].sampled and streams[1].sampled)):
            raise InvalidArgument("memory=False goes by the last minibatch, so streams must be sampled: sampled=True")
        table = ground_cost(cost, streams[0].frame, streams[1].frame)
        known = [
            s.source
            for s in streams
            if isinstance(s.source, MarkovChain) and np.array_equal(s.source.initial, s.frame.initial)
        ]
        problem = Problem(known[0], known[1], table, check_discount(discount)) if len(known) == 2 else None
        return self._run(streams, table, check_discount(discount), problem, warm, callback)

    def _rules(self, discount: float) -> "Rules":
        from diffbisim.solvers.somcot_kernels import Rules

        return Rules(
            discount, float(self.eta), float(self.beta), float(self.decay), float(self.decay_from),
            float(self.anticipation), bool(self.memory), 1.0 / (1.0 - discount),
        )  # fmt: skip

    def _run(
        self,
        streams: tuple[Stream, Stream],
        cost: Array,
        discount: float,
        problem: Problem | None,
        warm: DistanceResult | None,
        callback: Callback | None,
    ) -> DistanceResult:
        from diffbisim.solvers.somcot_coupling import SomcotCoupling, first_state

        scale = float(cost.max()) or 1.0
        state, history = first_state(streams, cost, discount, warm, as_generator(self.rng), self.full, self.carry)

        def result(outcome: Status) -> DistanceResult:
            coupling = SomcotCoupling.of_run(state, streams, cost, discount, problem)
            low, high = coupling.bounds() if problem is not None and self.certify else (cost.min(), cost.max())
            value = float(np.clip(coupling.value, low, high))
            return DistanceResult(
                coupling.problem, value, float(low), float(high), outcome, state.iterations, self.name, coupling,
                tuple(history), {"transitions_x": state.drawn[0], "transitions_y": state.drawn[1]},
            )  # fmt: skip

        try:
            outcome = self._iterate(state, streams, cost, discount, scale, history, callback)
        except InvalidData as error:
            # Nothing is lost: what was reached before the bad item rides on the error.
            error.result = result(Status.INTERRUPTED) if state.iterations else None  # type: ignore[attr-defined]
            raise
        if state.iterations == 0:
            raise InvalidData("a stream ended before its first transition; give at least one minibatch from each")
        return result(outcome)

    def _iterate(
        self,
        state: "State",
        streams: tuple[Stream, Stream],
        cost: Array,
        discount: float,
        scale: float,
        history: list[dict[str, float]],
        callback: Callback | None,
    ) -> Status:
        """Chunk by chunk: draw, run, report."""
        rules, c = self._rules(discount), cost / scale
        deadline = time.monotonic() + (np.inf if self.time_limit is None else self.time_limit)
        try:
            while state.iterations < self.steps:
                if not state.take(streams, self.batch, c, rules):
                    return Status.ENDED
                last = state.run(int(self.steps), c, rules)
                k = state.iterations
                if k == self.steps or k >= 1.1 * (history[-1]["iteration"] if history else 0):
                    mean = state.mean_cost(c)
                    row = {"iteration": float(k), "value": scale * mean, "last": scale * last}
                    row |= {"lower": float(cost.min()), "upper": float(cost.max())}
                    row |= {"transitions_x": float(state.x.to.size), "transitions_y": float(state.y.to.size)}
                    history.append(row)
                if callback is not None and callback(history[-1]):
                    return Status.INTERRUPTED
                if time.monotonic() > deadline:
                    return Status.TIME
        except KeyboardInterrupt:
            if state.iterations == 0:
                raise
            return Status.INTERRUPTED
        return Status.ESTIMATE
