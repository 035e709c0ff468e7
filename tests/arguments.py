"""Tables of arguments, for the tests that no argument is ignored (contract/test_arguments_*.py).

A mode is a function, the arguments of a base call, what its answer is, and for every other parameter of its signature
an entry:

    changes(value)     the answer differs from that of the base call
    refused(value)     the call is refused, and the message names the argument
    unused(value)      the answer cannot depend on it, as documented (a seed where nothing is drawn)
    honored(value, …)  the answer stays the same, and something else shows that the argument was used

A parameter that is added to a signature without an entry fails (`faults`). Values of class `Made` are made anew for
every call, for objects that a call changes.
"""

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

import diffbisim as db


class Made(NamedTuple):
    """An argument that is made for every call."""

    make: Callable


class Mode(NamedTuple):
    function: object
    base: dict
    answer: Callable
    entries: dict
    skip: tuple = ()  # parameters whose entries are those of another mode of the same function


class Entry(NamedTuple):
    kind: str
    value: object
    also: dict  # arguments of both calls
    shown: object = None
    usual: object = None  # what the first call has instead of the default


def changes(value, /, usual=None, **also):
    """The argument changes the answer from that of ``usual``, by default its default."""
    return Entry("changes", value, also, usual=usual)


def refused(value, /, **also):
    return Entry("refused", value, also)


def unused(value, /, **also):
    """The answer cannot depend on it, because the mode has no search: a seed or a progress bar does no harm."""
    return Entry("unused", value, also)


def honored(value, shown, /, **also):
    """``shown(value)`` is asserted after the call; a callable value is made for the call: ``value(tmp_path)``."""
    return Entry("honored", value, also, shown)


class Log(list):
    """A callback or progress function that keeps what it is called with."""

    def __call__(self, *row):
        self.append(row)


class Pool:
    """An executor that counts its tasks."""

    def __init__(self):
        self.inner, self.tasks = ThreadPoolExecutor(1), 0

    def submit(self, *task, **options):
        self.tasks += 1
        return self.inner.submit(*task, **options)

    def shutdown(self, *args, **options):
        self.inner.shutdown(*args, **options)


def same(one, other):
    one, other = _flat(one), _flat(other)
    return len(one) == len(other) and all(_equal(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True))


def _flat(answer):
    """What an answer is made of, as a list."""
    if isinstance(answer, (tuple, list)):
        return [piece for part in answer for piece in _flat(part)] or [0]
    if isinstance(answer, dict):
        return _flat([*answer.items()])
    if hasattr(answer, "toarray"):
        return [answer.toarray()]
    return [answer]


def _equal(a, b):
    numeric = a.dtype.kind == b.dtype.kind == "f"
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=numeric))


def _called(function, arguments):
    """Call with every argument by name, except those whose names are numbers: these come first."""
    given = {name: value.make() if isinstance(value, Made) else value for name, value in arguments.items()}
    first = [given.pop(name) for name in sorted(name for name in given if name.isdigit())]
    return function(*first, **given)


def fault(function, base, answer, name, entry, folder):
    """Return in what way the argument is not treated as its entry says; None if it is."""
    if entry.kind == "refused":
        try:
            _called(function, base | entry.also | {name: entry.value})
        except db.DiffbisimError as error:
            return None if name in str(error) else f"refused without its name: {error}"
        return "not refused"
    first = {} if entry.usual is None else {name: entry.usual}
    before = answer(_called(function, base | entry.also | first))
    value = entry.value(folder) if entry.kind == "honored" else entry.value
    equal = same(before, answer(_called(function, base | entry.also | {name: value})))
    if equal == (entry.kind == "changes"):
        return "ignored" if equal else "changes the answer"
    return None if entry.kind != "honored" or entry.shown(value) else "not honored"


def faults(mode, folder):
    """Return the faults of a mode by parameter; parameters without an entry are faults."""
    function, base, answer, entries, skip = mode
    parameters = inspect.signature(function).parameters.values()
    names = {part.name for part in parameters if part.kind not in (part.VAR_KEYWORD, part.VAR_POSITIONAL)}
    missing = names - {*entries, *base, *skip, "self"}
    found = {name: fault(function, base, answer, name, entry, folder) for name, entry in entries.items()}
    return dict.fromkeys(sorted(missing), "has no entry") | {name: text for name, text in found.items() if text}
