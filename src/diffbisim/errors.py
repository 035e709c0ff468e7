"""What can go wrong, by name.

Every message names the argument, the place (row, line, state) and the remedy. The errors about input are
``ValueError`` too, so that code which knows nothing of diffbisim can catch them.
"""


class DiffbisimError(Exception):
    """Base of every error that diffbisim raises on purpose."""


class InvalidArgument(DiffbisimError, ValueError):
    """An option is out of its range: a discount outside (0, 1), an unknown solver, an impossible size."""


class InvalidChain(DiffbisimError, ValueError):
    """A transition matrix, start, reward or label list that does not make a Markov chain (or an MDP)."""


class InvalidCost(DiffbisimError, ValueError):
    """A ground cost of the wrong shape, negative, not finite, or not defined for these two chains."""


class InvalidData(DiffbisimError, ValueError):
    """Transitions, trajectories or files that cannot be read as a Markov chain."""


class MissingExtra(DiffbisimError, ImportError):
    """An optional dependency is not installed; the message has the one line that installs it."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before the certified gap reached ``tol``; bounds and value are still true."""
