"""Fitting Markov models, as torch modules, to chains and to data.

fitting      ``fit``: the paper's Algorithm 1
objectives   what is minimized: the distance of a model to its target, solved exactly, tracked along, or from samples
updates      how the parameters move: along the natural direction by a step rule, or by a torch optimizer
kernels      parametrized kernels, starts and rewards as torch modules
identify     fit to data, with bootstrap intervals for the parameters
simulators   parameters of a simulator with continuous states, without torch
result       what a fit returns
"""
