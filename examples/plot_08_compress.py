"""
From your own table to a compressed model
=========================================

A machine with many settings is observed for some steps, and five states are enough to describe it. This example
computes the small chain, its certified distance, and which states correspond.
"""

import matplotlib.pyplot as plt
import numpy as np

import diffbisim as db

# %%
# The true chain has 25 states in 5 blocks, in random order. It is observed for 20,000 steps.

order = np.random.default_rng(0).permutation(25)
truth = db.examples.block_chain().permuted(order)
s, s_next = truth.sample_transitions(20_000, 0.95, 1)
X = db.Transitions.from_pairs(s, s_next, states=25).chain(rewards=truth.rewards, initial=int(truth.initial.argmax()))
small = db.compress(X, n_states=5, discount=0.95, restarts=2, rng=0)
print(small)

# %%
# Because of sampling noise, all 25 rows differ, and no states can be merged exactly. The blocks are found nevertheless.

print("exact classes:", db.lump(X).n_states)
blocks = truth.rewards.astype(int)
print("one small state per block:", all(len(set(small.assignment[blocks == b])) == 1 for b in range(5)))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="compressed")
db.plot.encoder(small, left)
db.plot.chain(small.chain, right, least=0.03)
