"""
Imitation on FrozenLake
=======================

An expert crosses the slippery lake. The learner sees only states, neither actions nor rewards. It finds the policy
whose Markov chain is closest to the expert's.
"""

import gymnasium
import matplotlib.pyplot as plt
import numpy as np

import diffbisim as db
from diffbisim.processes.environments import from_env
from diffbisim.processes.planning import expected_return, optimal_policy

# %%
# The environment provides its transition table. Terminal states are made absorbing.

mdp = from_env(gymnasium.make("FrozenLake-v1"))
expert_policy = optimal_policy(mdp, 0.99)
expert = mdp.induced_chain(expert_policy)
result = db.imitate(mdp, expert, discount=0.95)
print(result)

# %%
# The learner never saw the reward of the lake, yet it reaches the return of the expert.

for name, policy in (("uniform", mdp.uniform_policy()), ("imitation", result.policy), ("expert", expert_policy)):
    print(f"{name:10s} reaches the goal with probability {expected_return(mdp, policy, 100):.3f}")

# %%
# On the left, the distance converges geometrically to zero. On the right is the most likely action in each cell, and
# the color shows its probability.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="compressed")
db.plot.history(result, left, label="distance to the expert")
best = result.policy.max(axis=1).reshape(4, 4)
image = right.imshow(best, cmap="Blues", vmin=0, vmax=2)
arrows, cells = "←↓→↑", "SFFFFHFHFFFHHFFG"
for s, (cell, action) in enumerate(zip(cells, result.policy.argmax(axis=1).tolist(), strict=True)):
    text = cell if cell in "HG" else f"{cell}{arrows[action]}"
    right.text(s % 4, s // 4, text, ha="center", va="center", fontsize=16)
right.set(xticks=[], yticks=[], title="S start, F ice, H hole, G goal")

# %%
# At the start of the run, the implicit reward already shows which steps are the expert's. A reinforcement learner would
# maximize this reward.

uniform = mdp.induced_chain(mdp.uniform_policy())
first = db.distance(expert, uniform, "indicator", 0.95)
figure, ax = plt.subplots(figsize=(6, 5), layout="compressed")
db.plot.implicit_reward(np.where(uniform.transition > 0, first.implicit_reward(), 0.0), ax=ax)
