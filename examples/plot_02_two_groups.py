"""
Comparing two groups of sequences
=================================

Two groups of forty walks each are given. Do the groups differ, or is the difference due to chance? The test permutes
whole sequences between the two groups, so any dependence within a sequence is preserved.
"""

import matplotlib.pyplot as plt
import numpy as np

import diffbisim as db

# %%
# The first two groups differ. The third has the same distribution as the first.

chains = [db.examples.drift_walk(drift, 6) for drift in (0.0, 0.7, 0.0)]
rng = np.random.default_rng(0)
groups = [
    db.Transitions.from_trajectories([chain.sample(30, rng) for _ in range(40)], states=range(6)) for chain in chains
]

# %%
# The result contains an estimate, its confidence interval, and a p-value for the hypothesis of equal groups. The
# distance of the empirical chains (``plug_in``) is never zero for finite data. The value subtracts the part due to
# chance. A large p-value does not show that the groups are equal. It only means that there is no evidence of a
# difference at this sample size.

different = db.estimate(groups[0], groups[1], rewards=range(6), discount=0.9, rng=1)
same = db.estimate(groups[0], groups[2], rewards=range(6), discount=0.9, rng=1)
for name, e in (("different", different), ("same", same)):
    print(f"{name:10s} d = {e.value:.3f}, 95 % interval {e.lower:.3f} to {e.upper:.3f}")
    print(f"{'':10s} p = {e.p_value:.3f}: {e.conclusion}")

# %%
# In this example the truth is known: it is the distance between the chains themselves, each with the initial state of
# its data.

truth = [db.distance(chains[0], chains[k], discount=0.9).value for k in (1, 2)]
print(f"truth: {truth[0]:.3f} and {truth[1]:.3f}")

figure, ax = plt.subplots(figsize=(6.5, 3.2), layout="compressed")
for y, (e, true) in enumerate(((different, truth[0]), (same, truth[1]))):
    ax.plot([e.lower, e.upper], [y, y], color="#0072B2", linewidth=6, alpha=0.35, solid_capstyle="butt")
    ax.plot(e.value, y, "o", color="#0072B2", label="estimate and interval" if y == 0 else None)
    ax.plot(true, y, "x", color="black", markersize=9, mew=2, label="truth" if y == 0 else None)
    ax.plot(np.quantile(e.null, 0.95), y, "|", color="#D55E00", markersize=22, mew=2,
            label="95 % quantile of chance alone" if y == 0 else None)  # fmt: skip
ax.set(yticks=[0, 1], yticklabels=["different", "same"], ylim=(-0.6, 2.1), xlabel="distance (positions)")
ax.legend(loc="upper right", frameon=False, fontsize=9)

# %%
# Where do the groups differ? The figure shows the contribution of each row of the kernels to the distance. Rows with a
# star are statistically significant.

figure, ax = plt.subplots(figsize=(6.5, 2.8), layout="compressed")
db.plot.contributions(different, ax)
