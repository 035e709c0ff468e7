"""The example with Stable-Baselines3 runs, and PPO on the implicit reward comes closer to the expert."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plot_reward_stable_baselines.py"


def test_a_reinforcement_learner_on_the_implicit_reward_lowers_the_distance():
    names = runpy.run_path(str(EXAMPLE))
    done = names["main"](names["Settings"](rounds=2, steps=512))
    assert min(done["distance"]) < 0.8 * done["distance"][0]
