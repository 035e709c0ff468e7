"""The convex programs over occupancies that `pw_dice`, `smodice` and `lobs_dice` share.

    minimize  F(ρ) + α KL(ρ ‖ ρ_I)
    over      ρ(s,a) ≥ 0   with   Σ_a ρ(s,a) = (1-γ) p0(s) + γ Σ_{s̄,ā} T(s|s̄,ā) ρ(s̄,ā)          (Bellman flow)

The KL is infinite unless ρ vanishes wherever ρ_I does, so only the pairs (s, a) on the support of ρ_I are variables:
nothing is lost, and small data make small programs. A KL with a fixed second law is written as negative entropy plus
a linear term, Σ x log x - x log y: its coefficients log y are of order one where the law y itself is tiny, and that
decides whether the solver gets there. Written in cvxpy, solved by Clarabel (interior point, exponential cones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from diffbisim.checks import Floats, Integers
from diffbisim.errors import ConvergenceWarning, InvalidArgument, InvalidData, MissingExtra, warn
from diffbisim.imitate.baselines.frame import BaselineResult, OfflineData, Outcome, policy_of

TOLERANCE = 1e-8  # of Clarabel: gap and feasibility; what only reaches 5e-5 is called inaccurate


def modeling() -> Any:
    """The module cvxpy."""
    try:
        import cvxpy
    except ImportError:
        raise MissingExtra('this baseline needs cvxpy: pip install "diffbisim[baselines]"') from None
    return cvxpy


@dataclass(frozen=True, eq=False)
class Program:
    """Variables and constraints; the expressions below are cvxpy's."""

    data: OfflineData
    behavior: Floats  # (n, n_actions), ρ_I
    states: Integers  # (k,) of the pairs on the support of ρ_I
    actions: Integers  # (k,)
    reference: Floats  # (k,) ρ_I on them
    variable: Any  # (k,) ρ on them
    constraints: list[Any]

    @classmethod
    def make(cls, data: OfflineData, discount: float) -> Program:
        cp = modeling()
        rho_i = data.occupancy(discount)
        states, actions = np.nonzero(rho_i > 0.0)
        reference = rho_i[states, actions]
        variable = cp.Variable(states.size, nonneg=True)
        leaving = _sums(states, data.n_states)  # (n, k): Σ_a
        arriving = sp.csr_array(data.dynamics[actions, states].T)  # (n, k): T(s|s̄,ā)
        inside = np.unique(states)  # elsewhere both sides are zero
        flow = (leaving - discount * arriving).tocsr()[inside]
        start = (1.0 - discount) * data.mdp.initial[inside]
        return cls(data, rho_i, states, actions, reference, variable, [flow @ variable == start])

    @property
    def state_occupancy(self) -> Any:
        """``ρ(s)``, (n,)."""
        return _sums(self.states, self.data.n_states) @ self.variable

    def transition_occupancy(self) -> tuple[Any, Integers, Integers]:
        """``ν(s,s') = Σ_a ρ(s,a) T(s'|s,a)`` where it can be positive, and the places s, s' of its entries."""
        n, rows = self.data.n_states, sp.csr_array(self.data.dynamics[self.actions, self.states])
        k = np.repeat(np.arange(self.states.size), np.diff(rows.indptr))
        cells, entry = np.unique(self.states[k] * n + rows.indices, return_inverse=True)
        matrix = sp.csr_array((rows.data, (entry, k)), shape=(cells.size, self.states.size))
        return matrix @ self.variable, cells // n, cells % n

    def solve(self, objective: Any, alpha: float, *more: Any) -> BaselineResult:
        """Minimize ``objective + α KL(ρ ‖ ρ_I)``, check the solver's verdict, and read off the policy."""
        cp = modeling()
        if alpha > 0.0:
            objective = objective + alpha * relative_entropy(self.variable, self.reference)
        problem = cp.Problem(cp.Minimize(objective), [*self.constraints, *more])
        verdict = _attempts(problem)
        if verdict not in ("optimal", "optimal_inaccurate"):
            raise InvalidData(
                f"Clarabel called the program {verdict}; raise the regularization or the smoothing, or give more data"
            )
        status = Outcome.SOLVED if verdict == "optimal" else Outcome.INACCURATE
        if status is Outcome.INACCURATE:
            warn(status.value, ConvergenceWarning, stacklevel=3)
        rho = np.zeros_like(self.behavior)
        rho[self.states, self.actions] = np.maximum(self.variable.value, 0.0)
        return BaselineResult(policy_of(rho), float(problem.value), status, rho)


def _attempts(problem: Any) -> str:
    """Solve, if need be with other settings: a few in a hundred stall just short of the tolerance with the first."""
    cp = modeling()
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
    return verdict


def relative_entropy(law: Any, target: Floats) -> Any:
    """``KL(law ‖ target)`` for a cvxpy array and a positive one."""
    cp = modeling()
    return -cp.sum(cp.entr(law)) - cp.sum(cp.multiply(np.log(target), law))


def finite(law: Any, target: Floats) -> tuple[Any, Floats, list[Any]]:
    """The part of a law where the target is positive, the target there, and that the rest must vanish."""
    outside = np.flatnonzero(target == 0.0)
    inside = np.flatnonzero(target)
    return law[inside], target[inside], [law[outside] == 0.0] if outside.size else []


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
