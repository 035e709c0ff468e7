"""A file that a killed run of the exact solver goes on from: the table after every iteration, 8 bytes per pair.

Trees are not in it: they take more, and the first improvement of the table makes them anew. So the answer is the same
to the certified gap, not to the last bit. The file is replaced as a whole, so that a kill leaves the one before.
"""

import hashlib
from pathlib import Path

import numpy as np

from diffbisim.errors import InvalidArgument, InvalidData
from diffbisim.io.files import replacing
from diffbisim.problem import Array, Problem


class Checkpoint:
    """The table of a run in a file; runs of other problems refuse it."""

    def __init__(self, path: Path, problem: Problem) -> None:
        self.path, self.shape, self.scale = path, problem.shape, problem.scale or 1.0
        digest = hashlib.sha256(repr((problem.discount, problem.shape)).encode())
        for part in (problem.cost, *problem.x.successors, *problem.y.successors):
            digest.update(np.ascontiguousarray(part).data)
        self.problem = np.frombuffer(digest.digest(), np.uint8)

    def read(self) -> Array | None:
        """The table ``(n_X, n_Y)``, in the user's units; None if there is no file yet."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                problem, U = file["problem"], file["U"]
        except (OSError, ValueError, KeyError) as error:
            raise InvalidData(f"checkpoint {self.path} cannot be read ({error}); name another, or remove it") from error
        if not np.array_equal(problem, self.problem) or U.shape != (self.shape[0] * self.shape[1],):
            raise InvalidArgument(f"checkpoint {self.path} is of another problem; name another file, or remove it")
        return np.asarray(U, dtype=np.float64).reshape(self.shape) * self.scale

    def write(self, U: Array) -> None:
        with replacing(self.path, binary=True) as file:
            np.savez(file, problem=self.problem, U=U)
