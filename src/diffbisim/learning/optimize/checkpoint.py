"""Save a run to disk exactly and without pickle: one ``.npz`` file with arrays, and JSON for everything else.

    file = Checkpoint("run.npz", "fit", {"target": X, "discount": 0.95, "solver": solver})
    state = file.read()          # the last state written, or None; raises if the file belongs to another run
    file.write(state)            # atomic: if the process is killed, the previous file remains

*State* is any nesting of dictionaries, lists and tuples of plain values, arrays, tensors, chains, distance results and
random generators, and of objects whose classes are decorated with :func:`stored`. Values that JSON cannot represent are
moved to arrays (:func:`pack`), so that every bit is restored.

*Facts* identify the run. The file keeps a digest of each (:func:`digest`). If any of them differs, the file belongs to
another run, and resuming from it would answer another question. Options that do not change the answer (threads, time
limits, callbacks, the checkpoint interval) are not facts.

*A session* (:class:`Session`) is the checkpoint of a run that trains a torch module of the caller in place. On
resuming, the module must have either its initial values or those that the earlier call left in it; with any other
values it is another run.

*Temporary files.* A file is first written under a temporary name, which a kill may leave behind.
:meth:`RunCheckpoint.read` removes such files if no process is writing them any more.
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

from diffbisim.common.errors import InvalidData
from diffbisim.io.arrays import json_array
from diffbisim.io.files import remove_abandoned, replacing
from diffbisim.io.npz import chain_arrays, chain_from_arrays
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP
from diffbisim.processes.streams import BIT_GENERATORS, Stream
from diffbisim.results.base import DistanceResult
from diffbisim.results.saving import opened, result_from_arrays

#: Version of the file format.
VERSION = 2

#: Solver options that change only the speed of a run.
FREE = ("threads", "time_limit")

REMEDY = "choose another file, or delete this one to start over"


class RunCheckpoint:
    """The checkpoint file of one run.

    Parameters
    ----------
    path : str or Path
        The file.
    kind : str
        What is run, for messages: "fit", "compress" or "imitate".
    facts : dict
        Everything that identifies the run, under the names that the user knows; values are compared by content.
    """

    def __init__(self, path: str | Path, kind: str, facts: Mapping[str, Any]) -> None:
        self.path, self.kind = Path(path), kind
        self.facts = {name: [digest(value), _shown(value)] for name, value in facts.items()}

    def read(self) -> Any:
        """Return the last state written, or None if there is no file; raise InvalidData for the file of another run."""
        remove_abandoned(self.path)
        if not self.path.exists():
            return None
        with opened(self.path, "checkpoint", REMEDY) as arrays:
            try:
                held = json.loads(bytes(arrays.pop("checkpoint")).decode())
                mismatch = self._mismatch(held)
                if mismatch is None:
                    return unpack(held["state"], arrays)
            except (AttributeError, LookupError, RecursionError, OverflowError, MemoryError) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from None
        raise mismatch

    def _mismatch(self, held: Mapping[str, Any]) -> InvalidData | None:
        """Return the error if the file belongs to another run."""
        if held.get("version") != VERSION:
            return InvalidData(f"checkpoint {self.path} was written by another version of diffbisim; {REMEDY}")
        if held["kind"] != self.kind:
            return InvalidData(f"checkpoint {self.path} belongs to {held['kind']}, not to {self.kind}; {REMEDY}")
        names = {**held["facts"], **self.facts}
        differences = [text for name in names if (text := self._difference(name, held["facts"]))]
        return self.of_another_run(*differences) if differences else None

    def _difference(self, name: str, held: Mapping[str, Any]) -> str:
        """Describe how a fact differs; empty if it does not."""
        (then, shown), (now, here) = held.get(name, ["", "none"]), self.facts.get(name, ["", "none"])
        if then == now:
            return ""
        return f"{name} ({shown} there, {here} here)" if shown != here else name

    def of_another_run(self, *differences: str) -> InvalidData:
        """Return the error for a file of another run."""
        return InvalidData(
            f"checkpoint {self.path} belongs to another run; differences: {', '.join(differences)}; {REMEDY}"
        )

    def write(self, state: Any) -> None:
        """Replace the file atomically."""
        arrays: dict[str, Any] = {}
        held = {"version": VERSION, "kind": self.kind, "facts": self.facts, "state": pack(state, "state", arrays)}
        with replacing(self.path, binary=True) as file:
            np.savez(file, checkpoint=json_array(held), **arrays)


#: Classes that are stored by their fields; a class name in a file can refer only to one of these.
STORED: dict[str, Any] = {}

Kind = TypeVar("Kind", bound=type)


def stored(kind: Kind) -> Kind:
    """Decorate a dataclass or NamedTuple whose objects can be stored in a checkpoint."""
    STORED[kind.__name__] = kind
    return kind


class Resumable:
    """An object whose state consists of the attributes named in `changing`."""

    changing: ClassVar[tuple[str, ...]]

    def state(self) -> dict[str, Any]:
        """Return everything that changes from step to step."""
        return {name: getattr(self, name) for name in self.changing}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Restore a saved :meth:`state`."""
        for name in self.changing:
            setattr(self, name, state[name])


class Trained(Protocol):
    """Parameters that a run trains in place."""

    def state(self) -> list[Any]:
        """Return everything that changes: parameters and buffers."""

    def resume(self, state: list[Any]) -> None:
        """Restore a saved :meth:`state`."""

    def identity(self, state: list[Any], best: Any = None) -> Any:
        """Return what the caller can see of a state, with parameters `best` if given, or None if there is nothing."""


