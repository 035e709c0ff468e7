"""Files: chains, data and results, in and out.

chains.py    read_chain, read_mdp, read_transitions, write_chain: which format a file has
tables.py    .csv, .tsv: edges, transitions, trajectories, rewards, costs
logs.py      .xes, .parquet, .arrow, and tables of events of any kind
prism.py     .tra and what stands beside it, as PRISM and Storm write it
storm.py     .drn, and programs that stormpy builds models of
npz.py       .npz: a chain, exactly
results.py   .npz: a result, so that it can be gone on from
arrays.py    the one reader of binary files, which believes nothing
files.py     opening with limits, replacing all at once, and errors that name file and line
limits.py    how large a file may be
"""

from pathlib import Path
from typing import Any

from diffbisim.io import limits

__all__ = ["limits", "load"]


def load(path: str | Path) -> Any:
    """The result (or the timed chain) in a file: every number, array and lazy attribute as it was.

    Returns
    -------
    DistanceResult, FitResult, CompressResult, ImitationResult, AbstractionResult or TimedChain : what was saved. A
        distance can be the ``warm=`` of a new solve. A fit comes without its torch module, but with its parameters.
    """
    from diffbisim.io.results import opened, result_from_arrays

    with opened(path) as arrays:
        if "fit" in arrays:
            from diffbisim.fit.result import FitResult

            return FitResult.from_arrays(arrays)
        if "compression" in arrays:
            from diffbisim.compress.result import CompressResult

            return CompressResult.from_arrays(arrays)
        if "imitation" in arrays:
            from diffbisim.imitate.result import ImitationResult

            return ImitationResult.from_arrays(arrays)
        if "abstraction" in arrays:
            from diffbisim.abstract.result import AbstractionResult

            return AbstractionResult.from_arrays(arrays)
        if "sizes" in arrays:
            from diffbisim.io.npz import check_version, timed_from_arrays

            check_version(arrays)
            return timed_from_arrays(arrays)
        return result_from_arrays(arrays)
