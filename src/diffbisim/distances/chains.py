"""The distance between two Markov processes.

    d(X, Y) = (1-γ) min E Σ_t γ^t c(x_t, y_t)

The minimum is over all bicausal couplings: joint processes whose marginals are the two chains and in which neither
chain anticipates the other's future. For c(x,y) = |r(x) - r(y)| this is the bisimulation metric.

====================  ==========================================================  ================================
solver                method                                                      use it for
====================  ==========================================================  ================================
``"exact"``           policy iteration with exact transports; certified           everything (the default)
``"lp"``              the paper's linear program, solved by HiGHS; certified      verification, up to ~30 states
``"sinkhorn-policy"`` Sinkhorn iterations for all pairs at once; certified        a rough gap, the smooth loss
``"sinkhorn-value"``  the same without linear solves; certified                   the same (the paper's SVI)
``"somcot"``          stochastic primal-dual steps on sample streams; estimate    unbounded streams
====================  ==========================================================  ================================

``SinkhornPolicy(epsilon=0.1)`` computes a different quantity: the entropic metric, a smooth loss (docs/sinkhorn.md).

A string selects a solver with default options; an object from :mod:`diffbisim.solvers` sets its own options.
"""

from dataclasses import replace
from typing import Any

from diffbisim import solvers
from diffbisim.common.checks import as_number, check_callback, check_flag
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, warn, warn_of_input
from diffbisim.problems import Criterion, Discounted, FiniteHorizon, criterion_of
from diffbisim.processes.chain import MarkovChain, Transitions, warn_of_unused
from diffbisim.processes.convert import as_processes
from diffbisim.processes.mdp import MDP
from diffbisim.processes.streams import Stream
from diffbisim.processes.timed import TimedChain
from diffbisim.results.base import DistanceResult, Status
from diffbisim.solvers import ALIASES
from diffbisim.solvers.base import Callback

DISCOUNT = 0.95  # the default


def distance(
    X: MarkovChain | MDP | TimedChain | Transitions | Stream,
    Y: MarkovChain | MDP | TimedChain | Transitions | Stream,
    cost: Any = "reward",
    discount: float = DISCOUNT,
    solver: Any = "exact",
    tol: float | None = None,
    *,
    criterion: str = "discounted",
    horizon: int | None = None,
    weights: Any = None,
    terminal: Any = None,
    actions: str | None = None,
    lump: bool = False,
    warm: DistanceResult | None = None,
    callback: Callback | None = None,
) -> DistanceResult:
    """Compute the distance between two Markov processes, with certified bounds.

    Parameters
    ----------
    X, Y : MarkovChain, TimedChain, MDP or any object that :func:`diffbisim.as_chain` accepts
        The processes to compare; their sizes may differ. With ``solver="somcot"`` also ``Transitions`` and ``Stream``.
    cost : {"reward", "euclidean", "squared", "indicator"}, array of shape (n_X, n_Y) or callable, default="reward"
        The ground cost: "reward" is |r(x) - r(y)|, "squared" its square, "indicator" 1 where the states differ. With a
        horizon also a list of arrays, one per time.
    discount : float, default=0.95
        The discount factor γ, strictly between 0 and 1. It is refused where it has no effect, that is together with
        ``weights`` or another criterion.
    solver : {"exact", "lp", "sinkhorn-policy", "sinkhorn-value", "somcot"} or solver object, default="exact"
        See :mod:`diffbisim.solvers` for solver objects.
    tol : float, default=None
        Target for the certified gap, relative to the largest cost; by default the solver's own (1e-8; Sinkhorn 1e-3).
    criterion : {"discounted", "average", "total"}, default="discounted"
        "average" is the long-run mean cost per step and "total" the undiscounted cost until absorption; neither uses
        ``discount``.
    horizon : int, default=None
        Number of steps T of a finite horizon. Costs are weighted by powers of the discount, normalized to sum to one,
        and ``discount=1`` is allowed. A ``TimedChain`` uses its own number of steps by default.
    weights : array of shape (T + 1,), default=None
        Non-negative weights of the costs at times 0 … T, used unnormalized in place of the powers of the discount.
    terminal : boolean array of shape (n_X, n_Y), default=None
        Pairs at which the total cost stops accruing; by default pairs of absorbing states without cost.
    actions : {"matched", "lax", "directed"}, default=None
        For two MDPs: "matched" (the default) lets both take the same action (Ferns' metric), "lax" lets the other
        respond with its nearest action, and "directed" is one direction of "lax". Costs may then depend on actions.
    lump : bool, default=False
        First merge states that are exactly equivalent for this cost (see :func:`diffbisim.lump`).
    warm : DistanceResult, default=None
        A previous result for processes of the same sizes to start from.
    callback : callable, default=None
        Called with each row of the history; returning True stops the run.

    Returns
    -------
    result : DistanceResult
        ``value`` with ``lower <= value <= upper``, and plans, encoder, decoder and gradient on demand.

    Warns
    -----
    ConvergenceWarning
        If the run ended before the gap reached ``tol``.
    InputWarning
        If the cost is the same for all pairs of states, as with constant rewards, so that the distance says nothing
        about the dynamics; and for objects that are used only in part (see :func:`diffbisim.as_chain`).

    Examples
    --------
    >>> X = MarkovChain([[0.5, 0.5], [0.0, 1.0]], rewards=[1.0, 0.0])
    >>> Y = MarkovChain([[0.5, 0.5], [0.0, 1.0]], rewards=[1.0, 0.5])
    >>> round(distance(X, Y, discount=0.5).value, 6)
    0.166667
    """
    (X, Y), chosen = as_processes((X, Y)), make_solver(solver, tol)
    check_callback(callback)
    if check_flag(lump, "lump"):
        chosen = solvers.Lumped(chosen)
    for name, side in (("X", X), ("Y", Y)):
        if isinstance(side, (Transitions, Stream)) and not chosen.samples:
            raise InvalidArgument(
                f"{name} is a {type(side).__name__}, which provides samples only: use solver='somcot' without lump; "
                "for Transitions use diffbisim.estimate(X, Y) or the empirical chain, data.chain()"
            )
    from_samples = chosen.samples and not all(isinstance(side, (MarkovChain, MDP, TimedChain)) for side in (X, Y))
    if from_samples:
        _check_for_samples(
            criterion, {"horizon": horizon, "weights": weights, "terminal": terminal, "actions": actions}
        )
    asked = criterion_of(criterion, horizon, weights, terminal, actions)
    check_discount_is_used(discount, asked)
    result: DistanceResult
    if from_samples:
        warn_of_unused({"X": X, "Y": Y}, None)
        result = chosen.estimate(X, Y, cost, discount, warm=warm, callback=callback)
    else:
        result = solve(asked.problem(X, Y, cost, discount), chosen, warm, callback)
    if remark := constant_cost(result.problem, cost):
        warn_of_input(remark)
    if not result.converged and result.outcome is not Status.ESTIMATE:
        warn(f"{result!r}. {result.status}", ConvergenceWarning, stacklevel=2)
    return result


