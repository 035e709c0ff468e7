"""
A training loop with the distance as loss
=========================================

The distance is a differentiable function of torch tensors. The forward pass runs the exact solver, and the backward
pass uses its closed-form gradient. This example fits a walk with unknown drift to a target, with an optimizer of torch.
"""

import matplotlib.pyplot as plt
import torch

import diffbisim as db
from diffbisim.torch import distance_and_result

# %%
# The model moves up with probability σ(f) and down otherwise, on 16 states. Any computation that ends in stochastic
# rows can be used.

n, target = 16, db.examples.drift_walk(1.5)
up = torch.tensor(db.examples.birth_death(n, 1.0, 0.0).transition)
down = torch.tensor(db.examples.birth_death(n, 0.0, 1.0).transition)


def kernel(f: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(f) * up + (1 - torch.sigmoid(f)) * down


# %%
# The training loop warm-starts each solve from the last solution (``warm``). At its minimum the distance has a kink and
# does not look like a parabola: the slope jumps from -0.94 to +0.94. The learning rate therefore has to decay, or f
# oscillates around the answer forever. This example uses plain gradient steps. Adam's momentum carries f past the kink
# (rate 0.25, annealed: f = 2.46).


def train(schedule: bool, steps: int = 80) -> tuple[list[float], list[float]]:
    f = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([f], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    drifts, losses, warm = [], [], None
    for _ in range(steps):
        optimizer.zero_grad()
        loss, warm = distance_and_result(target, kernel(f), initial=target.initial, rewards=target.rewards, warm=warm)
        drifts.append(f.item())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        if schedule:
            scheduler.step()
    return drifts, losses


constant, annealed = train(schedule=False), train(schedule=True)
print(f"constant rate: f = {constant[0][-1]:.4f}, d = {constant[1][-1]:.1e}")
print(f"annealed rate: f = {annealed[0][-1]:.4f}, d = {annealed[1][-1]:.1e}")

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="compressed")
for (drifts, losses), label, color in (
    (constant, "constant rate", "#D55E00"),
    (annealed, "annealed rate", "#0072B2"),
):
    left.plot(drifts, color=color, label=label)
    right.semilogy(losses, color=color, label=label)
left.axhline(1.5, color="gray", linestyle="--", linewidth=1, label="true drift")
left.set(xlabel="step", ylabel="drift $f$")
right.set(xlabel="step", ylabel="distance (positions)")
left.legend(frameon=False)
right.legend(frameon=False)
