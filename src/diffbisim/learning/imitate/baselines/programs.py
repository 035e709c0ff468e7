"""Convex programs over occupancies: `state_matching`, `pw_dice`, `smodice` and `lobs_dice`.

*The common form of the last three.*

    minimize  c'z + Σ_i w_i KL(M_i z ‖ t_i)      over  z ≥ 0  with  E z = b;      KL(x ‖ t) = Σ x log(x/t)

z begins with ρ(s,a) on the support of ρ_I, and E with the Bellman flow,

    Σ_a ρ(s,a) = (1-γ) p0(s) + γ Σ_{s̄,ā} T(s|s̄,ā) ρ(s̄,ā)

One of the divergences is α KL(ρ ‖ ρ_I): it is infinite unless ρ vanishes wherever ρ_I does, so only the pairs (s, a) on
the support of ρ_I are variables; nothing is lost, and small data make small programs. A KL with a fixed second law is
written as negative entropy plus a linear term, Σ x log x - x log t: its coefficients log t are of order one where the
law t itself is tiny, which the solver needs to converge. Written in cvxpy, solved by Clarabel (interior point,
exponential cones) to TOLERANCE.

A gap of 1e-8 implies only α KL(ρ ‖ ρ*) ≤ 1e-8, that is |ρ - ρ*|_1 ≤ √(2 · 1e-8 / α), 1.4e-3 at α = 0.01; further
digits would depend on the machine. The answer is therefore polished by Newton's method on the optimality conditions,

    r = c + Σ_i w_i M_i'(log(M_i z / t_i) + 1) + E'y = 0,      E z = b,

if every variable has an entropy of its own, which keeps it positive. Entropies are strongly convex, so that

    |ρ - ρ*|_1 ≤ max|r| / α

and the tolerance of the result is max|r|, at most POLISHED. Newton's method can fail if plans are singular to rounding
(e^{-1/ε1} < 1e-16), and it is not applicable without regularization; the tolerance is then Clarabel's.

*State-occupancy matching by optimal transport*, a linear program that compares marginals only.

    minimize  <Π, c>      over Π(s,s') ≥ 0, ρ(s,a) ≥ 0
    s.t.      Σ_s' Π(s,s') = Σ_a ρ(s,a),     Σ_s Π(s,s') = ρ_E(s'),
              Σ_a ρ(s,a) = (1-γ) p0(s) + γ Σ_{s̄,ā} T(s|s̄,ā) ρ(s̄,ā)

The minimum is zero for every policy with the expert's state occupancy, however it moves between the states; the solver
returns any of them. For c = 1{s ≠ s'} the transport cost is the total variation, and the plan is replaced by the mass
that stays, t ≤ ρ(s), t ≤ ρ_E(s), minimize 1 - Σ t, which needs n additional variables instead of n².

Solved by HiGHS (scipy), without cvxpy, to 1e-10 in every constraint, so the error of the transport cost is at most
1e-10 times the sum of the dual prices, 1e-10 · (n + 1) max c / (1-γ). The policy need not be unique. Size: 500 states
and 6 actions take seconds with the indicator cost; with a general cost the plan has (states) × (expert's states)
entries, which is practical up to about 100 states.

*PW-DICE* (Yan, Schwing, Wang 2024): primal Wasserstein distance between state occupancies, as a convex program.

    minimize  <Π, c> + ε1 KL(Π ‖ U) + ε2 KL(ρ ‖ ρ_I)                       over Π(s,s') ≥ 0, ρ(s,a) ≥ 0
    s.t.      Σ_s' Π(s,s') = Σ_a ρ(s,a),     Σ_s Π(s,s') = ρ_E(s'),     Bellman flow of ρ (see above)

with U(s,s') = ρ_I(s) ρ_E(s'), c = 1{s ≠ s'} by default, and π = ρ(s,a)/ρ(s). The coupling matches *where* the two are,
not where they go next: policies with equal state occupancies have equal cost, and ε2 favors the one closest to the
behavior policy. As ε1, ε2 → 0 it becomes `state_matching` on the support of the data.

Size: one exponential cone per pair of (states in the data) × (expert's states), and one per (s, a) in the data;
64 states (4 096 cones) take a second or two, 104 about 15 s, several hundred are too many.

*SMODICE* (Ma, Shen, Jayaraman, Bastani 2022): KL between state occupancies.

    minimize  KL(ρ(s) ‖ ρ_E(s)) + α KL(ρ(s,a) ‖ ρ_I(s,a))      over ρ(s,a) ≥ 0 with Bellman flow (see above)

The published objective is its upper bound E_ρ[log ρ_I(s)/ρ_E(s)] + KL(ρ(s,a) ‖ ρ_I(s,a)), designed for samples; here
the program itself is solved, with the regularizer of `lobs_dice` and `pw_dice`. Only state marginals of the expert
enter. The KL is infinite if the learner must visit states where the expert was never observed, so ρ_E is first mixed
with a fraction δ of ρ_I.

Size: one exponential cone per (s, a) in the data and one per state.

*LobsDICE* (Kim et al. 2022): KL between state-transition occupancies.

    minimize  KL(ν(s,s') ‖ ν_E(s,s')) + α KL(ρ(s,a) ‖ ρ_I(s,a)),      ν(s,s') = Σ_a ρ(s,a) T(s'|s,a)
    over      ρ(s,a) ≥ 0 with Bellman flow (see above)

The published algorithm solves the dual from samples; here the program itself is solved. It compares pairs (s, s'), so
unlike `smodice`, `pw_dice` and `state_matching` it takes into account how the expert moves. The KL is infinite if the
learner must make transitions that the expert was never observed to make, so ν_E is first mixed with a fraction δ of
ν_I.

Size: one exponential cone per (s, a) in the data and one per transition (s, s') that they allow. Pairs (s, a) that were
never observed have uniform successors in the estimated MDP, which can make programs large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import xlogy

from diffbisim.common.checks import Floats, Integers
from diffbisim.common.errors import ConvergenceWarning, InvalidArgument, InvalidCost, InvalidData, MissingExtra, warn
from diffbisim.common.parallel import run_abandonable
from diffbisim.learning.imitate.baselines.data import BaselineResult, OfflineData, check_positive, checked, policy_of
from diffbisim.results.base import Status

HIGHS = 1e-10  # feasibility of linear programs
TOLERANCE = 1e-8  # gap and feasibility of Clarabel, which reports solutions within 5e-5 as inaccurate
POLISHED = 1e-12  # violation of the optimality conditions after polishing
STEPS, PATIENCE = 50, 8  # of Newton's method: maximum number, and number without progress
RIDGE = 1e-14


def state_matching(offline: Any, expert: Any, discount: float, *, cost: Any = "indicator") -> BaselineResult:
    """Match the expert's state occupancy by optimal transport.

    Parameters
    ----------
    offline : OfflineData or MDP
        Offline data, or an MDP for known dynamics; π_I and ρ_I are not used.
    expert : MarkovChain, tuple (s, s_next), Transitions or array of shape (n, n)
        The expert; an array is an occupancy table.
    discount : float
        Discount γ.
    cost : "indicator" or array of shape (n, n), default="indicator"
        Transport cost c(s, s').

    Returns
    -------
    BaselineResult
        Its objective is the transport cost.
    """
    data, nu = checked(offline, expert, discount)
    target = nu.sum(axis=1)
    if isinstance(cost, str) and cost == "indicator":
        return _stay(data, discount, target)
    return _move(data, discount, target, state_cost(cost, data.n_states))


def state_cost(cost: Any, n: int) -> Floats:
    """Return the (n, n) cost between states."""
    if isinstance(cost, str):
        if cost != "indicator":
            raise InvalidCost(f'cost is {cost!r}; use "indicator" or an ({n}, {n}) array')
        return 1.0 - np.eye(n)
    table = np.asarray(cost, dtype=np.float64)
    if table.shape != (n, n) or not np.isfinite(table).all() or table.min() < 0.0:
        raise InvalidCost(f"cost has shape {table.shape}; expected shape ({n}, {n}) with finite entries >= 0")
    return table


def _stay(data: OfflineData, discount: float, target: Floats) -> BaselineResult:
    """Solve for t (n,) and ρ (n · n_actions,) with t ≤ ρ(s) and t ≤ ρ_E."""
    n = data.n_states
    leaving, flow, start = _flow(data, discount)
    A_ub = sp.hstack([sp.eye_array(n), -leaving], format="csc")
    A_eq = sp.hstack([sp.csr_array((n, n)), flow], format="csc")
    high = np.concatenate([target, np.full(flow.shape[1], np.inf)])
    return _linear_program(data, -np.ones(n), 1.0, A_ub=A_ub, b_ub=np.zeros(n), A_eq=A_eq, b_eq=start, high=high)


def _move(data: OfflineData, discount: float, target: Floats, c: Floats) -> BaselineResult:
    """Solve for Π (all states × the expert's) and ρ; rows of Π sum to ρ(s), columns to ρ_E."""
    n, columns = data.n_states, np.flatnonzero(target)
    m = columns.size
    leaving, flow, start = _flow(data, discount)
    rows = sp.kron(sp.eye_array(n), np.ones((1, m)), format="csr")
    sums = sp.kron(np.ones((1, n)), sp.eye_array(m), format="csr")
    A_eq = sp.block_array([[None, flow], [rows, -leaving], [sums, None]], format="csc")
    b_eq = np.concatenate([start, np.zeros(n), target[columns]])
    return _linear_program(data, c[:, columns].ravel(), 0.0, A_eq=A_eq, b_eq=b_eq, high=np.inf)


def _flow(data: OfflineData, discount: float) -> tuple[sp.csr_array, sp.csr_array, Floats]:
    """Return Σ_a as a matrix (n, n · n_actions), and both sides of the Bellman flow for ρ in the order (s, a)."""
    n, m = data.n_states, data.n_actions
    leaving = sp.kron(sp.eye_array(n), np.ones((1, m)), format="csr")
    arriving = sp.csr_array(data.dynamics.transpose(1, 0, 2).reshape(n * m, n).T)
    return leaving, leaving - discount * arriving, (1.0 - discount) * data.mdp.initial


def _linear_program(
    data: OfflineData, weights: Floats, constant: float, *, high: Any, **program: Any
) -> BaselineResult:
    """Solve the linear program with HiGHS and read off the policy."""
    from scipy.optimize import linprog

    n, m = data.n_states, data.n_actions
    objective = np.concatenate([weights, np.zeros(n * m)])
    bounds = np.stack([np.zeros(objective.size), np.broadcast_to(high, objective.size)], axis=1)
    tight = {"primal_feasibility_tolerance": HIGHS, "dual_feasibility_tolerance": HIGHS}
    done = run_abandonable(linprog, objective, bounds=bounds, method="highs", options=tight, **program)
    if done.x is None:
        raise InvalidData(f"HiGHS found no solution ({done.message}); check the expert and the offline data")
    rho = np.maximum(done.x[weights.size :].reshape(n, m), 0.0)
    status = Status.SOLVED if done.status == 0 else Status.INACCURATE
    return BaselineResult(policy_of(rho), max(float(done.fun) + constant, 0.0), status, rho, HIGHS)


def pw_dice(
    offline: Any,
    expert: Any,
    discount: float,
    *,
    cost: Any = "indicator",
    coupling_regularization: float = 0.01,
    regularization: float = 0.01,
) -> BaselineResult:
    """Compute the policy of PW-DICE.

    Parameters
    ----------
    offline : OfflineData or MDP
        Offline data; an MDP stands for known dynamics and infinitely many transitions.
    expert : MarkovChain, tuple (s, s_next), Transitions or array of shape (n, n)
        The expert; an array is an occupancy table.
    discount : float
        Discount γ.
    cost : "indicator" or array of shape (n, n), default="indicator"
        Transport cost c(s, s').
    coupling_regularization, regularization : float, default=0.01
        ε1 and ε2; zero is allowed.

    Returns
    -------
    BaselineResult
        Its objective is the regularized transport cost.
    """
    data, nu = checked(offline, expert, discount)
    c = state_cost(cost, data.n_states)
    e1 = check_positive(coupling_regularization, "coupling_regularization", zero=True)
    e2 = check_positive(regularization, "regularization", zero=True)
    program, target = FlowProgram.make(data, discount), nu.sum(axis=1)
    rows, columns = np.unique(program.states), np.flatnonzero(target)
    product = np.outer(program.behavior.sum(axis=1)[rows], target[columns])  # U
    n, m = product.shape
    plan = sp.eye_array(n * m, format="csr")  # after ρ, row by row
    other = np.arange(m) != target[columns].argmax()  # one column constraint is redundant: both laws sum to one
    over_rows, over_columns = sp.kron(sp.eye_array(n), np.ones((1, m))), sp.kron(np.ones((1, n)), np.eye(m)[other])
    marginals = sp.block_array([[-program.state_occupancy[rows], over_rows], [None, over_columns]], format="csr")
    none = sp.csr_array((n * m, program.states.size))
    return program.solve(
        e2,
        Divergence(e1, sp.hstack([none, plan], format="csr"), product.ravel()),
        cost=c[np.ix_(rows, columns)].ravel(),
        equal=(marginals, np.concatenate([np.zeros(n), target[columns[other]]])),
    )


def smodice(
    offline: Any, expert: Any, discount: float, *, regularization: float = 0.01, smoothing: float = 1e-3
) -> BaselineResult:
    """Compute the policy of SMODICE.

    Parameters
    ----------
    offline, expert, discount
        As in :func:`pw_dice`.
    regularization : float, default=0.01
        Weight α of KL(ρ ‖ ρ_I).
    smoothing : float, default=1e-3
        Fraction δ of ρ_I in the expert's law; zero is allowed if the expert visits every state of the data.

    Returns
    -------
    BaselineResult
        Its objective is the sum of the two divergences.
    """
    data, nu = checked(offline, expert, discount)
    alpha, delta = check_positive(regularization, "regularization", zero=True), check_share(smoothing)
    program = FlowProgram.make(data, discount)
    target = smoothed(nu.sum(axis=1), program.behavior.sum(axis=1), delta)
    inside = np.unique(program.states)
    return program.solve(alpha, Divergence(1.0, program.state_occupancy[inside], target[inside]))


def lobs_dice(
    offline: Any, expert: Any, discount: float, *, regularization: float = 0.01, smoothing: float = 1e-3
) -> BaselineResult:
    """Compute the policy of LobsDICE.

    Parameters
    ----------
    offline, expert, discount
        As in :func:`pw_dice`.
    regularization : float, default=0.01
        Weight α of KL(ρ ‖ ρ_I).
    smoothing : float, default=1e-3
        Fraction δ of ν_I in the expert's law; zero is allowed if the expert makes every transition of the data.

    Returns
    -------
    BaselineResult
        Its objective is the sum of the two divergences.
    """
    data, nu = checked(offline, expert, discount)
    alpha, delta = check_positive(regularization, "regularization", zero=True), check_share(smoothing)
    program = FlowProgram.make(data, discount)
    law, s, s_next = program.transition_occupancy()
    behavior = np.einsum("sa,ast->st", program.behavior, data.dynamics)  # ν_I
    return program.solve(alpha, Divergence(1.0, law, smoothed(nu, behavior, delta)[s, s_next]))


# --- the common form of the last three ----------------------------------------------------------------------


def modeling() -> Any:
    """Import and return cvxpy."""
    try:
        import cvxpy
    except ImportError:
        raise MissingExtra('this baseline needs cvxpy: pip install "diffbisim[baselines]"') from None
    return cvxpy


class Divergence(NamedTuple):
    """The term w KL(M z ‖ t); M z must be zero where t is."""

    weight: float
    matrix: sp.csr_array  # M, (rows, size of z), non-negative
    target: Floats  # t, (rows,)


@dataclass(frozen=True, eq=False)
class FlowProgram:
    """The variables ρ and their Bellman flow."""

    data: OfflineData
    behavior: Floats  # (n, n_actions), ρ_I
    states: Integers  # (k,) of the pairs on the support of ρ_I
    actions: Integers  # (k,)
    flow: sp.csr_array  # (n, k)
    start: Floats  # (n,), what the flow equals

    @classmethod
    def make(cls, data: OfflineData, discount: float) -> FlowProgram:
        """Build the variables and constraints from offline data."""
        modeling()  # raises early if cvxpy is missing
        rho_i = data.occupancy(discount)
        states, actions = np.nonzero(rho_i > 0.0)
        arriving = sp.csr_array(data.dynamics[actions, states].T)  # (n, k): T(s|s̄,ā)
        inside = np.unique(states)  # both sides of the flow are zero elsewhere
        flow = (_sums(states, data.n_states) - discount * arriving).tocsr()[inside]
        return cls(data, rho_i, states, actions, flow, (1.0 - discount) * data.mdp.initial[inside])

    @property
    def state_occupancy(self) -> sp.csr_array:
        """The map from ρ to ρ(s), a matrix (n, k)."""
        return _sums(self.states, self.data.n_states)

    def transition_occupancy(self) -> tuple[sp.csr_array, Integers, Integers]:
        """Return the map from ρ to ν(s,s') where it can be positive, (cells, k), and the s and s' of its rows."""
        n, rows = self.data.n_states, sp.csr_array(self.data.dynamics[self.actions, self.states])
        k = np.repeat(np.arange(self.states.size), np.diff(rows.indptr))
        cells, entry = np.unique(self.states[k] * n + rows.indices, return_inverse=True)
        matrix = sp.csr_array((rows.data, (entry, k)), shape=(cells.size, self.states.size))
        return matrix, cells // n, cells % n

    def solve(self, alpha: float, *terms: Divergence, cost: Any = (), equal: Any = None) -> BaselineResult:
        """Minimize α KL(ρ ‖ ρ_I), the other terms and the cost of the variables after ρ, and read off the policy.

        `equal` holds further equations: a matrix (rows, size of z) and its right-hand side.
        """
        k, extra = self.states.size, len(cost)
        own = sp.eye_array(k, k + extra, format="csr")
        E, b = sp.hstack([self.flow, sp.csr_array((self.start.size, extra))], format="csr"), self.start
        if equal is not None:
            E, b = sp.vstack([E, equal[0]], format="csr"), np.concatenate([b, equal[1]])
        terms = (Divergence(alpha, own, self.behavior[self.states, self.actions]), *terms)
        terms = tuple(term for term in terms if term.weight > 0.0)
        c = np.concatenate([np.zeros(k), cost])
        z, verdict = _minimize(c, terms, E, b)
        if verdict not in ("optimal", "optimal_inaccurate"):
            raise InvalidData(
                f"Clarabel reports {verdict}; raise the regularization or the smoothing, or use more offline data"
            )
        z, miss = polished(z, c, terms, E, b)
        solved = verdict == "optimal" or miss <= POLISHED
        status = Status.SOLVED if solved else Status.INACCURATE
        if status is Status.INACCURATE:
            warn(status.value, ConvergenceWarning, stacklevel=3)
        rho = np.zeros_like(self.behavior)
        rho[self.states, self.actions] = z[:k]
        value = float(c @ z + sum(term.weight * _divergence(term, z) for term in terms))
        return BaselineResult(policy_of(rho), value, status, rho, miss)


def _minimize(c: Floats, terms: tuple[Divergence, ...], E: sp.csr_array, b: Floats) -> tuple[Floats, str]:
    """Return Clarabel's z and verdict, trying other settings if it stalls (a few percent of problems)."""
    cp = modeling()
    z = cp.Variable(c.size, nonneg=True)
    objective, constraints = c @ z, [E @ z == b]
    for weight, matrix, target in terms:
        inside = target > 0.0
        law = matrix[inside] @ z
        objective = objective - weight * (cp.sum(cp.entr(law)) + cp.sum(cp.multiply(np.log(target[inside]), law)))
        if not inside.all():
            constraints.append(matrix[~inside] @ z == 0.0)
    problem = cp.Problem(cp.Minimize(objective), constraints)
    verdict = "failed"
    tolerances = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), TOLERANCE)
    data, chain, inverse = problem.get_problem_data(cp.CLARABEL, solver_opts={})
    for settings in ({}, {"equilibrate_enable": False}, {"max_step_fraction": 0.9}):
        # problem.solve would warn about an inaccurate solution at every attempt; the caller warns after the last one.
        options = {"max_iter": 500, **tolerances, **settings}
        try:
            solution = chain.invert(chain.solve_via_data(problem, data, False, False, options), inverse)
        except cp.SolverError:
            verdict = "failed"
            continue
        verdict = str(solution.status)
        if verdict in ("optimal", "optimal_inaccurate"):
            problem.unpack(solution)
        if verdict in ("optimal", "infeasible"):
            break
    return np.zeros(c.size) if z.value is None else np.maximum(z.value, 0.0), verdict


