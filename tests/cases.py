"""Many small cases as one test: a test that takes milliseconds costs several more to be set up, sent and reported."""

import inspect
from itertools import product

import pytest


def run_all(test, cases, **given):
    """Run a test on every case, a dictionary of arguments; if some fail, raise the first and name them all."""
    __tracebackhide__ = True
    failed = []
    for case in cases:
        try:
            test(**case, **given)
        except (Exception, pytest.fail.Exception) as error:
            failed.append((case, error))
    if failed:
        told = "; ".join(", ".join(f"{k}={v}" for k, v in case.items()) for case, _ in failed[:20])
        failed[0][1].add_note(f"{len(failed)} of {len(cases)} cases fail: {told}")
        raise failed[0][1]


def each(**values):
    """Like ``parametrize``, in one test: runs every combination and, if some fail, raises the first and names them all.

    Fixtures are made once, so that ``tmp_path`` is one folder for all cases.
    """
    cases = [dict(zip(values, case, strict=True)) for case in product(*values.values())]

    def decorate(test):
        def run(**given):
            __tracebackhide__ = True
            run_all(test, cases, **given)

        signature = inspect.signature(test)
        others = [part for name, part in signature.parameters.items() if name not in values]
        run.__signature__ = signature.replace(parameters=others)
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(run, name, getattr(test, name))
        run.__dict__.update(test.__dict__)  # marks that stand below
        return run

    return decorate
