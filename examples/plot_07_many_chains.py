"""
Many chains: a tree and a map
=============================

This example computes the distances between all pairs of twelve chains on all cores. It then sorts the chains by a
dendrogram and draws them as points.
"""

import matplotlib.pyplot as plt
import numpy as np

import diffbisim as db

# %%
# There are three families: walks that drift up, walks that drift down, and lazy walks.

rng = np.random.default_rng(0)
chains, names = [], []
for family, up, down in (("up", 0.7, 0.2), ("down", 0.2, 0.7), ("lazy", 0.1, 0.1)):
    for k in range(4):
        a, b = np.clip(rng.normal([up, down], 0.06), 0.02, 0.9)
        chains.append(db.examples.birth_death(8, min(a, 0.95 - b), b).with_initial(4))
        names.append(f"{family} {k + 1}")
matrix = db.pairwise(chains, discount=0.9)
print(f"{len(chains)} chains, {len(chains) * (len(chains) - 1) // 2} distances, largest {matrix.max():.2f} positions")

# %%
# After sorting by average linkage, the families are blocks on the diagonal.

figure, ax = plt.subplots(figsize=(6, 6.4), layout="compressed")
db.plot.distances(matrix, names, ax)

# %%
# Drawn as points, the chains are nearly on a line, because their distances depend mainly on the speed of the drift.

figure, ax = plt.subplots(figsize=(7, 4), layout="compressed")
db.plot.embedding(matrix, [name if name.endswith("1") else "" for name in names], ax)
