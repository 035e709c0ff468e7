"""Imitation from observations: policies that move like an expert who shows states but no actions."""
