"""The distance as a differentiable function of PyTorch tensors."""

from diffbisim.autodiff.torch import distance, distance_and_result

__all__ = ["distance", "distance_and_result"]
