import numpy as np
from numpy.typing import NDArray

level: str

def refine(
    first: NDArray[np.int64],
    sources: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    classes: NDArray[np.int64],
    tolerance: float,
) -> tuple[NDArray[np.int64], int]:
    """Refine a partition; ``first``, ``sources`` and ``probabilities`` are the columns of the kernels.

    Returns the class of every state and the number of transitions visited.
    """
