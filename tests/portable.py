"""What makes this machine compute like another one, as ``NAME=value`` for ``env``: see ``make test-portable``.

Sums are rounded in the order in which a processor takes their terms, and every library here has several kernels for
that and chooses by processor. These settings choose the oldest ones, without fused multiplications and with the
shortest vectors, so that last digits move as they do from one machine to the next.
"""

import platform


def numpy_features():
    """What NumPy would use beyond the least that it was built for, on this processor."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]


def settings():
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return {
        "OPENBLAS_CORETYPE": "Prescott" if x86 else "ARMV8",  # NumPy's and SciPy's linear algebra
        "NPY_DISABLE_CPU_FEATURES": ",".join(numpy_features()),  # NumPy's own loops
        "DIFFBISIM_ENGINE": "baseline",  # our engine, which has the same bits at every level
        "ATEN_CPU_CAPABILITY": "default",  # torch's loops
        "PYTHONHASHSEED": "20011",  # order of sets
    }


if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in settings().items()))
