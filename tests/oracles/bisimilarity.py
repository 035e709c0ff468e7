"""The coarsest bisimulation, naively: give every state its signature, split, repeat.

In exact rationals when the kernel holds ``fractions.Fraction``; floats are compared bit by bit.
"""

from fractions import Fraction


def coarsest_bisimulation(P, key=None):
    """Class of every state, numbered by first appearance; ``P`` a nested list, ``key`` n hashables."""
    n = len(P)
    classes = _numbered([0] * n if key is None else key)
    while True:
        signatures = []
        for s in range(n):
            weight = {}
            for t in range(n):
                if P[s][t] != 0:
                    weight[classes[t]] = weight.get(classes[t], 0) + P[s][t]
            signatures.append((classes[s], frozenset(weight.items())))
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


def _numbered(signatures):
    number = {}
    return [number.setdefault(signature, len(number)) for signature in signatures]
