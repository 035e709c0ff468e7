"""
A PRISM model, lumped
=====================

Four machines fail and are repaired independently, which gives 16 states. An observer who only counts the working
machines cannot tell which one is down, so 5 states are enough. The model is in the explicit format that PRISM and Storm
export.
"""

# %%
# The files contain transitions (``.tra``), the initial state (``.lab``) and rewards (``.srew``). A machine fails with
# probability 0.1 and is repaired with probability 0.4.

import itertools
import tempfile
from math import comb
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import diffbisim as db

machines, fails, repaired = 4, 0.1, 0.4
states = list(itertools.product((1, 0), repeat=machines))
one = {(1, 1): 1 - fails, (1, 0): fails, (0, 0): 1 - repaired, (0, 1): repaired}
edges = [
    f"{i} {j} {np.prod([one[pair] for pair in zip(s, t, strict=True)]):.12g}"
    for i, s in enumerate(states)
    for j, t in enumerate(states)
]
stem = Path(tempfile.mkdtemp()) / "machines"
stem.with_suffix(".tra").write_text(f"16 {len(edges)}\n" + "\n".join(edges) + "\n")
stem.with_suffix(".lab").write_text('0="init"\n0: 0\n')
stem.with_suffix(".srew").write_text("16 15\n" + "".join(f"{i} {sum(s)}\n" for i, s in enumerate(states) if sum(s)))

chain = db.read_chain(stem.with_suffix(".tra"))
quotient = db.lump(chain)
print(quotient)

# %%
# The quotient can also be computed by hand. Of k working machines, j keep working, and i of the others are repaired.
# Both numbers are binomial.


def binomial(n: int, p: float) -> np.ndarray:
    return np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


by_hand = np.array([np.convolve(binomial(k, 1 - fails), binomial(machines - k, repaired)) for k in range(5)])
order = np.argsort(quotient.chain.rewards)
found = quotient.chain.transition[np.ix_(order, order)]
print(f"quotient by hand and by lumping differ by at most {np.abs(found - by_hand).max():.0e}")
d = db.distance(chain, quotient.chain)
print(f"certified: {d.lower:.1g} <= distance <= {d.upper:.1g}")

# %%
# Storm finds the same number of classes, if it is installed (``pip install stormpy``).

try:
    import stormpy
except ImportError:
    print("stormpy is not installed: compared by hand only")
else:
    storm = stem.with_name("storm")  # its dialect: the first line is the type of the model, and labels are declared
    up = "".join(f"{i} up{sum(s)}{' init' * (i == 0)}\n" for i, s in enumerate(states))
    storm.with_suffix(".tra").write_text("dtmc\n" + "\n".join(edges) + "\n")
    storm.with_suffix(".lab").write_text(f"#DECLARATION\ninit up0 up1 up2 up3 up4\n#END\n{up}")
    model = stormpy.build_model_from_explicit(storm.with_suffix(".tra"), storm.with_suffix(".lab"))
    counts = [stormpy.parse_properties(f'P=? [F "up{k}"]')[0] for k in range(machines + 1)]
    smaller = stormpy.transformations.perform_bisimulation(model, counts)
    print(f"Storm: {smaller.nr_states} classes")

# %%
# The figure shows the model and its quotient. Another shop repairs machines twice as fast. How far is it from this one?

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="compressed")
left.imshow(chain.transition, cmap="Greys")
left.set(title="16 states: which machines work", xlabel="next state", ylabel="state")
db.plot.chain(quotient.chain, right, least=0.02)
right.set_title("5 states: how many work")

faster = db.MarkovChain(
    [np.convolve(binomial(k, 1 - fails), binomial(machines - k, 2 * repaired)) for k in range(5)],
    initial=4, rewards=range(5),
)  # fmt: skip
print(f"distance to the faster shop: {db.distance(chain, faster).value:.4f} machines")
