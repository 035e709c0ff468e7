"""What average and total cost have in common: recurrent pairs, and Newton's steps without a discount.

*Structure.* A state of a chain is *recurrent* if every state it leads to leads back. The recurrent states form closed
classes, each with a period p and a phase φ modulo p for every state. Couplings have fixed marginals, so none leaves a
pair of closed classes or changes φ_X - φ_Y modulo gcd(p_X, p_Y); and the independent coupling connects all pairs that
agree in these. The closed classes of pairs are therefore known from the two chains alone, and the product chain is
never formed. A pair with a transient state is left almost surely under *every* coupling. With w the expected time that
a chain spends in its transient states,

    w(x,y) = w_X(x) + w_Y(y),        Π w = w - k,        k = w - P_X w_X - P_Y w_Y = 1{x transient} + 1{y transient}

for the plans Π of any coupling, because w is separable.

*Newton's step.* These problems have the form W = T W - g, T W = c + OT_W, where g is constant on every closed class
(zero for total cost). With the plans Π of T W the equation becomes linear, and

    W ← W + (I - γ Π)⁻¹ (T W - W - g)

with γ = 1 if plans leave the listed pairs, as for total cost. On closed classes I - Π is singular, and γ < 1 is used:
the step is then the cost of following Π until a geometric time plus W there, a proximal step. The error of the table
decreases by the factor (1-γ)/(1-γλ) in each step if the best coupling mixes at rate λ, periodic or not, even if Π has
several recurrent classes. If a step gains too little, 1-γ is reduced. Only a correction is solved for, to a few digits,
which avoids cancellation.

max(T W - W) never increases (r ← K r with K = (1-γ) Π (I - γ Π)⁻¹ stochastic, and better plans only make it smaller).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from diffbisim import _engine
from diffbisim.common.arrays import Array
from diffbisim.common.errors import ConvergenceWarning, warn
from diffbisim.problems.base import ChainProblem
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.stochastic import fewest_steps, solve_linear
from diffbisim.results.base import DistanceResult, Status
from diffbisim.results.coupling import Coupling
from diffbisim.solvers.certify import transport_rounding
from diffbisim.solvers.exact.coupling import PRICE
from diffbisim.solvers.exact.evaluation import FACTORIZE, SWEEPS, PairChain, Plans
from diffbisim.solvers.exact.pairs import ALL, pair_chain, plan_errors
from diffbisim.solvers.exact.transports import EPS, Transports

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: 1-γ of Newton's steps: initial and smallest value.
FIRST_REST, MIN_REST = 1e-3, 1e-13

#: If a step gains less than this factor, 1-γ is divided by it.
GAIN = 10.0

#: Residual of a step, relative to the correction.
ACCURACY = 1e-3

#: While the table still changes by Δ, pivots that gain less than this fraction of Δ are skipped.
LOOSE = 1e-3

#: Residual to which the equation of an occupancy is solved.
OCCUPANCY = 1e-14


# --- structure -----------------------------------------------------------------------------------------------------


class Recurrence(NamedTuple):
    """The recurrent states of a chain."""

    class_of: Integers  # (n,) closed class of each state, -1 if transient
    phase: Integers  # (n,) time modulo the period of its class
    period: Integers  # (classes,)

    @property
    def recurrent(self) -> Mask:
        """Whether each state is recurrent, (n,)."""
        return self.class_of >= 0

    @classmethod
    def of(cls, chain: MarkovChain) -> "Recurrence":
        """Build from the possible transitions, whatever their probabilities."""
        classes, class_of = chain.recurrent_classes, np.full(chain.n_states, -1)
        for k, states in enumerate(classes):
            class_of[states] = k
        steps = fewest_steps(chain.successors.matrix, np.array([states[0] for states in classes]))
        period = np.array(chain.periods)
        return cls(class_of, np.where(class_of >= 0, steps, 0.0).astype(np.int64) % period[class_of], period)


def pair_classes(x: Recurrence, y: Recurrence) -> Integers:
    """Return the closed class of every flat pair, -1 for pairs with a transient state."""
    both = np.gcd.outer(x.period, y.period)
    first = np.cumsum(both.ravel()).reshape(both.shape) - both
    classes = np.ix_(x.class_of, y.class_of)
    class_of = first[classes] + np.subtract.outer(x.phase, y.phase) % both[classes]
    class_of[~np.logical_and.outer(x.recurrent, y.recurrent)] = -1
    return np.asarray(class_of.ravel(), dtype=np.int64)


class Leaving(NamedTuple):
    """The separable function w at K pairs, with a margin for rounding, and a lower bound on its decrease per step."""

    fall: Array  # (K,) k, minus rounding
    times: Array  # (K,) w
    time: float  # <ν_X, w_X> + <ν_Y, w_Y>
    longest: float  # the largest w

    @classmethod
    def of(cls, problem: Any, recurrent: tuple[Mask, Mask], pairs: Integers) -> "Leaving":
        """Build from the recurrent states of both chains, for a list of flat pairs."""
        chains = problem.x, problem.y
        sides = [_time_and_fall(c, r, problem.blur) for c, r in zip(chains, recurrent, strict=True)]
        (w_x, k_x), (w_y, k_y) = sides
        return cls(
            fall=np.add.outer(k_x, k_y).ravel()[pairs],
            times=np.add.outer(w_x, w_y).ravel()[pairs] * (1 + 1e-9),
            time=sum(float(c.initial @ w) for c, (w, _) in zip(chains, sides, strict=True)) * (1 + 1e-9),
            longest=float(w_x.max()) + float(w_y.max()),
        )


def _time_and_fall(chain: MarkovChain, recurrent: Mask, blur: float) -> tuple[Array, Array]:
    """Solve for the expected times in transient states; their decrease is certified whatever the solve returns."""
    time, fall = np.zeros(chain.n_states), np.zeros(chain.n_states)
    open_states = np.flatnonzero(~recurrent)
    if not open_states.size:
        return time, fall
    kernel, ones = chain.transition, np.ones(open_states.size)
    inner: Any = kernel[open_states][:, open_states]
    with np.errstate(all="ignore"):
        try:
            if chain.is_sparse:
                from scipy.sparse.linalg import splu

                solved = splu(sparse.csc_array(sparse.eye_array(ones.size, format="csr") - inner)).solve(ones)
            else:
                solved = solve_linear(np.eye(ones.size) - inner, ones)
        except (RuntimeError, np.linalg.LinAlgError):  # singular in double precision
            solved = np.full(ones.size, np.inf)
        time[open_states] = np.where(np.isfinite(solved) & (solved >= 0), solved, np.finfo(float).max ** 0.25)
        rounding = (4 * chain.n_states * EPS + blur) * float(time.max())
        fall[open_states] = (time - np.asarray(kernel @ time))[open_states] - rounding
    return time, fall


# --- tables --------------------------------------------------------------------------------------------------------


class Equation:
    """The equation W = c + OT_W - g at a list of pairs, with W given elsewhere: sweeps and Newton's steps.

    `W` (n_X*n_Y,) and `cost` (K,) are in units of the largest cost. `leaves` tells whether plans lead to pairs that are
    not in the list. `blur` bounds the difference between the rows used and those certified.
    """

    def __init__(self, transports: Transports, cost: Array, W: Array, leaves: bool, blur: float) -> None:
        self.transports, self.cost, self.W, self.leaves, self.blur = transports, cost, W, leaves, blur
        listed = transports.items.listed
        self.pairs: Any = listed if listed.size else slice(None)
        self.TW = np.empty(transports.size)
        self.rest, self.least, self.before = 0.0 if leaves else FIRST_REST, MIN_REST, np.inf
        self.price, self.products = PRICE, 0

    def improve(self) -> None:
        """Compute optimal plans for the table, and ``change`` = T W - W at the listed pairs, (K,).

        The true change is at least ``change - below`` and at most ``change + error``.
        """
        self.solved = self.transports.solve(self.W, self.TW, self.price)
        self.TW += self.cost
        low, high, self.size = _engine.extremes(self.transports.items.listed, self.TW, self.W)
        self.solved &= bool(np.isfinite(high - low)) and self.price < np.inf
        self.change = self.TW - self.W[self.pairs]
        η = transport_rounding(plan_errors(self.transports, self.blur)) + 6 * EPS
        self.error = η * self.size
        self.below = self.error + self.price

    def newton(self, gain: Any, change: float, price: float) -> None:
        """Compute the next table; `change` is the current error, `price` the least gain of later pivots."""
        if self.rest > self.least and change > self.before / GAIN:
            self.rest = max(self.rest / GAIN, self.least)
        self.before, source = change, self.change - gain
        chain = self.chain(1 - self.rest)
        source = np.append(source, 0.0) if self.leaves else source
        step, solved = corrected(chain, source, ACCURACY * float(np.abs(source).max()), transposed=False)
        if not solved:  # move γ away from one
            self.rest = self.least = min(self.rest * GAIN, 0.1) or FIRST_REST
        self.products += chain.products
        self.W[self.pairs] += step[: self.transports.size]
        self.price = price

    def chain(self, discount: float) -> PairChain:
        """Return the chain of the listed pairs, with one more pair for all others if plans leave the list."""
        return (
            leaving_chain(self.transports, self.W.size, discount)
            if self.leaves
            else pair_chain(self.transports, discount)
        )

    @property
    def work(self) -> dict[str, int]:
        """Counts of the work so far."""
        t = self.transports
        return {"pairs": t.size, "pivots": t.pivots, "improvements": t.sweeps, "sweeps": self.products}


def leaving_chain(transports: Transports, n_pairs: int, discount: float) -> PairChain:
    """Return the chain of listed pairs whose plans leave the list; pair K stands for all others and is absorbing."""
    listed, trees = transports.items.listed, transports.trees
    numbers = np.full(n_pairs, listed.size, np.int64)
    numbers[listed] = np.arange(listed.size)
    plans = Plans(np.append(trees.at, trees.at[-1]), transports.targets(numbers), trees.flow, ALL)
    return PairChain(plans, listed.size + 1, discount, transports.threads)


def corrected(chain: PairChain, source: Array, target: float, transposed: bool) -> tuple[Array, bool]:
    """Solve (I - γ Π) u = source, or with the transpose, to a residual; return u and whether it was reached."""
    u = np.zeros_like(source)
    most = 150 if chain.plans.flow.size <= FACTORIZE else 1_500  # large problems have no preconditioner
    if target <= 0.0 or chain.solve(source, u, target, most, transposed) <= 2 * target:
        return u, True
    if chain.preconditioned(source, u, target, transposed):
        return u, True
    u[:] = 0.0
    chain.sweep(source, u, SWEEPS, transposed)
    return u, False


def settled(chain: PairChain, source: Array, first: Array, normalize: Any = None) -> Array:
    """Solve m = source + Πᵀ m from `first`: expected visits or, for source 0, the long-run law.

    Uses corrections m ← m + (I - γ Πᵀ)⁻¹ (source + Πᵀ m - m), with γ = 1, or γ < 1 if `normalize` restores known
    properties of m after each correction.
    """
    m, residual, best = first.copy(), np.empty_like(first), np.inf
    rest = 0.0 if normalize is None else FIRST_REST
    for _ in range(100):
        chain.apply(m, residual, transposed=True)
        np.subtract(source, residual, out=residual)
        worst = float(np.abs(residual).max())
        if worst <= OCCUPANCY * max(float(m.max()), 1.0) or (worst > best / 2 and rest <= MIN_REST):
            break
        if rest and worst > best / GAIN:
            rest = max(rest / GAIN, MIN_REST)
        best = min(best, worst)
        step, _ = corrected(chain.with_discount(1 - rest), residual, 1e-3 * worst, True)
        m += step
        np.maximum(m, 0.0, out=m)
        if normalize is not None:
            normalize(m)
    total = float(np.abs(residual).sum()) / max(float(m.sum()), 1.0)
    if total > 1e-8:
        warn(
            f"the occupancy of {chain.size} pairs is accurate only to {total:.1e} in total; use lump=True or "
            "Exact(reachable=True)", ConvergenceWarning, stacklevel=4,
        )  # fmt: skip
    return m


def scaled_cost(problem: ChainProblem) -> Array:
    """Return the cost (n_X*n_Y,), scaled to at most one."""
    return problem.cost.ravel() / (problem.scale or 1.0)


def known_by(coupling: Coupling) -> DistanceResult:
    """Wrap a coupling as a warm start."""
    return DistanceResult(coupling.problem, np.nan, np.nan, np.nan, Status.INTERRUPTED, 0, "exact", coupling)


def first_bias(warm: Any, problem: ChainProblem) -> Array:
    """Return the initial scaled table: the cost, or the undiscounted table of a previous result."""
    cost = scaled_cost(problem)
    if warm is None:
        return cost
    with np.errstate(all="ignore"):
        bias = getattr(warm.coupling, "bias", None)
        table = (warm.values / warm.problem.step if bias is None else bias).ravel() / (problem.scale or 1.0)
    known = np.isfinite(table)
    if not known.any() or not np.abs(table[known]).max() <= 1e8:
        return cost
    return np.where(known, table, cost)