def polished(z: Floats, c: Floats, terms: tuple[Divergence, ...], E: sp.csr_array, b: Floats) -> tuple[Floats, float]:
    """Improve Clarabel's answer by Newton's method on the optimality conditions; return it and their violation.

    Steps are computed in the scale √z, in which the Hessian of an entropy is the identity. A variable grows by its step
    and shrinks by a factor, z exp(step/z); both agree with the step to first order, and nothing becomes negative. A
    ridge handles redundant equations; the next step compensates for it.
    """
    free, terms = _interior(terms, z.size)
    if free is None:
        return z, TOLERANCE
    c, E = c[free], E[:, free]
    x, y = np.maximum(z[free], 1e-12), np.zeros(b.size)
    best, least, patience = x, np.inf, PATIENCE
    for _ in range(STEPS):
        laws = [matrix @ x for _, matrix, _ in terms]
        r, p = c + E.T @ y, b - E @ x
        with np.errstate(all="ignore"):  # divergence is detected below
            for (weight, matrix, target), law in zip(terms, laws, strict=True):
                r += weight * (matrix.T @ (np.log(law / target) + 1.0))
        miss = float(max(np.abs(r).max(), np.abs(p).max()))
        if not np.isfinite(miss):
            break
        patience -= miss >= 0.5 * least
        if patience == 0 or (least <= POLISHED and miss >= 0.5 * least):
            break
        if miss < least:
            best, least = x, miss
        try:
            step, change = _newton(x, r, p, terms, laws, E)
        except RuntimeError:  # singular
            break
        x, y = x * np.where(step > 0.0, 1.0 + step, np.exp(np.minimum(step, 0.0))), y + change
    if least > POLISHED:
        return z, TOLERANCE
    answer = np.zeros(z.size)
    answer[free] = best
    return answer, least


