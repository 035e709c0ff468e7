"""The distance as a differentiable function of JAX arrays."""

from diffbisim.autodiff.jax import distance

__all__ = ["distance"]
