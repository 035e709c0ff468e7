"""A run on disk, exactly and without pickle: one ``.npz`` of arrays, and JSON for everything else.

    file = Checkpoint("run.npz", "fit", {"target": X, "discount": 0.95, "solver": solver})
    state = file.read()          # what was written last, or None; the file of another run is refused
    file.write(state)            # all at once or not at all: a kill leaves the file that was there

*State* is any nesting of dictionaries, lists and tuples of plain values, arrays, tensors, chains, results of solvers
and random generators, and objects of classes that are marked :func:`stored`. What JSON cannot hold is moved to arrays
(:func:`pack`), so every bit comes back.

*Facts* say which run it is. Of each the file keeps a digest of its content (:func:`digest`), and a run that differs in
one of them is another run: to go on from its file would return an answer to another question. What does not change the
answer (threads, time limits, callbacks, how often to write) is no fact.

*A session* (:class:`Session`) is the checkpoint of a run that trains something in place: a torch module of the caller,
which comes back as the call before has left it, or as it was given then. With any other values it is another run.

*Temporaries.* A file is written under another name first, and a kill may leave that behind. :meth:`Checkpoint.read`
removes those of its own file that nobody is writing any more.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import scipy.sparse as sp

from diffbisim.chain import MarkovChain
from diffbisim.data.streams import BIT_GENERATORS, Stream
from diffbisim.errors import InvalidData
from diffbisim.io.files import remove_abandoned, replacing
from diffbisim.io.npz import chain_arrays, chain_from_arrays
from diffbisim.io.results import opened, result_from_arrays
from diffbisim.mdp import MDP
from diffbisim.results import DistanceResult

#: Format of the file.
VERSION = 2

#: Options of solvers that do not change where a run goes, only how fast.
FREE = ("threads", "time_limit")

REMEDY = "name another file, or delete this one to begin anew"


class Checkpoint:
    """The file of one run.

    Parameters
    ----------
    path : the file
    kind : what is run, for messages: "fit", "compress", "imitate"
    facts : all that makes the run this one and no other, by the names that a user knows; content, not identity, counts
    """

    def __init__(self, path: str | Path, kind: str, facts: Mapping[str, Any]) -> None:
        self.path, self.kind = Path(path), kind
        self.facts = {name: [digest(value), _shown(value)] for name, value in facts.items()}

    def read(self) -> Any:
        """The state that was written last; None if there is no file. Raises InvalidData for that of another run."""
        remove_abandoned(self.path)
        if not self.path.exists():
            return None
        with opened(self.path, "checkpoint", REMEDY) as arrays:
            try:
                held = json.loads(bytes(arrays.pop("checkpoint")).decode())
                trouble = self._trouble(held)
                if trouble is None:
                    return unpack(held["state"], arrays)
            except (AttributeError, LookupError, RecursionError, OverflowError, MemoryError) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from None
        raise trouble

    def _trouble(self, held: Mapping[str, Any]) -> InvalidData | None:
        """Why the run in the file is not this one."""
        if held.get("version") != VERSION:
            return InvalidData(f"checkpoint {self.path} is of another version of diffbisim; {REMEDY}")
        if held["kind"] != self.kind:
            return InvalidData(f"checkpoint {self.path} is of {held['kind']}, not of {self.kind}; {REMEDY}")
        differ = [note for name in {**held["facts"], **self.facts} if (note := self._note(name, held["facts"]))]
        return self.of_another_run(*differ) if differ else None

    def _note(self, name: str, held: Mapping[str, Any]) -> str:
        """What to say of a fact that differs; empty if it does not."""
        (then, shown), (now, here) = held.get(name, ["", "none"]), self.facts.get(name, ["", "none"])
        if then == now:
            return ""
        return f"{name} ({shown} there, {here} here)" if shown != here else name

    def of_another_run(self, *differ: str) -> InvalidData:
        """The error that says in what the run in the file is another."""
        return InvalidData(f"checkpoint {self.path} is of another run; what differs: {', '.join(differ)}; {REMEDY}")

    def write(self, state: Any) -> None:
        """Replace the file, all at once or not at all."""
        arrays: dict[str, Any] = {}
        held = {"version": VERSION, "kind": self.kind, "facts": self.facts, "state": pack(state, "state", arrays)}
        text = np.frombuffer(json.dumps(held).encode(), dtype=np.uint8)
        with replacing(self.path, binary=True) as file:
            np.savez(file, checkpoint=text, **arrays)


#: Classes whose objects are stored by their fields: a name in a file stands for one of these, and for nothing else.
STORED: dict[str, Any] = {}

Kind = TypeVar("Kind", bound=type)


def stored(kind: Kind) -> Kind:
    """Decorates a dataclass or NamedTuple whose objects a checkpoint may hold."""
    STORED[kind.__name__] = kind
    return kind


class Resumable:
    """Something whose state is the values of a few attributes."""

    changing: ClassVar[tuple[str, ...]]

    def state(self) -> dict[str, Any]:
        """Everything that changes from step to step, as a checkpoint can hold it."""
        return {name: getattr(self, name) for name in self.changing}

    def resume(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        for name in self.changing:
            setattr(self, name, state[name])


class Trained(Protocol):
    """Parameters that a run trains in place."""

    def state(self) -> list[Any]:
        """All that changes: parameters, and what a module keeps beside them."""

    def resume(self, state: list[Any]) -> None:
        """The inverse of :meth:`state`."""

    def identity(self, state: list[Any], best: Any = None) -> Any:
        """What of a state the caller sees in the module, with ``best`` as its parameters if given; None if nothing."""


class Session:
    """Reads and writes the checkpoint of one run; without a path it does nothing.

    As a context manager it leaves the model as the file has it (as it was given, where there is none yet) when the
    block is interrupted, so that the same call goes on from there.

    Parameters
    ----------
    path, kind, facts : of the :class:`Checkpoint`; ``facts()`` is asked only if there is a path
    model : what is trained
    argument : the name by which the caller knows it
    """

    def __init__(
        self, path: str | Path | None, kind: str, facts: Callable[[], Mapping[str, Any]], model: Trained, argument: str
    ) -> None:
        self.kind, self.model, self.argument, self.held = kind, model, argument, model.state()
        self.file = None if path is None else Checkpoint(path, kind, facts())
        self.begun = "" if self.file is None else digest(model.identity(self.held))

    def read(self) -> Any:
        """What was written last, None if nothing; the model goes on where it stood."""
        kept = None if self.file is None else self.file.read()
        if self.file is None or kept is None:
            return None
        left = [self.model.identity(kept["model"]), self.model.identity(kept["model"], kept["best"])]
        if self.begun not in (kept["begun"], *map(digest, left)):
            raise self.file.of_another_run(f"the values at which the parameters of {self.argument} begin")
        self.begun, self.held = kept["begun"], kept["model"]
        self.model.resume(self.held)
        return kept["state"]

    def write(self, state: Callable[[], Any], best: Callable[[], Any] = lambda: None) -> None:
        """Keep what ``state()`` says; ``best()`` are the parameters that the run would leave in the model."""
        if self.file is None:
            return
        self.held = self.model.state()
        self.file.write({"begun": self.begun, "model": self.held, "best": best(), "state": state()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and self.file is not None:
            self.model.resume(self.held)


# --- values as JSON and arrays -----------------------------------------------------------------------------


def pack(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """``value`` as JSON, its arrays moved to ``arrays``; ``name`` says in errors where a value is."""
    if isinstance(value, Enum):
        raise InvalidData(f"a checkpoint cannot hold {name}, an Enum; store its name")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return {"scalar" if isinstance(value, np.generic) else "array": _stored(np.array(value), arrays)}
    if _is_tensor(value):
        return _packed_tensor(value.detach().cpu(), arrays)
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "items"
        return {
            kind: [[pack(k, name, arrays), pack(v, f"{name}.{k}", arrays)] for k, v in value.items()],
        }
    if type(value) in (list, tuple):
        return {type(value).__name__: [pack(v, f"{name}.{k}", arrays) for k, v in enumerate(value)]}
    if isinstance(value, DistanceResult):
        return {"result": pack(value.arrays(), name, arrays)}
    if isinstance(value, MarkovChain):
        return {"chain": pack(chain_arrays(value), name, arrays)}
    if isinstance(value, np.random.Generator) and type(value.bit_generator).__name__ in BIT_GENERATORS:
        return {"generator": pack(_generator_state(value), name, arrays)}
    if type(value) is STORED.get(type(value).__name__):
        names = getattr(value, "_fields", None) or [field.name for field in fields(value)]  # of a NamedTuple, or not
        return {"object": [type(value).__name__, pack({k: getattr(value, k) for k in names}, name, arrays)]}
    raise InvalidData(f"a checkpoint cannot hold {name}, a {type(value).__name__}; leave checkpoint out")


def unpack(value: Any, arrays: Mapping[str, Any]) -> Any:
    """The inverse of :func:`pack`."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "array":
        return np.array(arrays[held])
    if kind == "scalar":
        return arrays[held][()]
    if kind == "tensor":
        return _tensor(np.array(arrays[held[0]]), held[1])
    if kind in ("items", "counter"):
        found = {unpack(k, arrays): unpack(v, arrays) for k, v in held}
        return Counter(found) if kind == "counter" else found
    if kind in ("list", "tuple"):
        parts = [unpack(v, arrays) for v in held]
        return parts if kind == "list" else tuple(parts)
    if kind == "result":
        return result_from_arrays(unpack(held, arrays))
    if kind == "chain":
        return chain_from_arrays(unpack(held, arrays))
    if kind == "generator":
        return _generator(unpack(held, arrays))
    if kind == "object":
        return STORED[held[0]](**unpack(held[1], arrays))
    raise InvalidData(f"a value of unknown kind {kind!r}")


