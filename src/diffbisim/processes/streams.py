"""Streams of sampled transitions of a process, read one minibatch at a time.

A :class:`Stream` provides minibatches of transitions (s, s'), together with the number of states, the initial
distribution, and rewards or names. Its source is

    a chain          independent draws s ~ ρ, s' ~ P(·|s), with ρ the discounted occupancy
    a dataset        draws with replacement from :class:`Transitions`, according to their weights
    any iterable     in its own order: pairs (s, s'), triples (s, s', weight), or minibatches of arrays of equal length

Chains and datasets provide unlimited samples; an iterable is read once, and errors name the index of the invalid item.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse

from diffbisim.common.checks import Floats, Integers
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.processes.chain import MarkovChain, Transitions
from diffbisim.processes.convert import as_process

#: The generators that a file may name; other names are never looked up in numpy.
BIT_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}

#: ``at (n+1,), s, s', weights``; the minibatch of iteration t is the slice ``at[t]:at[t+1]``.
Draws = tuple[Integers, Integers, Integers, Floats]

ONE = np.ones(1)


class Stream:
    """A stream of transitions of one process.

    Parameters
    ----------
    source : MarkovChain, Transitions or iterable
        An iterable yields ``(s, s_next)``, ``(s, s_next, weight)`` or minibatches ``(array, array)``,
        ``(array, array, weights)``; states are indices.
    n_states : int, default=None
        Number of states; required for iterables.
    initial : as for :class:`MarkovChain`, default=None
        By default that of the chain or dataset, or state 0 for an iterable.
    rewards, names : as for :class:`MarkovChain`, default=None
        For costs that use them.
    sampled : bool, default=True
        False for a chain whose kernel is known, such as a learner's: all transitions are then returned at once,
        weighted by their occupancy, instead of being sampled.

    Examples
    --------
    >>> coin = Stream(iter([(0, 1), (1, 0), (0, 0)]), n_states=2)
    >>> coin.draw(2, 1, 0.9, np.random.default_rng(0))[1:3]
    (array([0, 1]), array([1, 0]))
    """

    def __init__(
        self,
        source: Any,
        n_states: int | None = None,
        *,
        initial: Any = None,
        rewards: Any = None,
        names: Any = None,
        sampled: bool = True,
    ) -> None:
        if not sampled and not isinstance(source, MarkovChain):
            raise InvalidArgument(f"sampled=False needs a MarkovChain, not a {type(source).__name__}; omit it")
        self.source, self.sampled = source, sampled
        self.items: Iterator[Any] | None = None
        self.n_read = 0  # number of items read from an iterable
        self.ended = False  # whether an iterable is exhausted
        self._pending: InvalidData | None = None  # raised after the valid items before it have been used
        if isinstance(source, MarkovChain):
            known: dict[str, Any] = source.__getstate__()
            del known["transition"]
            n, self.fingerprint = source.n_states, _fingerprint(*_pieces(source))
        elif isinstance(source, Transitions):
            known = {"initial": source._default_start(), "names": source.names, "lag": source._known_lag}
            n, self.fingerprint = source.n_states, _fingerprint(source.states, source.next_states, source.weights)
        elif isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
            if n_states is None or isinstance(n_states, bool) or n_states < 1:
                raise InvalidArgument(f"n_states is {n_states!r}; give the number of states of the stream")
            known, n, self.fingerprint = {"initial": 0}, int(n_states), 0
            self.items = iter(source)
        else:
            raise InvalidArgument(
                f"source is a {type(source).__name__}; give a MarkovChain, Transitions, or an iterable of (s, s_next)"
            )
        if n_states is not None and n_states != n:
            raise InvalidArgument(f"n_states is {n_states}, but the source has {n} states; omit it")
        given = {"initial": initial, "rewards": rewards, "names": names}
        known |= {name: value for name, value in given.items() if value is not None}
        known |= {} if names is None else {"hidden": False}  # the caller says which states are which
        #: A chain with self-loops only, which holds the number of states, initial distribution, rewards and names.
        self.frame = MarkovChain(sparse.eye_array(n, format="csr"), **known)

    @classmethod
    def of(cls, source: Any, name: str) -> Stream:
        """Return the stream itself, or a new one for a chain or dataset."""
        source = as_process(source)
        if isinstance(source, cls):
            return source
        if isinstance(source, (MarkovChain, Transitions)):
            return cls(source)
        raise InvalidArgument(
            f"{name} is a {type(source).__name__}; give a MarkovChain, Transitions, or "
            "diffbisim.Stream(iterable, n_states=...)"
        )

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.frame.n_states

    def skip_to(self, n_read: int) -> None:
        """Skip items of an iterable until ``n_read`` items have been read in total."""
        if self.items is not None:
            for _ in islice(self.items, max(n_read - self.n_read, 0)):
                self.n_read += 1

    def draw(self, n: int, batch: int, discount: float, rng: np.random.Generator) -> Draws:
        """Return minibatches of ``batch`` transitions for ``n`` iterations; fewer at the end of an iterable.

        Minibatches that an iterable yields are used as they are, regardless of ``batch``.
        """
        if self.items is not None:
            return self._read(n, batch)
        if not self.sampled:
            return self._expected(n, discount)
        ones = np.ones(n * batch)
        if isinstance(self.source, MarkovChain):
            s, after = self.source.sample_transitions(n * batch, discount, rng)
        else:
            w = self.source.weights
            k = rng.choice(len(self.source), n * batch, p=None if w is None else w / w.sum())
            s, after = self.source.states[k], self.source.next_states[k]
        return np.arange(0, n * batch + 1, batch), s.astype(np.int64), after.astype(np.int64), ones

    def _expected(self, n: int, discount: float) -> Draws:
        """Return all transitions in the first minibatch with their expected weights in ``n`` draws."""
        P = self.source.successors
        s = P.sources
        w = n * self.source.occupancy(discount)[s] * P.probabilities
        seen = w > 0
        at = np.full(n + 1, int(seen.sum()))
        at[0] = 0
        return at, s[seen], P.indices[seen].astype(np.int64), w[seen]

    def _read(self, n: int, batch: int) -> Draws:
        if self._pending is not None:
            error, self._pending = self._pending, None
            raise error
        assert self.items is not None
        parts: list[tuple[Integers, Integers, Floats]] = []
        sizes, single = [0], 0
        while len(sizes) <= n:
            try:
                part, whole = self._item(next(self.items))
            except StopIteration:
                self.ended = True
                break  # an incomplete minibatch at the end is discarded
            except InvalidData as error:
                if len(sizes) == 1:
                    raise
                self._pending = error
                break
            parts.append(part)
            single += 0 if whole else 1
            if whole or single == batch:
                sizes.append(sum(len(p[0]) for p in parts[-(1 if whole else batch) :]))
                single = 0
        parts = parts[: len(parts) - single]
        if not parts:
            return np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        s, after, w = (np.concatenate(column) for column in zip(*parts, strict=True))
        return np.cumsum(sizes), s, after, w

    def _item(self, item: Any) -> tuple[tuple[Integers, Integers, Floats], bool]:
        """Validate an item and return it as arrays, and whether it is a minibatch."""
        self.n_read += 1
        integers = type(item) is tuple and len(item) == 2 and type(item[0]) is type(item[1]) is int
        if integers and min(item) >= 0 and max(item) < self.n_states:  # as most items are: no need to validate arrays
            return (np.array(item[:1]), np.array(item[1:]), ONE), False
        where = f"item {self.n_read - 1} of the stream"
        try:
            s, after, *rest = item
            s, after = np.asarray(s), np.asarray(after)
            w = np.asarray(rest[0], dtype=np.float64) if rest else np.ones(s.shape)
        except (TypeError, ValueError):
            raise InvalidData(f"{where} is {item!r}; expected (s, s_next) or (s, s_next, weight)") from None
        whole = s.ndim == 1
        if s.shape != after.shape or s.shape != w.shape or s.ndim > 1 or len(rest) > 1:
            raise InvalidData(f"{where} has shapes {s.shape}, {after.shape}, {w.shape}; they must be equal")
        if s.size == 0:
            raise InvalidData(f"{where} is an empty minibatch; leave it out")
        for name, states in (("s", s), ("s_next", after)):
            if states.dtype.kind not in "iu":
                raise InvalidData(f"{where}: {name} is {states.ravel()[0]!r}; states are indices 0 to n_states - 1")
            bad = (states < 0) | (states >= self.n_states)
            if bad.any():
                raise InvalidData(
                    f"{where}: {name} = {states[bad].ravel()[0]} is not a state; with n_states = {self.n_states} "
                    f"they are 0 to {self.n_states - 1}"
                )
        bad = ~(np.isfinite(w) & (w > 0))
        if bad.any():
            raise InvalidData(f"{where}: weight {w[bad].ravel()[0]:g}; weights must be positive and finite")
        return (np.atleast_1d(s).astype(np.int64), np.atleast_1d(after).astype(np.int64), np.atleast_1d(w)), whole


def generator_from_state(state: Any) -> np.random.Generator:
    """Restore a generator from ``generator.bit_generator.state``."""
    name = state.get("bit_generator") if isinstance(state, dict) else None
    if not isinstance(name, str) or name not in BIT_GENERATORS:
        raise InvalidData(f"the generator {str(name)[:40]!r} is unknown; use one of {', '.join(BIT_GENERATORS)}")
    bits = BIT_GENERATORS[name]()
    try:
        bits.state = state
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidData(f"the state of a generator {name} is damaged ({error})") from None
    return np.random.Generator(bits)


def _pieces(chain: MarkovChain) -> tuple[Any, ...]:
    s = chain.successors
    return s.indptr, s.indices, s.probabilities, chain.initial


def _fingerprint(*arrays: Any) -> int:
    """Return a checksum for recognizing the same data."""
    code = 1
    for array in arrays:
        if array is not None:
            code = zlib.crc32(np.ascontiguousarray(array).data, code)
    return code
