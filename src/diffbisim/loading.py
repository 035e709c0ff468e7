"""Reading back what ``result.save(path)`` wrote, whichever result it was."""

from pathlib import Path
from typing import Any

from diffbisim.saving import opened, result_from_arrays


def load(path: str | Path) -> Any:
    """The result in a file: every number, array and lazy attribute as it was.

    Returns
    -------
    DistanceResult, FitResult, CompressResult or ImitationResult : what was saved. A distance can be the ``warm=`` of a
        new solve. A fit comes without its torch module, but with its parameters.
    """
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
        return result_from_arrays(arrays)