class Session:
    """Read and write the checkpoint of one run; does nothing without a path.

    If the ``with`` block is interrupted, the model is reset to the state in the file (or to its initial state if there
    is no file yet), so that the same call can resume.

    Parameters
    ----------
    path, kind, facts
        As for :class:`RunCheckpoint`; ``facts()`` is called only if there is a path.
    model : Trained
        What is trained.
    argument : str
        Name of the model in messages.
    """

    def __init__(
        self, path: str | Path | None, kind: str, facts: Callable[[], Mapping[str, Any]], model: Trained, argument: str
    ) -> None:
        self.kind, self.model, self.argument, self.held = kind, model, argument, model.state()
        self.file = None if path is None else RunCheckpoint(path, kind, facts())
        self.begun = "" if self.file is None else digest(model.identity(self.held))

    def read(self) -> Any:
        """Return the last state written, or None, and restore the model."""
        kept = None if self.file is None else self.file.read()
        if self.file is None or kept is None:
            return None
        left = [self.model.identity(kept["model"]), self.model.identity(kept["model"], kept["best"])]
        if self.begun not in (kept["begun"], *map(digest, left)):
            raise self.file.of_another_run(f"the initial parameters of {self.argument}")
        self.begun, self.held = kept["begun"], kept["model"]
        self.model.resume(self.held)
        return kept["state"]

    def write(self, state: Callable[[], Any], best: Callable[[], Any] = lambda: None) -> None:
        """Save ``state()``; ``best()`` returns the parameters that the run would leave in the model."""
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
    """Return `value` as JSON, with its arrays moved to `arrays`; `name` is its place in error messages."""
    if isinstance(value, Enum):
        raise InvalidData(f"a checkpoint cannot store {name}, an Enum; store its name instead")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return {"scalar" if isinstance(value, np.generic) else "array": _stored(np.array(value), arrays)}
    if _is_tensor(value):
        return _packed_tensor(value.detach().cpu(), arrays)
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "items"
        return {kind: [[pack(k, name, arrays), pack(v, f"{name}.{k}", arrays)] for k, v in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [pack(v, f"{name}.{k}", arrays) for k, v in enumerate(value)]}
    if isinstance(value, DistanceResult):
        return {"result": pack(value.arrays(), name, arrays)}
    if isinstance(value, MarkovChain):
        return {"chain": pack(chain_arrays(value), name, arrays)}
    if isinstance(value, np.random.Generator) and type(value.bit_generator).__name__ in BIT_GENERATORS:
        return {"generator": pack(_generator_state(value), name, arrays)}
    if type(value) is STORED.get(type(value).__name__):
        names = getattr(value, "_fields", None) or [field.name for field in fields(value)]  # NamedTuple or dataclass
        return {"object": [type(value).__name__, pack({k: getattr(value, k) for k in names}, name, arrays)]}
    raise InvalidData(f"a checkpoint cannot store {name}, a {type(value).__name__}; run without checkpoint=")


def unpack(value: Any, arrays: Mapping[str, Any]) -> Any:
    """Invert :func:`pack`."""
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
        return result_from_arrays(unpack(held, arrays), verify=True)
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
    """Return whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _packed_tensor(value: Any, arrays: dict[str, Any]) -> Any:
    import torch

    bits = value.view(torch.int16) if value.dtype == torch.bfloat16 else value  # numpy has no bfloat16
    return {"tensor": [_stored(bits.numpy().copy(), arrays), str(value.dtype).removeprefix("torch.")]}


def _tensor(array: Any, kind: str) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor


def _generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of the generator and of its seed sequence, from which it spawns."""
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
    """Return a hash of the content of a value, identical in every process.

    Arrays are hashed by shape, type and entries; chains, MDPs, data and streams by what they contain; solvers and other
    dataclasses by their options (except those in ``FREE``); torch modules by their classes, settings, constants and the
    shapes of their parameters; functions and other objects only by name.
    """
    code = hashlib.blake2b(digest_size=16)
    _feed(code, value)
    return code.hexdigest()


def _feed(code: Any, value: Any) -> None:
    """Hash the value, preceded by its type and size so that different values never read the same."""
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
    """Return the parts of an object, as far as they are known."""
    if isinstance(value, MarkovChain):
        s = value.successors
        return [value.is_sparse, s.indptr, s.indices, s.probabilities, value.initial, value.rewards, value.names]
    if isinstance(value, MDP):
        return [*value.transition, value.initial, value.rewards, value.names, value.actions]
    if isinstance(value, Stream):  # the items of an iterable cannot be known in advance
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
    """Return classes and plain settings of all submodules, constants by content, and learned tensors by shape."""
    plain = (bool, int, float, str, type(None))
    parts = [
        (name, _kind(part), sorted((k, v) for k, v in vars(part).items() if k[0] != "_" and isinstance(v, plain)))
        for name, part in module.named_modules()
    ]
    tensors = [(name, tuple(p.shape) if p.requires_grad else p, str(p.dtype)) for name, p in module.named_parameters()]
    return [parts, tensors, [(name, tuple(b.shape)) for name, b in module.named_buffers()]]


def _kind(value: Any) -> str:
    """Return the qualified name of a function or class, or of the class of an object."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _shown(value: Any) -> str:
    """Describe a value for messages: plain values as they are, others by type and size."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) <= 40 else type(value).__name__
    if isinstance(value, (MarkovChain, MDP)):
        return repr(value)
    if hasattr(value, "shape"):
        return f"{type(value).__name__} {tuple(value.shape)}"
    return _kind(value).rpartition(".")[2]
