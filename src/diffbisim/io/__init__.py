"""Reading and writing of chains, data and results.

chains.py    read_chain, read_mdp, read_transitions, write_chain: dispatch by file format
tables.py    .csv, .tsv: edges, transitions, trajectories, rewards, costs
logs.py      .xes, .parquet, .arrow, and other tables of events
prism.py     .tra and its companion files, as written by PRISM and Storm
storm.py     .drn, and programs that stormpy builds
npz.py       .npz: exact copies of chains, MDPs and timed chains
arrays.py    the reader of binary files, which validates everything
files.py     opening with size limits, atomic replacement, and errors that name file and line
limits.py    size limits for files

Results are saved by ``results/saving.py``.
"""

from pathlib import Path
from typing import Any

from diffbisim.io import limits

__all__ = ["limits", "load"]


def load(path: str | Path, *, verify: bool = False) -> Any:
    """Load a saved result or timed chain.

    Bounds in a file are not trusted but verified: by one sweep over the table of a converged result of the exact solver
    (about as much work as an iteration), by solving again from the table otherwise. If a sweep has more than 4,000,000
    cells (transitions of X times transitions of Y) this is left out by default. ``lower`` and ``upper`` are then the
    bounds that hold for all problems with these costs, and ``status`` says so.

    Parameters
    ----------
    path : str or Path
    verify : bool, default=False
        Whether to verify the bounds of large problems too.

    Returns
    -------
    result : DistanceResult, FitResult, CompressResult, ImitationResult, AbstractionResult or TimedChain
        The saved object. A distance can be passed as ``warm=`` to a new solve. A fit has its parameters, but not its
        torch module.
    """
    from diffbisim.common.checks import check_flag
    from diffbisim.results.saving import opened, result_from_arrays

    check_flag(verify, "verify")
    with opened(path) as arrays:
        if "fit" in arrays:
            from diffbisim.learning.fit.result import FitResult

            return FitResult.from_arrays(arrays, verify)
        if "compression" in arrays:
            from diffbisim.reduction.compression.result import CompressResult

            return CompressResult.from_arrays(arrays, verify)
        if "imitation" in arrays:
            from diffbisim.learning.imitate.result import ImitationResult

            return ImitationResult.from_arrays(arrays, verify)
        if "abstraction" in arrays:
            from diffbisim.reduction.abstraction.result import AbstractionResult

            return AbstractionResult.from_arrays(arrays)
        if "sizes" in arrays:
            from diffbisim.io.npz import check_version, timed_from_arrays

            check_version(arrays)
            return timed_from_arrays(arrays)
        return result_from_arrays(arrays, verify)
