"""
From your own table to a compressed model
=========================================

Observed steps of a machine with many settings; five states are enough. The small chain, its certified distance, and
which state stands for which.
"""

import matplotlib.pyplot as plt
import numpy as np

import diffbisim as db

# %%
# A chain of 25 states in 5 blocks, shuffled, seen through 20,000 steps.

order = np.random.default_rng(0).permutation(25)
truth = db.examples.block_chain().permuted(order)
s, s_next = truth.sample_transitions(20_000, 0.95, 1)
X = db.Transitions.from_pairs(s, s_next, states=25).chain(rewards=truth.rewards, initial=int(truth.initial.argmax()))
small = db.compress(X, n_states=5, discount=0.95, restarts=2, rng=0)
print(small)

# %%
# Sampling noise makes all 25 rows differ, so nothing can be merged exactly, and yet the blocks are found.

print("exact classes:", db.lump(X).n_states)
blocks = truth.rewards.astype(int)
print("one small state per block:", all(len(set(small.labels[blocks == b])) == 1 for b in range(5)))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="compressed")
db.plot.encoder(small, left)
db.plot.chain(small.chain, right, least=0.03)
