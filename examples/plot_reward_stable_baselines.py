"""
Stable-Baselines3 with the implicit reward
==========================================

This example imitates an expert from observed states alone, with any reinforcement learner.

The implicit reward is the advantage of a transition at the policy for which it was computed. The reinforcement learner
therefore gets it in rounds: compute the reward of the current policy, learn with it for a short time, then compute it
again. Any library that takes a Gymnasium environment can be used. `ImplicitReward.wrap` creates the environment from
yours.
"""

from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO

import diffbisim as db
from diffbisim.learning.imitate import ImplicitReward
from diffbisim.processes.environments import from_env
from diffbisim.processes.planning import expected_return, optimal_policy


@dataclass(frozen=True)
class Settings:
    environment: str = "CliffWalking-v1"
    discount: float = 0.9
    rounds: int = 8
    steps: int = 1_024  # of PPO per round
    seed: int = 0


def table(model: PPO, n: int) -> np.ndarray:
    """The policy of a PPO model in every state, (n, n_actions)."""
    with torch.no_grad():
        logits = model.policy.get_distribution(torch.arange(n)).distribution.logits
    return torch.softmax(logits.double(), dim=1).numpy()


def main(settings: Settings) -> dict[str, list[float]]:
    torch.set_num_threads(1)  # the network is tiny, so more threads would only wait for each other
    env = gymnasium.make(settings.environment, max_episode_steps=50)
    mdp = from_env(env)
    expert = mdp.induced_chain(optimal_policy(mdp, 0.99))  # only its states are used below
    model = PPO(
        "MlpPolicy", env, n_steps=256, batch_size=64, learning_rate=3e-3, gamma=settings.discount, gae_lambda=0.0,
        normalize_advantage=False, seed=settings.seed, device="cpu",
    )  # fmt: skip
    distances, returns = [], []
    for _ in range(settings.rounds + 1):
        policy = table(model, mdp.n_states)
        now = db.distance(expert, mdp.induced_chain(policy), "indicator", settings.discount)
        distances.append(now.value)
        returns.append(expected_return(mdp, policy, 50))
        reward = ImplicitReward(now.implicit_reward())
        model.set_env(reward.wrap(env))
        model.learn(settings.steps, reset_num_timesteps=False)
    print(f"distance to the expert: {distances[0]:.3f} -> {min(distances):.3f}")
    print(f"return, which the learner never saw: {returns[0]:.1f} -> {returns[int(np.argmin(distances))]:.1f}")
    return {"distance": distances, "return": returns}


# %%
# The figure shows the distance at the start of every round. The learner never saw an action of the expert or a reward.
# PPO is noisy with so few steps: a round can lose what an earlier one had learned. Keep the policy of the round with
# the smallest distance. Its return is printed below.

if __name__ == "__main__":
    import matplotlib.pyplot as plt

    done = main(Settings())
    figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="compressed")
    ax.semilogy(done["distance"], "o-", color="#0072B2")
    ax.set(xlabel="round", ylabel="distance to the expert")
