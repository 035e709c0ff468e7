"""Compression: the nearest chain with few states, without torch.

compression   ``compress``, a race of restarts, and ``compress_sweep`` over several sizes
starts        what is compressed, and the partitions that the restarts begin with
descent       block descent on the distance over small chains
result        what a compression returns
"""
