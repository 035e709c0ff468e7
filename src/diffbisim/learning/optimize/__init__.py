"""The outer loop of fit and imitate: an objective, an update that moves its parameters, and a step rule.

loop         evaluate and step until a stopping rule applies; progress, callbacks and limits
steps        step rules: Polyak's length with a learned level, annealed lengths, bundles of cuts
checkpoint   save a run, and the module it trains, to disk and resume it bit for bit
"""
