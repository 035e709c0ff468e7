"""
A training loop with the distance as loss
=========================================

The distance is a differentiable function of torch tensors: forward by the exact solver, backward by its closed-form
gradient. Here a walk with unknown drift is fitted to a target; the optimizer is torch's own.
"""

import matplotlib.pyplot as plt
import torch

import diffbisim as db
from diffbisim.torch import distance_and_result

# %%
# The model: up with probability σ(f), else down, on 16 states. Any computation that ends in stochastic rows will do.

n, target = 16, db.examples.drift_walk(1.5)
up = torch.tensor(db.examples.birth_death(n, 1.0, 0.0).transition)
down = torch.tensor(db.examples.birth_death(n, 0.0, 1.0).transition)


def kernel(f: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(f) * up + (1 - torch.sigmoid(f)) * down


# %%
# The loop. Each solve starts from the last solution (``warm``). At its minimum the distance has a kink, not a parabola:
# the slope jumps from -0.94 to +0.94. So the rate has to fall, or f rattles around the answer for ever. Plain
# gradient steps are used here: Adam's momentum carries it past the kink (rate 0.25, annealed: f = 2.46).


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