def check_discount_is_used(discount: float, criterion: Criterion) -> None:
    """Raise if a discount other than the default is given to a problem without one."""
    if criterion.uses_discount or as_number(discount) == DISCOUNT:
        return
    if "weights" in criterion.options:
        raise InvalidArgument(f"discount is {discount!r}, but weights replace its powers; omit one of the two")
    raise InvalidArgument(
        f"discount is {discount!r}, but criterion={criterion.kind.criterion!r} has none; omit discount"
    )


def _check_for_samples(criterion: str, options: dict[str, Any]) -> None:
    """Raise if samples are given for a problem other than the discounted one."""
    for name, value in options.items():
        if value is not None:
            raise InvalidArgument(f"{name} is for known chains, but X or Y provides samples only; omit {name}")
    if criterion != Discounted.criterion:
        raise InvalidArgument(
            f"criterion is {criterion!r}, but from samples only the discounted distance is estimated; omit it"
        )


def used_discount(discount: float, criterion: Criterion) -> float:
    """Return the discount if the distance depends on it, else the default; for callers that also use it otherwise."""
    return discount if criterion.uses_discount else DISCOUNT


def constant_cost(problem: Any, cost: Any) -> str:
    """Return a remark if a named cost is the same for all pairs of states, so that the kernels do not matter."""
    if not isinstance(cost, str):
        return ""
    tables = problem.costs if isinstance(problem, FiniteHorizon) else [problem.cost]
    first = tables[0].flat[0]
    if any(table.flat[-1] != first for table in tables) or not all((table == first).all() for table in tables):
        return ""
    if sum(table.size for table in tables) == 1:
        return ""
    why = "no state of X is a state of Y (by name)" if cost == "indicator" else "all rewards of X and of Y are equal"
    if cost != "indicator" and first:
        why = "the rewards of X are all equal, and so are those of Y"
    return (
        f"cost={cost!r} is {first:g} for every pair of states, since {why}: the distance does not depend on the "
        "transition probabilities. Give rewards or a cost that tell states apart"
    )


def solve(
    problem: Any, solver: Any, warm: DistanceResult | None = None, callback: Callback | None = None
) -> DistanceResult:
    """Solve a problem after checking that the solver supports its criterion."""
    if not isinstance(problem, solver.solves):
        what, remedy = f"solver {solver.name!r}", "use solver='exact'"
        if solver.name == "lumped":
            what, remedy = "lump=True", "omit it, or compare the quotients (diffbisim.lump)"
        raise InvalidArgument(f"{what} does not support {problem.criterion!r} problems; {remedy}")
    result: DistanceResult = solver.solve(problem, warm=warm, callback=callback)
    return result


def make_solver(solver: Any, tol: float | None = None) -> Any:
    """Return a solver object from a name or object, with the given tolerance."""
    if isinstance(solver, str):
        if solver not in ALIASES:
            raise InvalidArgument(f"solver {solver!r} is unknown; choose one of {', '.join(map(repr, ALIASES))}")
        solver = getattr(solvers, ALIASES[solver])()
    if isinstance(solver, type) or not hasattr(solver, "solve"):
        what = f"the class {solver.__name__}" if isinstance(solver, type) else f"a {type(solver).__name__}"
        raise InvalidArgument(f"solver is {what}; give a name such as 'exact', or an object such as solvers.Exact()")
    if tol is None:
        return solver
    if solver.tol is None:
        raise InvalidArgument(f"{type(solver).__name__} has no tol, it runs for a fixed number of steps; omit tol")
    return replace(solver, tol=tol)


def make_solver_for_resampling(solver: Any, tol: float | None = None) -> Any:
    """Return a solver object for the distances between resampled chains; one that draws samples itself is refused.

    An interval takes hundreds of distances, between chains whose kernels are known. A solver that only draws from them
    takes minutes where others take a second, and its own error would count as a difference between the data.
    """
    chosen = make_solver(solver)
    if chosen.samples:
        raise InvalidArgument(
            f"solver is {chosen.name!r}, which only estimates a distance, and an interval needs hundreds of accurate "
            f"ones; use solver='exact', or diffbisim.distance(X, Y, solver={chosen.name!r}) for a single estimate"
        )
    return make_solver(chosen, tol)
