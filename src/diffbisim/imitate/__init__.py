"""Imitation from observations: policies that move like an expert who shows states but no actions.

imitation     ``imitate``, in a known MDP and in an environment that is only sampled
objective     what is minimized: the distance between the expert and the chain of a policy
updates       how the policy moves: natural steps to a level, and others
learner       the policy: a table of logits, or a torch module
expert        the expert as a chain; what its data cannot tell apart
control/      where observations are continuous: tracking, cells
sb3           tracking as a reward for networks
environment   what was seen of an environment, and the MDP that it suggests
result        what imitation returns, and the implicit reward
baselines/    other methods
"""

from diffbisim.imitate.imitation import imitate
from diffbisim.imitate.result import ImitationResult, ImplicitReward

__all__ = ["ImitationResult", "ImplicitReward", "imitate"]
