"""Compression: the nearest chain with few states, without torch.

compression   ``compress``, a search with several restarts, and ``compress_sweep`` over several sizes
starts        the target of a compression, and the partitions that restarts begin with
candidates    small chains that need no search: no result is farther than these
descent       block descent on the distance over small chains
barycenter    the best row of a small kernel, by an interior-point method
aggregation   the chain of given classes of states
kinetics      timescales, metastable sets and models that keep slow rates
result        the result of a compression
"""
