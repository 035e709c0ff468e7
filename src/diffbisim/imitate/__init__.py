"""Imitation from observations: :func:`diffbisim.imitate` (ilfo.py), its updates, and the implicit reward."""

from diffbisim.imitate.ilfo import imitate
from diffbisim.imitate.result import ImitationResult
from diffbisim.imitate.reward import ImplicitReward

__all__ = ["ImitationResult", "ImplicitReward", "imitate"]
