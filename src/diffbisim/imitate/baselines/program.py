"""The convex programs over occupancies that `pw_dice`, `smodice` and `lobs_dice` share.

    minimize  c'z + Σ_i w_i KL(M_i z ‖ t_i)      over  z ≥ 0  with  E z = b;      KL(x ‖ t) = Σ x log(x/t)

z begins with ρ(s,a) on the support of ρ_I, and E with the Bellman flow,

    Σ_a ρ(s,a) = (1-γ) p0(s) + γ Σ_{s̄,ā} T(s|s̄,ā) ρ(s̄,ā)

One of the divergences is α KL(ρ ‖ ρ_I): it is infinite unless ρ vanishes wherever ρ_I does, so only the pairs (s, a) on
the support of ρ_I are variables; nothing is lost, and small data make small programs. A KL with a fixed second law is
written as negative entropy plus a linear term, Σ x log x - x log t: its coefficients log t are of order one where the
law t itself is tiny, and that decides whether the solver gets there. Written in cvxpy, solved by Clarabel (interior
point, exponential cones) to TOLERANCE.

What that leaves open: from a gap of 1e-8 follows α KL(ρ ‖ ρ*) ≤ 1e-8 and no more, |ρ - ρ*|_1 ≤ √(2 · 1e-8 / α), 1.4e-3
at α = 0.01; the digits beyond are the machine's. So the answer is polished by Newton's method on the optimality
conditions,

    r = c + Σ_i w_i M_i'(log(M_i z / t_i) + 1) + E'y = 0,      E z = b,

if every variable has an entropy of its own, which keeps it positive. Entropies are strongly convex, so that now

    |ρ - ρ*|_1 ≤ max|r| / α

and the tolerance of the result is max|r|, at most POLISHED. Newton's method may fail where plans are singular to
rounding (e^{-1/ε1} < 1e-16), and without regularization it has nothing to stand on: the tolerance is then Clarabel's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.special import xlogy

from diffbisim.checks import Floats, Integers
from diffbisim.errors import ConvergenceWarning, InvalidArgument, InvalidData, MissingExtra, warn
from diffbisim.imitate.baselines.frame import BaselineResult, OfflineData, Outcome, policy_of

TOLERANCE = 1e-8  # of Clarabel: gap and feasibility; what only reaches 5e-5 is called inaccurate
POLISHED = 1e-12  # of the optimality conditions
STEPS, PATIENCE = 50, 8
RIDGE = 1e-14


def modeling() -> Any:
    """The module cvxpy."""
    try:
        import cvxpy
    except ImportError:
        raise MissingExtra('this baseline needs cvxpy: pip install "diffbisim[baselines]"') from None
    return cvxpy


class Divergence(NamedTuple):
    """``w KL(M z ‖ t)``; where t is zero, so must be M z."""

    weight: float
    matrix: sp.csr_array  # M, (rows, size of z), non-negative
    target: Floats  # t, (rows,)


@dataclass(frozen=True, eq=False)
class Program:
    """The variables ρ and their flow."""

    data: OfflineData
    behavior: Floats  # (n, n_actions), ρ_I
    states: Integers  # (k,) of the pairs on the support of ρ_I
    actions: Integers  # (k,)
    flow: sp.csr_array  # (n, k)
    start: Floats  # (n,), what the flow equals

    @classmethod
    def make(cls, data: OfflineData, discount: float) -> Program:
        modeling()  # say at once that it is missing
        rho_i = data.occupancy(discount)
        states, actions = np.nonzero(rho_i > 0.0)
        arriving = sp.csr_array(data.dynamics[actions, states].T)  # (n, k): T(s|s̄,ā)
        inside = np.unique(states)  # elsewhere both sides are zero
        flow = (_sums(states, data.n_states) - discount * arriving).tocsr()[inside]
        return cls(data, rho_i, states, actions, flow, (1.0 - discount) * data.mdp.initial[inside])

    @property
    def state_occupancy(self) -> sp.csr_array:
        """``ρ(s)`` as a matrix (n, k)."""
        return _sums(self.states, self.data.n_states)

    def transition_occupancy(self) -> tuple[sp.csr_array, Integers, Integers]:
        """``ν(s,s') = Σ_a ρ(s,a) T(s'|s,a)`` where it can be positive (cells, k), and the s, s' of its rows."""
        n, rows = self.data.n_states, sp.csr_array(self.data.dynamics[self.actions, self.states])
        k = np.repeat(np.arange(self.states.size), np.diff(rows.indptr))
        cells, entry = np.unique(self.states[k] * n + rows.indices, return_inverse=True)
        matrix = sp.csr_array((rows.data, (entry, k)), shape=(cells.size, self.states.size))
        return matrix, cells // n, cells % n

    def solve(self, alpha: float, *terms: Divergence, cost: Any = (), equal: Any = None) -> BaselineResult:
        """Minimize α KL(ρ ‖ ρ_I), the other terms and the cost of the variables after ρ; read off the policy.

        ``equal``: a matrix (rows, size of z) and what it times z equals, beside the flow.
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
                f"Clarabel called the program {verdict}; raise the regularization or the smoothing, or give more data"
            )
        z, miss = polished(z, c, terms, E, b)
        solved = verdict == "optimal" or miss <= POLISHED
        status = Outcome.SOLVED if solved else Outcome.INACCURATE
        if status is Outcome.INACCURATE:
            warn(status.value, ConvergenceWarning, stacklevel=3)
        rho = np.zeros_like(self.behavior)
        rho[self.states, self.actions] = z[:k]
        value = float(c @ z + sum(term.weight * _divergence(term, z) for term in terms))
        return BaselineResult(policy_of(rho), value, status, rho, miss)


def _minimize(c: Floats, terms: tuple[Divergence, ...], E: sp.csr_array, b: Floats) -> tuple[Floats, str]:
    """Clarabel's ``z`` and its verdict, if need be with other settings: a few in a hundred stall with the first."""
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
        # Not problem.solve, which warns of an inaccurate solution: the caller says that, after the last attempt.
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
    """Newton's method on the optimality conditions from Clarabel's answer, and by how much they are missed in the end.

    Steps are solved for in the scale √z, where the Hessian of an entropy is the identity. A variable grows by its step
    and shrinks by a factor, z exp(step/z): both are the step to first order, and nothing becomes negative. Redundant
    equations are met by a ridge; what it takes from one step, the next one gives.
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
        with np.errstate(all="ignore"):  # what runs away ends below
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
    """The variables that need not vanish, and the terms on them; None unless each has an entropy of its own."""
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
    """The step of x relative to x, and of the multipliers: H dx + E'dy = -r, E dx = p."""
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
    """The smoothing δ, in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise InvalidArgument(f"smoothing is {value!r}; it must be at least 0 and below 1")
    return float(value)


def smoothed(nu: Floats, reference: Floats, share: float) -> Floats:
    """``(1-δ) ν + δ ν_I``: an expert law that excludes nothing the data contain."""
    mixed: Floats = (1.0 - share) * nu + share * reference / reference.sum()
    return mixed


def _sums(states: Integers, n: int) -> sp.csr_array:
    """(n, k): sums the pairs of each state."""
    return sp.csr_array((np.ones(states.size), (states, np.arange(states.size))), shape=(n, states.size))
