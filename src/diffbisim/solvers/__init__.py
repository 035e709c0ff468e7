"""One file per algorithm; each solver is a small frozen object with options and ``solve(problem)``."""

from diffbisim.solvers.exact import Exact
from diffbisim.solvers.linear_program import LinearProgram
from diffbisim.solvers.lumped import Lumped

__all__ = ["Exact", "LinearProgram", "Lumped"]
