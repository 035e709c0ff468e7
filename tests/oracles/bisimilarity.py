"""The coarsest bisimulation, naively: give every state its signature, split, repeat.

In exact rationals when the kernel holds ``fractions.Fraction``; floats are compared bit by bit.
"""

from fractions import Fraction

import numpy as np


def coarsest_bisimulation(P, key=None):
    """Class of every state, numbered by first appearance; ``P`` a nested list, ``key`` n hashables."""
    return coarsest_mdp_bisimulation([P], key)


def coarsest_mdp_bisimulation(kernels, key=None):
    """The same for one kernel per action: states of a class move alike under every action."""
    n = len(kernels[0])
    classes = _numbered([0] * n if key is None else key)
    while True:
        signatures = []
        for s in range(n):
            moves = []
            for P in kernels:
                weight = {}
                for t in range(n):
                    if P[s][t] != 0:
                        weight[classes[t]] = weight.get(classes[t], 0) + P[s][t]
                moves.append(frozenset(weight.items()))
            signatures.append((classes[s], tuple(moves)))
        refined = _numbered(signatures)
        if max(refined) == max(classes):
            return refined
        classes = refined


def is_bisimulation(P, classes, key=None):
    """Whether states of one class have equal keys and equal probabilities into every class (exactly)."""
    signature = {}
    for s, row in enumerate(P):
        weight = {}
        for t, p in enumerate(row):
            if p != 0:
                weight[classes[t]] = weight.get(classes[t], 0) + p
        mine = (None if key is None else key[s], weight)
        if signature.setdefault(classes[s], mine) != mine:
            return False
    return True


def random_rationals(rng, n, denominator, zeros=0.0):
    """``n`` non-negative fractions with one common denominator that sum to one; some are zero."""
    while True:
        weights = rng.integers(1, 8, size=n) * (rng.random(n) >= zeros)
        if weights.sum() > 0:
            break
    total = int(weights.sum())
    shares = [Fraction(int(w) * denominator // total, denominator) for w in weights]
    shares[max(range(n), key=lambda i: weights[i])] += 1 - sum(shares)
    return shares


def blown_up(rng, n_classes, zeros):
    """A rational quotient, its classes split into a few states at random, permuted: ``P`` and the keys."""
    (P,), classes = blown_up_mdp(rng, n_classes, 1, zeros)
    return P, (classes % rng.integers(1, n_classes + 1)).tolist()


def blown_up_mdp(rng, n_classes, n_actions, zeros):
    """The same for one kernel per action: the kernels, and the class (n,) that each state was made from."""
    quotients = [[random_rationals(rng, n_classes, 60, zeros) for _ in range(n_classes)] for _ in range(n_actions)]
    sizes = rng.integers(1, 4, n_classes)
    cls = rng.permutation(np.repeat(np.arange(n_classes), sizes))
    members = [np.flatnonzero(cls == k) for k in range(n_classes)]
    kernels = []
    for Q in quotients:
        P = [[Fraction(0)] * cls.size for _ in cls]
        for s, a in enumerate(cls):
            for b, q in enumerate(Q[a]):
                for t, share in zip(members[b], random_rationals(rng, len(members[b]), 24, zeros), strict=True):
                    P[s][t] = q * share
        kernels.append(P)
    return kernels, cls


def unstructured(rng, n, zeros):
    """Random rational rows: as a rule nothing lumps but what the keys and zeros allow."""
    return [random_rationals(rng, n, 12, zeros) for _ in range(n)], rng.integers(0, 2, n).tolist()


def partitions(n):
    """All partitions of n states, each as a list of class numbers."""
    if n == 0:
        yield []
        return
    for rest in partitions(n - 1):
        for k in range(max(rest, default=-1) + 2):
            yield [*rest, k]


def floats(P):
    """A nested list of fractions as an array."""
    return np.array([[float(p) for p in row] for row in P])


def _numbered(signatures):
    number = {}
    return [number.setdefault(signature, len(number)) for signature in signatures]
