"""Imitation from observations: policies that move like an expert who shows states but no actions."""

from diffbisim.imitate.ilfo import imitate
from diffbisim.imitate.result import ImitationResult
from diffbisim.imitate.reward import ImplicitReward

__all__ = ["ImitationResult", "ImplicitReward", "imitate"]
