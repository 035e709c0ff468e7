"""The front door: ``distance(X, Y)`` between two Markov chains (between many: pairwise.py).

    d(X, Y) = (1-γ) min E Σ_t γ^t c(x_t, y_t)

over all joint processes whose marginals are the two chains and in which neither chain looks into the other's future
(bicausal couplings); equivalently the bisimulation metric when c(x,y) = |r(x) - r(y)|.

====================  =============================================================  ==========================
solver                what it does                                                   use it for
====================  =============================================================  ==========================
``"exact"``           policy iteration with exact transports; certified              everything (the default)
``"lp"``              the paper's linear program by HiGHS; certified                 checking, up to ~30 states
``"sinkhorn-policy"`` Sinkhorn's half-steps for all pairs at once; certified         a rough gap, the smooth loss
``"sinkhorn-value"``  the same without linear solves; certified                      the same, the paper's SVI
``"somcot"``          stochastic primal-dual steps on sample streams; an estimate    endless streams, the paper's way
====================  =============================================================  ==========================

``SinkhornPolicy(epsilon=0.1)`` computes another number: the entropic metric, a smooth loss (docs/sinkhorn.md).

A string selects a solver with its default options; an object from :mod:`diffbisim.solvers` carries its own.
"""

from dataclasses import replace
from typing import Any

from diffbisim import solvers
from diffbisim.chain import MarkovChain, Transitions
from diffbisim.data.streams import Stream
from diffbisim.errors import ConvergenceWarning, InvalidArgument, warn
from diffbisim.mdp import MDP
from diffbisim.process import as_processes
from diffbisim.questions import Question
from diffbisim.results import DistanceResult, Status
from diffbisim.solvers import ALIASES
from diffbisim.solvers.base import Callback
from diffbisim.timed import TimedChain


def distance(
    X: MarkovChain | MDP | TimedChain | Transitions | Stream,
    Y: MarkovChain | MDP | TimedChain | Transitions | Stream,
    cost: Any = "reward",
    discount: float = 0.95,
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
    """Distance between two Markov processes, with certified bounds.

    Parameters
    ----------
    X, Y : the chains (or timed chains), of any two sizes, or what :func:`diffbisim.as_chain` makes one of; with
        ``solver="somcot"`` also datasets (``Transitions``) and ``Stream`` objects
    cost : "reward" (|r(x) - r(y)|), "squared" (its square), "indicator" (1 where the states differ), an (n_X, n_Y)
        array, or a callable; with a horizon also a list of arrays, one per time
    discount : weight γ of the next step, strictly between 0 and 1
    solver : "exact", "lp", "sinkhorn-policy", "sinkhorn-value", "somcot", or an object from :mod:`diffbisim.solvers`
    tol : certified gap to reach, relative to the largest cost (default: the solver's own, 1e-8; Sinkhorn 1e-3)
    criterion : "discounted"; "average", the long-run mean cost per step; or "total", undiscounted until absorption
        (neither uses ``discount``)
    horizon : number of steps T of a finite horizon: costs count by powers of the discount, which sum to one, and
        ``discount=1`` is allowed. The default for a ``TimedChain`` is its own number of steps
    weights : non-negative weights of the costs at times 0 … T, as they are, in place of the powers of the discount
    terminal : (n_X, n_Y) booleans, pairs where the total cost ends; default: pairs of absorbing states without cost
    actions : for two MDPs, "matched" (both take the same action; Ferns' metric, the default), "lax" (the other answers
        with its nearest action) or "directed" (one half of it); costs may then be per action (see docs/mdps)
    lump : first merge the states of each chain that are exactly equivalent for this cost (see :func:`diffbisim.lump`)
    warm : a previous result for chains of the same sizes, to start from
    callback : called with every row of history; returning True stops the run

    Returns
    -------
    DistanceResult : ``value`` with ``lower <= value <= upper``, and plans, encoder, decoder, gradient on demand

    Examples
    --------
    >>> X = MarkovChain([[0.5, 0.5], [0.0, 1.0]], rewards=[1.0, 0.0])
    >>> Y = MarkovChain([[0.5, 0.5], [0.0, 1.0]], rewards=[1.0, 0.5])
    >>> round(distance(X, Y, discount=0.5).value, 6)
    0.166667
    """
    (X, Y), chosen = as_processes((X, Y)), make_solver(solver, tol)
    if lump:
        chosen = solvers.Lumped(chosen)
    for name, side in (("X", X), ("Y", Y)):
        if isinstance(side, (Transitions, Stream)) and not chosen.samples:
            raise InvalidArgument(
                f"{name} is a {type(side).__name__}, known by samples only: use solver='somcot' without lump, or for "
                "Transitions diffbisim.estimate(X, Y), or the empirical chain, data.chain()"
            )
    result: DistanceResult
    if chosen.samples and not all(isinstance(side, (MarkovChain, MDP, TimedChain)) for side in (X, Y)):
        result = chosen.estimate(X, Y, cost, discount, warm=warm, callback=callback)
    else:
        question = Question(criterion, horizon, weights, terminal, actions)
        result = solve(question.problem(X, Y, cost, discount), chosen, warm, callback)
    if not result.converged and result.outcome is not Status.ESTIMATE:
        warn(f"{result!r}. {result.status}", ConvergenceWarning, stacklevel=2)
    return result


def solve(
    problem: Any, solver: Any, warm: DistanceResult | None = None, callback: Callback | None = None
) -> DistanceResult:
    """Any problem by a solver that can: the way of :func:`distance`, the bridges and all that is built on them."""
    if problem.criterion not in solver.criteria:
        raise InvalidArgument(
            f"solver {solver.name!r} does not solve problems of the kind {problem.criterion!r}; use solver='exact'"
        )
    result: DistanceResult = solver.solve(problem, warm=warm, callback=callback)
    return result


def make_solver(solver: Any, tol: float | None = None) -> Any:
    """The solver object behind a string, with its tolerance."""
    if isinstance(solver, str):
        if solver not in ALIASES:
            raise InvalidArgument(f"solver {solver!r} is not known; choose one of {', '.join(map(repr, ALIASES))}")
        solver = getattr(solvers, ALIASES[solver])()
    if isinstance(solver, type) or not hasattr(solver, "solve"):
        what = f"the class {solver.__name__}" if isinstance(solver, type) else f"a {type(solver).__name__}"
        raise InvalidArgument(f"solver is {what}; give a name such as 'exact', or an object such as solvers.Exact()")
    if tol is None:
        return solver
    if solver.tol is None:
        raise InvalidArgument(f"{type(solver).__name__} has no tol; it ends after its number of steps: leave tol out")
    return replace(solver, tol=tol)
