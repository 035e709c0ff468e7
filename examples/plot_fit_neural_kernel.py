"""
Fitting your own torch module
=============================

This example fits a small neural network that outputs the kernel of a walk on 50 states.

The input of the network is the position of a state, and its output is the probabilities of five moves. It is fitted to
a walk whose drift depends on the position. The distance is the only loss: there is no likelihood, no samples, and no
learning rate.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import diffbisim as db

N, MOVES = 50, (-2, -1, 0, 1, 2)


def walk(weights):
    """(N, 5) weights of the moves -> (N, N) kernel; moves beyond the ends stay at the ends."""
    here = torch.arange(N)
    P = torch.zeros(N, N, dtype=torch.float64)
    for k, move in enumerate(MOVES):
        P = P.index_put((here, (here + move).clamp(0, N - 1)), weights[:, k], accumulate=True)
    return P


class NeuralWalk(torch.nn.Module):
    """Position -> hidden layer -> probabilities of the moves."""

    def __init__(self, hidden=16):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(1, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, len(MOVES))
        ).double()
        self.position = torch.linspace(-1.0, 1.0, N, dtype=torch.float64)[:, None]

    def forward(self):
        return walk(torch.softmax(self.net(self.position), dim=1))


position = torch.linspace(-1.0, 1.0, N, dtype=torch.float64)[:, None]
drift = 1.5 * torch.sin(3.0 * position) * torch.tensor(MOVES, dtype=torch.float64)
target = db.MarkovChain(walk(torch.softmax(drift, dim=1)).numpy(), initial=20, rewards=np.linspace(0.0, 1.0, N))

result = db.fit(target, NeuralWalk(), cost="reward", discount=0.95, max_iterations=60)
print(f"distance {result.curve()[0]:.4f} -> {result.value:.6f}, certified within {result.distance.gap:.0e}")

# %%
# The figure shows the mean move from every state. The distance contains little information about the right end, which
# the walk visits in 2 of 1,000 steps.

figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="compressed")
start = db.MarkovChain(NeuralWalk()().detach().numpy())
for chain, look, name in ((target, "k-", "target"), (start, ":", "before"), (result.chain, "--", "fitted")):
    ax.plot(chain.transition @ np.arange(N) - np.arange(N), look, label=name)
ax.set(xlabel="state", ylabel="mean move")
ax.legend(frameon=False)
