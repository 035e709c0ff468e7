"""Arrays that cannot be written to, attributes that are computed once, and what this machine has."""

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffbisim.common.checks import freeze

Array = NDArray[np.float64]

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy:
        """``functools.cached_property`` without the lock of Python 3.11.

        That lock is shared by all instances of a class: results would wait for each other, and a process forked in the
        meantime would deadlock. Without it two threads may compute the same value twice, which is harmless.
        """

        def __init__(self, compute):
            self.compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.compute(instance)
            return value


def frozen(array: Any) -> Array:
    """Return a read-only C-contiguous float64 array that owns its memory: the array itself, or a copy."""
    if (
        isinstance(array, np.ndarray)
        and array.dtype == np.float64
        and array.flags.owndata
        and array.flags.c_contiguous
        and not array.flags.writeable
    ):
        return array
    return freeze(np.array(array, dtype=np.float64, order="C"))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array itself if it is read-only, else a read-only view."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def available_threads() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_memory() -> float:
    """Return the memory of this machine in bytes; infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return float("inf")
