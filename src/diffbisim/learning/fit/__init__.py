"""Fit Markov models, written as torch modules, to chains and to data.

fitting      ``fit``: the paper's Algorithm 1
objectives   the distance between a model and its target: solved exactly, tracked, or estimated from samples
updates      how the parameters move: natural steps with a step rule, or a torch optimizer
kernels      parametrized kernels, initial distributions and rewards as torch modules
identify     fit to data, with bootstrap confidence intervals for the parameters
simulators   fit the parameters of a simulator with continuous states, without torch
result       the result of a fit
"""
