"""The distance as a differentiable function: shared code, PyTorch and JAX."""
