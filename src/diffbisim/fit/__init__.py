"""What the gradient of the distance is for: fitting, identifying and compressing Markov models.

kernels      parametrized kernels, starts and rewards as torch modules
dbot         the paper's Algorithm 1: fit any torch module to a chain or to data
natural      the direction of a step: the gradient in the geometry of the model's own transitions
identify     fit to data, with bootstrap intervals for the parameters
compress     the nearest chain with few states; sweep: over the number of states
"""
