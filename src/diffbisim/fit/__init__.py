"""Fitting Markov models by the gradient of the metric, and finding small ones that behave like large ones."""
