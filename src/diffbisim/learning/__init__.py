"""Fitting and imitation by the gradient of the distance."""