def _stored(array: Any, arrays: dict[str, Any]) -> str:
    name = f"array{len(arrays)}"
    arrays[name] = array
    return name


def _is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor; where torch was never imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _packed_tensor(value: Any, arrays: dict[str, Any]) -> Any:
    import torch

    bits = value.view(torch.int16) if value.dtype == torch.bfloat16 else value  # which numpy does not have
    return {"tensor": [_stored(bits.numpy().copy(), arrays), str(value.dtype).removeprefix("torch.")]}


def _tensor(array: Any, kind: str) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor


def _generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Where it stands, and what it spawns next."""
    seed: Any = generator.bit_generator.seed_seq
    parts = ("entropy", "spawn_key", "pool_size", "n_children_spawned")
    seeded = isinstance(seed, np.random.SeedSequence)
    return {"bits": generator.bit_generator.state, "seed": {k: getattr(seed, k) for k in parts} if seeded else None}


def _generator(state: dict[str, Any]) -> np.random.Generator:
    kind, seed = BIT_GENERATORS.get(state["bits"]["bit_generator"]), state["seed"]
    if kind is None:
        raise InvalidData(f"a random generator of unknown kind {state['bits']['bit_generator']!r}")
    bits = kind(None if seed is None else np.random.SeedSequence(**seed))
    bits.state = state["bits"]
    return np.random.Generator(bits)


# --- fingerprints ------------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """A name for the content of a value, the same in every process.

    Arrays count by shape, type and entries, chains, MDPs, data and streams by what they hold, solvers and other
    dataclasses by their options (but those in ``FREE``), torch modules by their classes, settings, constants and the
    shapes of what is learned, functions and other objects by their name only.
    """
    code = hashlib.blake2b(digest_size=16)
    _feed(code, value)
    return code.hexdigest()


def _feed(code: Any, value: Any) -> None:
    """Everything with its kind and size before it, so that no two values read alike."""
    if _is_tensor(value):
        arrays: dict[str, Any] = {}
        ((_, kind),) = (_packed_tensor(value.detach().cpu(), arrays)["tensor"],)
        value = ["tensor", kind, *arrays.values()]
    if sp.issparse(value):
        matrix: Any = sp.csr_array(value)  # type: ignore[call-overload]
        value = ["sparse", matrix.shape, matrix.data, matrix.indices, matrix.indptr]
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.hasobject:
            value = ["objects", value.tolist()]
        else:
            code.update(f"array {value.dtype.str} {value.shape} ".encode())
            code.update(np.ascontiguousarray(value).tobytes())
            return
    if isinstance(value, (list, tuple, dict)):
        code.update(f"{type(value).__name__} {len(value)} ".encode())
        for part in value.items() if isinstance(value, dict) else value:
            _feed(code, part)
        return
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        code.update(f"{type(value).__name__} {len(text)} ".encode() + text)
        return
    code.update(f"{_kind(value)} ".encode())
    _feed(code, _content(value))


def _content(value: Any) -> Any:
    """What an object consists of, as far as it can be told."""
    if isinstance(value, MarkovChain):
        s = value.successors
        return [value.is_sparse, s.indptr, s.indices, s.probabilities, value.initial, value.rewards, value.labels]
    if isinstance(value, MDP):
        return [*value.transition, value.initial, value.rewards, value.labels, value.actions]
    if isinstance(value, Stream):  # what an iterable will show cannot be known
        return [value.frame, value.sampled, None if value.items is not None else value.source]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.random.Generator):
        return [_kind(value.bit_generator), _generator_state(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value) if field.name not in FREE]
    if isinstance(value, range):
        return list(value)
    if hasattr(value, "named_modules"):
        return _module_content(value)
    return np.asarray(value) if hasattr(value, "__array__") else None


def _module_content(module: Any) -> Any:
    """Classes and plain settings of all parts, what is constant by content, and what is learned by shape."""
    plain = (bool, int, float, str, type(None))
    parts = [
        (name, _kind(part), sorted((k, v) for k, v in vars(part).items() if k[0] != "_" and isinstance(v, plain)))
        for name, part in module.named_modules()
    ]
    tensors = [(name, tuple(p.shape) if p.requires_grad else p, str(p.dtype)) for name, p in module.named_parameters()]
    return [parts, tensors, [(name, tuple(b.shape)) for name, b in module.named_buffers()]]


def _kind(value: Any) -> str:
    """The name of a function or class, or of the class of an object."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _shown(value: Any) -> str:
    """A few words for messages: plain values as they are, others by kind and size."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) <= 40 else type(value).__name__
    if isinstance(value, (MarkovChain, MDP)):
        return repr(value)
    if hasattr(value, "shape"):
        return f"{type(value).__name__} {tuple(value.shape)}"
    named = value if hasattr(value, "__qualname__") else type(value)
    return str(named.__name__)
