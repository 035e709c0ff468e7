"""Average and total cost as linear programs over bicausal couplings, by HiGHS; all pairs written out.

A coupling is a law of flows π(x,y → x',y') ≥ 0 out of pairs of mass m(x,y) with

    Σ_y' π(x,y → x',y') = m(x,y) P(x'|x),        Σ_x' π(x,y → x',y') = m(x,y) Q(y'|y)                   (causal)

and α a coupling of the starts.

    average   min <m, c>   m(z) = Σ π(· → z),   m(z) + n(z) - Σ π_n(· → z) = α(z)     (Denardo's program for several
                           classes; the flows π_n of n are causal, too)
    total     min <m, c>   m(z) - Σ π(· → z) = α(z) outside the terminal pairs, from which nothing flows
"""

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog


class Program:
    """Variables by name, and equations between them, as triplets."""

    def __init__(self, P, Q, nu_x, nu_y):
        self.P, self.Q, self.nu = P, Q, (nu_x, nu_y)
        self.shape, self.n, self.rows, self.right = (len(P), len(Q)), 0, [], []

    def variables(self, count):
        self.n += count
        return np.arange(self.n - count, self.n)

    def equation(self, terms, right=0.0):
        """Σ coefficient · variable = right."""
        self.rows.append(terms)
        self.right.append(right)

    def start(self):
        """α (n_X, n_Y)"""
        alpha = self.variables(np.prod(self.shape)).reshape(self.shape)
        for law, side in ((self.nu[0], alpha), (self.nu[1], alpha.T)):
            for mass, line in zip(law, side, strict=True):
                self.equation([(v, 1.0) for v in line], mass)
        return alpha

    def flows(self, outside=None):
        """m (n_X, n_Y), and by target the flows that enter it."""
        m = self.variables(np.prod(self.shape)).reshape(self.shape)
        entering = {pair: [] for pair in np.ndindex(self.shape)}
        for x, y in np.ndindex(self.shape):
            if outside is not None and outside[x, y]:
                continue
            rows, cols = np.flatnonzero(self.P[x]), np.flatnonzero(self.Q[y])
            flow = self.variables(rows.size * cols.size).reshape(rows.size, cols.size)
            for law, support, side in ((self.P[x], rows, flow), (self.Q[y], cols, flow.T)):
                for to, line in zip(support, side, strict=True):
                    self.equation([(v, 1.0) for v in line] + [(m[x, y], -law[to])])
            for i, j in np.ndindex(flow.shape):
                entering[int(rows[i]), int(cols[j])].append((flow[i, j], -1.0))
        return m, entering

    def least(self, cost, m):
        objective = np.zeros(self.n)
        objective[m.ravel()] = cost.ravel()
        entries = [(k, v, a) for k, terms in enumerate(self.rows) for v, a in terms]
        k, v, a = map(np.array, zip(*entries, strict=True))
        A = sp.csr_array((a, (k, v)), shape=(len(self.rows), self.n))
        tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        answer = linprog(objective, A_eq=A, b_eq=np.array(self.right), method="highs", options=tight)
        assert answer.status == 0, answer.message
        return answer.fun


def least_average(P, Q, nu_x, nu_y, cost):
    """The least long-run average cost from the starts."""
    program = Program(P, Q, nu_x, nu_y)
    alpha = program.start()
    m, stays = program.flows()
    n, leads = program.flows()
    for z in np.ndindex(program.shape):
        program.equation([(m[z], 1.0), *stays[z]])
        program.equation([(m[z], 1.0), (n[z], 1.0), *leads[z], (alpha[z], -1.0)])
    return program.least(cost, m)


def least_total(P, Q, nu_x, nu_y, cost, terminal):
    """The least expected total cost before a terminal pair."""
    program = Program(P, Q, nu_x, nu_y)
    alpha = program.start()
    m, leads = program.flows(terminal)
    for z in np.ndindex(program.shape):
        if terminal[z]:
            program.equation([(m[z], 1.0)])
        else:
            program.equation([(m[z], 1.0), *leads[z], (alpha[z], -1.0)])
    return program.least(cost, m)
