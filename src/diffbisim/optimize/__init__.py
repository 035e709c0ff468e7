"""The outer loop of fit and imitate: an objective, an update that moves its parameters, and a step rule.

loop         evaluate, keep the best, move, until something says that it is over; who may watch, and stop it
steps        how far to go: Polyak's length for a level that is learned, annealed lengths, several cuts at once
checkpoint   a run on disk, to the bit, and the module that it trains in place
"""