def _interior(terms: tuple[Divergence, ...], size: int) -> tuple[Any, tuple[Divergence, ...]]:
    """Return the variables that can be positive and the terms on them; None unless each has an entropy of its own."""
    free, own = np.ones(size, dtype=bool), np.zeros(size, dtype=bool)
    for _, matrix, target in terms:
        free[matrix[target == 0.0].indices] = False
    for _, matrix, _ in terms:
        own[matrix.indices[matrix.indptr[:-1][np.diff(matrix.indptr) == 1]]] = True
    kept = tuple(Divergence(w, M[t > 0.0][:, free], t[t > 0.0]) for w, M, t in terms)
    return (free if free.any() and own[free].all() else None), kept


def _newton(
    x: Floats, r: Floats, p: Floats, terms: tuple[Divergence, ...], laws: list[Floats], E: sp.csr_array
) -> tuple[Floats, Floats]:
    """Return the step of x relative to x, and of the multipliers: H dx + E'dy = -r, E dx = p."""
    from scipy.sparse.linalg import splu

    root = sp.diags_array(np.sqrt(x))
    H = sp.csr_array((x.size, x.size))
    for (weight, matrix, _), law in zip(terms, laws, strict=True):
        A = matrix @ root
        H = H + A.T @ sp.diags_array(weight / law) @ A
    F = E @ root
    norms = np.sqrt(np.asarray((F * F).sum(axis=1)).ravel())
    S = sp.diags_array(1.0 / np.where(norms > 0.0, norms, 1.0))
    F = S @ F
    system = sp.block_array([[H, F.T], [F, -RIDGE * sp.eye_array(p.size)]], format="csc")
    solved = splu(system, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    u = solved.solve(np.concatenate([-(root @ r), S @ p]))
    return u[: x.size] / np.sqrt(x), S @ u[x.size :]


def _divergence(term: Divergence, z: Floats) -> float:
    law = term.matrix @ z
    return float((xlogy(law, law) - xlogy(law, term.target)).sum())


def check_share(value: float) -> float:
    """Return the smoothing δ, which must be in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise InvalidArgument(f"smoothing is {value!r}; it must be at least 0 and less than 1")
    return float(value)


def smoothed(nu: Floats, reference: Floats, share: float) -> Floats:
    """Return (1-δ) ν + δ ν_I, an expert law that is positive wherever the data are."""
    mixed: Floats = (1.0 - share) * nu + share * reference / reference.sum()
    return mixed


def _sums(states: Integers, n: int) -> sp.csr_array:
    """Return the matrix (n, k) that sums the pairs of each state."""
    return sp.csr_array((np.ones(states.size), (states, np.arange(states.size))), shape=(n, states.size))
