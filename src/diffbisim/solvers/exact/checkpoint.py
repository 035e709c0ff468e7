"""The file from which a killed run of the exact solver resumes: the table after every iteration, 8 bytes per pair.

It does not contain the trees, which are larger and are rebuilt by the first improvement. The resumed answer is
therefore the same to the certified gap, not bit for bit. The file is replaced atomically, so that a kill leaves the
previous one.
"""

import hashlib
from pathlib import Path

import numpy as np

from diffbisim.errors import InvalidArgument, InvalidData
from diffbisim.io.files import replacing
from diffbisim.problem import Array, Problem


class Checkpoint:
    """The table of a run in a file, which runs of other problems refuse."""

    def __init__(self, path: Path, problem: Problem) -> None:
        self.path, self.shape, self.scale = path, problem.shape, problem.scale or 1.0
        digest = hashlib.sha256(repr((problem.discount, problem.shape)).encode())
        for part in (problem.cost, *problem.x.successors, *problem.y.successors):
            digest.update(np.ascontiguousarray(part).data)
        self.problem = np.frombuffer(digest.digest(), np.uint8)

    def read(self) -> Array | None:
        """Return the table (n_X, n_Y) in the units of the cost, or None if there is no file yet."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                problem, U = file["problem"], file["U"]
        except (OSError, ValueError, KeyError) as error:
            raise InvalidData(
                f"checkpoint {self.path} cannot be read ({error}); choose another file, or delete it"
            ) from error
        if not np.array_equal(problem, self.problem) or U.shape != (self.shape[0] * self.shape[1],):
            raise InvalidArgument(f"checkpoint {self.path} belongs to another problem; choose another, or delete it")
        return np.asarray(U, dtype=np.float64).reshape(self.shape) * self.scale

    def write(self, U: Array) -> None:
        """Replace the file with the scaled table."""
        with replacing(self.path, binary=True) as file:
            np.savez(file, problem=self.problem, U=U)
