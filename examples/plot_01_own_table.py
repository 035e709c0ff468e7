"""
From your own table to a distance
=================================

This example reads two tables of observed steps, one from summer and one from autumn. It estimates a Markov chain from
each and computes the distance between the two chains.
"""

# %%
# The header of a table says what its rows are. ``state,next_state`` means observed steps.

import itertools
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import diffbisim as db

folder = Path(tempfile.mkdtemp())
summer = ["sun", "sun", "sun", "cloud", "sun", "sun", "cloud", "rain", "sun", "sun", "sun", "cloud", "sun"]
autumn = ["rain", "cloud", "rain", "rain", "sun", "cloud", "rain", "cloud", "cloud", "rain", "rain", "sun", "cloud"]
for name, days in (("summer", summer), ("autumn", autumn)):
    rows = [f"{a},{b}" for a, b in itertools.pairwise(days)]
    (folder / f"{name}.csv").write_text("\n".join(["state,next_state", *rows]) + "\n")
print(*(folder / "summer.csv").read_text().splitlines()[:4], "...", sep="\n")

# %%
# Rewards describe what an observer sees of a state, here the hours of sunshine per day. Both chains start on a cloudy
# day.

hours = {"sun": 10, "cloud": 4, "rain": 1}
X, Y = (db.read_chain(folder / f"{name}.csv", rewards=hours, initial="cloud") for name in ("summer", "autumn"))
result = db.distance(X, Y, discount=0.9)
print(result)

# %%
# The distance is in hours. Under the best coupling in which neither season knows the other's future, the two seasons
# differ by about this much per day, where later days count less. The distance is certified: ``lower <= d <= upper``.

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="compressed")
for ax, chain, name in zip(axes, (X, Y), ("summer", "autumn"), strict=True):
    db.plot.chain(chain, ax, discount=0.9)
    ax.set_title(name)

# %%
# Which days correspond? The left figure shows the occupancy of the optimal coupling. The right figure shows its rows as
# probabilities, which is the encoder.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="compressed")
db.plot.coupling(result, ax=axes[0])
db.plot.encoder(result, axes[1])

# %%
# Which transitions would bring autumn closer to summer if they became more likely? Those with negative entries in the
# gradient. Entries are comparable within a row.

for state, row in zip(Y.names, result.gradient.transition_y, strict=True):
    print(f"{state:6s}", dict(zip(Y.names, row.round(2).tolist(), strict=True)))
