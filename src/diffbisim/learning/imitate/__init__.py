"""Imitation from observations: policies that move like an expert who shows states but no actions.

imitation     ``imitate``, in a known MDP or in an environment that can only be sampled
objective     the distance between the expert and the chain of a policy
updates       how the policy moves: natural steps toward a level, and alternatives
learner       the policy: a table of logits, or a torch module
expert        the expert as a chain, and the sampling error of its data
control/      continuous observations: tracking, and cells
sb3           rewards for neural network policies (Stable-Baselines3)
environment   transition counts of an environment, and the MDP estimated from them
result        the result of an imitation, and the implicit reward
baselines/    other methods
"""

from diffbisim.learning.imitate.imitation import imitate
from diffbisim.learning.imitate.result import ImitationResult, ImplicitReward

__all__ = ["ImitationResult", "ImplicitReward", "imitate"]
