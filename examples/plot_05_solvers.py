"""
Five solvers, one distance
==========================

This example runs five solvers on the same pair of chains: the exact solver, the paper's linear program, two Sinkhorn
solvers, and the stochastic SOMCOT. All of them return certified bounds. They differ in the width of the bounds and in
their cost.
"""

import time

import matplotlib.pyplot as plt

import diffbisim as db

X, Y = db.examples.random_chain(8, 0), db.examples.random_chain(6, 1)
solvers = {
    "exact": "exact",
    "lp": "lp",
    "sinkhorn-policy": "sinkhorn-policy",
    "sinkhorn-value": "sinkhorn-value",
    "somcot": db.solvers.Somcot(max_iterations=30_000, rng=0),
}
results, seconds = {}, {}
for name, solver in solvers.items():
    db.distance(X, Y, solver=solver)  # compiles
    began = time.perf_counter()
    results[name] = db.distance(X, Y, solver=solver)
    seconds[name] = time.perf_counter() - began
for name, r in results.items():
    print(f"{name:16s} {r.lower:.6f} <= d <= {r.upper:.6f}   gap {r.gap:.0e}")

# %%
# Intervals from different solvers must overlap, because each one is proved independently.

assert max(r.lower for r in results.values()) <= min(r.upper for r in results.values())

# %%
# In the left figure, points farther up and to the right are worse. Times depend on the machine, so compare their
# ratios.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="compressed")
for name, marker, below in zip(results, "osD^v", (-3, -3, 4, -12, -3), strict=True):
    left.loglog(seconds[name], max(results[name].gap, 1e-15), marker, color="#0072B2", markersize=9)
    left.annotate(name, (seconds[name], max(results[name].gap, 1e-15)), xytext=(8, below), textcoords="offset points")
left.set(xlabel="time (s)", ylabel="certified gap")
left.margins(x=0.35, y=0.15)
db.plot.history(results["exact"], right, label="exact solver")
