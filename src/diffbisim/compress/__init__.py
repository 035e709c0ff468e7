"""Compression: the nearest chain with few states, without torch.

compression   ``compress``, a race of restarts, and ``compress_sweep`` over several sizes
starts        what is compressed, and the partitions that the restarts begin with
descent       block descent on the distance over small chains
barycenter    the best row of a small kernel, by an interior-point method
result        what a compression returns
"""
