"""Abstraction by brute force: every partition is built into its small MDP, planned in, and evaluated on the states.

The small MDP has means over the classes, and its optimal values satisfy Bellman's equation. Among actions whose values
differ by less than 1e-10 of the largest the first is taken.
"""

import numpy as np

TIE = 1e-10


def partitions(n, k):
    """All partitions of n states into at most k classes, as tuples of class numbers, assigned by first appearance."""
    if n == 0:
        yield ()
        return
    for head in partitions(n - 1, k):
        for last in range(min(max(head, default=-1) + 2, k)):
            yield (*head, last)


def optimal_values(P, r, discount):
    """Normalized optimal values of kernels (n_actions, n, n) and rewards (n, n_actions), by policy iteration."""
    s, actions = np.arange(len(r)), r.argmax(axis=1)
    for _ in range(1_000):
        v = evaluated(P, r, actions, discount)
        q = (1 - discount) * r + discount * (P @ v).T
        if (q.max(axis=1) <= v + 1e-13 * np.abs(r).max()).all():
            return v  # satisfies Bellman's equation: no other fixed point exists
        actions = np.where(q.max(axis=1) > q[s, actions] + 1e-13 * np.abs(r).max(), q.argmax(axis=1), actions)
    raise AssertionError("policy iteration did not end")


def evaluated(P, r, actions, discount):
    """Normalized values of a deterministic policy."""
    s = np.arange(len(r))
    return np.linalg.solve(np.eye(len(r)) - discount * P[actions, s], (1 - discount) * r[s, actions])


def losses(P, r, assignment, discount, best=None):
    """Losses of the lifted optimal policy of a partition, by state, ``v* - v^π``."""
    assignment = np.asarray(assignment)
    member = (assignment == np.arange(assignment.max() + 1)[:, None]) / 1.0  # (k, n)
    mean = member / member.sum(axis=1, keepdims=True)
    P_small, r_small = mean @ P @ member.T, mean @ r
    v = optimal_values(P_small, r_small, discount)
    q = (1 - discount) * r_small + discount * (P_small @ v).T
    actions = (q >= q.max(axis=1, keepdims=True) - TIE * np.abs(q).max()).argmax(axis=1)
    best = optimal_values(P, r, discount) if best is None else best
    return best - evaluated(P, r, actions[assignment], discount)


def least_loss(P, r, k, discount, start=None):
    """The least loss of all partitions into at most k classes: in the worst state, or from `start` (n,)."""
    best = optimal_values(P, r, discount)
    found = (losses(P, r, assignment, discount, best) for assignment in partitions(len(r), k))
    return min(float(lost.max() if start is None else start @ lost) for lost in found)


def one_step_away(assignment, k):
    """All partitions that a move of one state or a swap of two makes of this one, as tuples of assignment."""
    assignment, n = tuple(assignment), len(assignment)
    for s in range(n):
        for to in range(min(max(assignment) + 2, k)):
            if to != assignment[s]:
                yield (*assignment[:s], to, *assignment[s + 1 :])
        for t in range(s):
            if assignment[s] != assignment[t]:
                swapped = list(assignment)
                swapped[s], swapped[t] = assignment[t], assignment[s]
                yield tuple(swapped)
