"""Files of every kind that we read, and damage of every kind: the engine of the fuzz tests.

`samples()` makes one small file of each kind. `mutated(sample, rng)` is a damaged copy: bytes and archives as a bad
disk or a bad network leaves them, and, because checksums catch all of that, arrays, headers, JSON and words as an enemy
would write them. `attempt` reads the copy and uses what it gets: it must be refused with a `DiffbisimError`, or work.

Used by tests/unit/test_fuzz_files.py (a few thousand) and benchmarks/long/fuzz.py (as many as wanted, in subprocesses).
"""

import gzip
import io
import json
import re
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import scipy.sparse as sp

import diffbisim as db
from diffbisim.common.errors import DiffbisimError
from diffbisim.io.chains import read_model
from diffbisim.io.tables import read_numbers, read_rewards
from diffbisim.learning.fit.result import FitResult
from diffbisim.learning.imitate.result import ImitationResult
from diffbisim.problems.discounted import Discounted
from diffbisim.reduction.compression.result import CompressResult
from diffbisim.results.base import Status
from diffbisim.solvers import Exact, SinkhornPolicy, Somcot
from diffbisim.solvers.exact.tracking import TrackingSolver as Follow

UNSEEN = ("error", "self-loop", "uniform", "drop")


@dataclass(frozen=True)
class Sample:
    """One kind of file: its parts by name (the first is the one that is read), and how it is read and used."""

    name: str
    files: dict[str, bytes]
    use: Callable[[Path, np.random.Generator], object]


# --- good files -------------------------------------------------------------------------------------------------


def samples() -> dict[str, Sample]:
    """One file of each kind, by name."""
    X, Y = _chain(0, 3), _chain(1, 4)
    walk = db.MarkovChain(sp.csr_array(_ring(5)), rewards=np.arange(5.0), initial=[0.5, 0.5, 0, 0, 0])
    twins = db.MarkovChain(np.full((4, 4), 0.25), rewards=[0.0, 0.0, 1.0, 1.0])
    mdp = db.MDP([_chain(4, 3).transition, _chain(5, 3).transition], rewards=[0.0, 1.0, 2.0], actions=["a", "b"])
    policy = mdp.uniform_policy()
    start = db.distance(X, Y, solver=Exact())
    results = {
        "exact": start,
        "stopped": _quiet(X, Y, solver=Exact(max_iterations=1)),
        "reachable": db.distance(walk, _halves(), solver=Exact(reachable=True)),
        "lumped": db.distance(twins, X, lump=True),
        "sinkhorn": _quiet(X, Y, solver="sinkhorn-policy"),
        "entropic": db.distance(X, Y, discount=0.8, solver=SinkhornPolicy(epsilon=0.5)),
        "lp": db.distance(X, Y, solver="lp"),
        "somcot": db.distance(X, Y, discount=0.8, solver=Somcot(max_iterations=200)),
        "followed": Follow(Exact()).solve(start.problem, warm=start),
    }
    learner = db.distance(X, mdp.induced_chain(policy), solver=Exact())
    history = ({"value": 1.0, "step": 0.5},)
    results["fit"] = FitResult(
        Y, start, {"logits": np.ones((4, 4))}, None, Status.ITERATIONS_OF_FIT, history, {"pivots": 3}
    )
    results["compression"] = CompressResult(Y, start, history)
    results["imitation"] = ImitationResult(policy, learner, history, mdp, Status.ITERATIONS)
    found = [
        Sample(name, {f"{name}.npz": _written(result.save, ".npz")}, use_result) for name, result in results.items()
    ]
    found += [
        Sample(
            name, {f"{name}.npz": _written(lambda path, chain=chain: db.write_chain(chain, path), ".npz")}, use_chain
        )
        for name, chain in (("dense", _chain(2, 3, names=["a", 1.5, ("b", 2)])), ("sparse", walk))
    ]
    found += [Sample(name, {k: text.encode() for k, text in files.items()}, use) for name, files, use in TEXTS]
    found += [
        Sample(f"events{ending}", {f"events{ending}": pack(EVENTS)}, use_events) for ending, pack in PACKED.items()
    ]
    found.append(Sample("array", {"cost.npy": _written(lambda path: np.save(path, np.ones((3, 4))), ".npy")}, use_cost))
    return {sample.name: sample for sample in found}


EVENTS = {"who": [1, 2, 1, 1, 2, 1], "when": [3, 0, 1, 2, 4, 9], "what": list("abcaab"), "arm": list("xyxxyx")}


def _as_csv(table):
    rows = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    return ("\n".join(rows) + "\n").encode()


def _as_parquet(table):
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), out)
    return out.getvalue()


PACKED = {".csv": _as_csv, ".csv.gz": lambda table: gzip.compress(_as_csv(table)), ".parquet": _as_parquet}
TABLE = "from,to,probability\n0,1,0.7\n0,0,0.3\n1,0,1/3\n1,2,2/3\n2,2,1\n"
MODEL = {"model.tra": "3 4\n0 1 0.5\n0 2 0.5\n1 0 1\n2 2 1\n", "model.lab": '0="init" 1="deadlock"\n0: 0\n2: 1\n'}
DRN = """@type: MDP
@reward_models
steps
@nr_states
2
@model
state 0 [1] init
//[x=0 & !up]
\taction go [0.5]
\t\t0 : 1/4
\t\t1 : 0.75
\taction stay
\t\t0 : 1
state 1 goal
//[x=1 & up]
\taction stay
\t\t1 : 1
"""
XES = """<?xml version="1.0"?>
<log>
<trace> <string key="concept:name" value="1"/>
<event> <string key="concept:name" value="a"/> <date key="time:timestamp" value="2026-11-16T10:00:00Z"/> </event>
<event> <string key="concept:name" value="b"/> <date key="time:timestamp" value="2026-11-16T11:00:00Z"/> </event>
</trace>
</log>
"""
CHOICES = "2 4 5\n0 0 0 1 stay\n0 1 0 1/4 go\n0 1 1 0.75 go\n1 0 1 1 stay\n1 1 0 1 go\n"


def _ring(n):
    return 0.5 * (np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1))


def _halves():
    P = np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25]])
    return db.MarkovChain(P, rewards=[0.0, 1.0, 2.0, 3.0])


def _chain(seed, n, names=None):
    rng = np.random.default_rng(seed)
    return db.MarkovChain(rng.dirichlet(np.ones(n), size=n), rewards=rng.random(n), names=names)


def _quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", db.ConvergenceWarning)
        return db.distance(*args, **options)


def _written(write, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()


# --- what is done with what was read ----------------------------------------------------------------------------


def use_chain(path, rng):
    """Read a chain in any format, look at it, and write it again."""
    _look(db.read_chain(path, unseen=UNSEEN[rng.integers(4)]))


def use_transitions(path, rng):
    data = db.read_transitions(path)
    if data.n_states <= 1000:
        _look(data.chain(unseen=UNSEEN[rng.integers(1, 4)]))


def use_mdp(path, rng):
    mdp = db.read_mdp(path, unseen=UNSEEN[rng.integers(3)])
    if mdp.n_states * mdp.n_actions <= 1000:
        _look(mdp.induced_chain(mdp.uniform_policy()))


def use_events(path, rng):
    missing = ("error", "split", "drop")[rng.integers(3)]
    found = db.read_transitions(path, id="who", time="when", state="what", group="arm", gap=5, missing=missing)
    for data in found.values():
        if data.n_states <= 1000 and len(data):
            _look(data.chain(unseen="self-loop"))


def use_model(path, rng):
    found = read_model(path, unseen=("repeat", "self-loop", "uniform", "error")[rng.integers(4)], rewards="goal")
    if isinstance(found, db.MDP) and found.n_states * found.n_actions <= 1000:
        found = found.induced_chain(found.uniform_policy())
    if isinstance(found, db.MarkovChain):
        _look(found)


def use_rewards(path, rng):
    db.MarkovChain(np.eye(2), names=["home", "work"], rewards=read_rewards(path))


def use_cost(path, rng):
    Discounted.make(_chain(0, 3), _chain(1, 4), read_numbers(path), 0.9)


def _look(chain):
    repr(chain)
    if chain.n_states <= 1000:
        assert abs(chain.occupancy(0.9).sum() - 1) < 1e-9
        with tempfile.TemporaryDirectory() as folder:
            db.write_chain(chain, Path(folder) / "again.npz")


def use_result(path, rng):
    """Load a result and ask it for everything; then go on from it."""
    found = db.load(path)
    repr(found)
    result = getattr(found, "distance", found)
    assert result.lower <= result.value <= result.upper
    if isinstance(found, ImitationResult):
        assert np.isfinite(found.reward.table).all() or not result.coupling.complete
    x, y = (int(rng.integers(n)) for n in result.problem.shape)
    for ask in (
        lambda: result.values,
        lambda: result.plan(x, y),
        lambda: result.potentials(x, y),
        lambda: result.gradient.transition_x,
        lambda: result.encoder,
        lambda: result.implicit_reward(),
        lambda: go_on(result),
    ):
        with suppress(DiffbisimError):  # such as a pair out of reach
            ask()


def go_on(result):
    """A short solve from a result, by a solver of its own kind."""
    solvers = {"somcot": Somcot(max_iterations=result.iterations + 5), "lp": Exact(max_iterations=2)}
    solvers["sinkhorn-policy"] = SinkhornPolicy(max_iterations=2)
    solver = solvers.get(result.solver, Exact(max_iterations=2, reachable=not result.coupling.complete))
    if result.solver == "somcot" and result.iterations > 10_000:
        return
    again = solver.solve(result.problem, warm=result)
    assert again.outcome is Status.ESTIMATE or again.lower <= again.value <= again.upper


TEXTS = (
    ("edges", {"edges.csv": TABLE}, use_chain),
    ("named", {"named.tsv": "from\tto\tprobability\nhome\twork\t1\nwork\thome\t1\n"}, use_chain),
    ("observed", {"observed.csv": "state,next_state,weight\n0,1,12\n0,0,3\n1,0,9\n1,2,1\n"}, use_transitions),
    ("pairs", {"pairs.csv": "state,next_state\na,b\nb,a\nb,c\n"}, use_chain),
    ("episodes", {"episodes.csv": "episode,t,state\n0,0,5\n0,1,6\n0,2,5\nx,0,6\nx,1,5\n"}, use_chain),
    ("rewards", {"rewards.csv": "state,reward\nhome,0\nwork,1\n"}, use_rewards),
    ("costs", {"costs.csv": "0,1,1,2\n1,0,2,2\n1,2,0,2\n"}, use_cost),
    ("prism", {**MODEL, "model.srew": "3 1\n2 1.0\n"}, use_chain),
    ("drn", {"model.drn": DRN}, use_model),
    ("xes", {"log.xes": XES}, use_transitions),
    ("mdp", {"mdp.tra": CHOICES, "mdp.lab": '0="init" 1="goal"\n0: 0\n1: 1\n', "mdp.srew": "2 1\n1 5\n"}, use_mdp),
)


# --- damage -----------------------------------------------------------------------------------------------------


def mutated(sample: Sample, rng: np.random.Generator) -> dict[str, bytes]:
    """The files of a sample, one of them damaged."""
    files = dict(sample.files)
    name = _pick(rng, list(files))
    if name.endswith(".npz"):
        change = _pick(rng, [broken_bytes, damaged_zip, damaged_header, *[changed_arrays] * 5, *[changed_json] * 4])
    elif name.endswith((".gz", ".parquet")):
        change = broken_bytes
    elif name.endswith(".npy"):
        change = _pick(rng, [broken_bytes, broken_header])
    else:
        change = _pick(rng, [broken_bytes, *[changed_words] * 4, changed_lines])
    files[name] = change(files[name], rng)
    return files


def attempt(sample: Sample, files: dict[str, bytes], folder: Path, rng: np.random.Generator) -> bool:
    """Write the files, read and use them; whether they could be read. Raises what is not a `DiffbisimError`."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sample.use(folder / next(iter(sample.files)), rng)
        except DiffbisimError:
            return False
    return True


def _pick(rng, options):
    return options[int(rng.integers(len(options)))]


def broken_bytes(data, rng):
    """As a bad disk leaves it: flipped, cut off, blank, doubled or moved bytes."""
    data, n = bytearray(data), len(data)
    at, length = int(rng.integers(n)), int(rng.integers(1, 64))
    kind = int(rng.integers(6))
    if kind == 0:
        for _ in range(rng.integers(1, 9)):
            data[int(rng.integers(n))] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + length] = bytes(min(length, n - at))
    elif kind == 3:
        data[at:at] = data[at : at + length]
    elif kind == 4:
        data[at : at + length] = rng.bytes(length)
    else:
        del data[at : at + length]
    return bytes(data)


def damaged_zip(data, rng):
    """Fields of the zip itself: methods, flags, sizes, names."""
    kind = int(rng.integers(4))
    if kind == 0:
        method = _pick(rng, [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
        return _packed(_members(data), method)
    if kind == 1:
        members = _members(data)
        name = _pick(rng, list(members))
        members[_pick(rng, ["x", name.removesuffix(".npy"), "../" + name, "x.npy", name.upper()])] = members.pop(name)
        return _packed(members)
    content, signature = bytearray(data), _pick(rng, [b"PK\x01\x02", b"PK\x03\x04"])
    places = [match.start() for match in re.finditer(re.escape(signature), data)]
    at = _pick(rng, places) + int(rng.integers(4, 46 if signature[2] == 1 else 30))
    width = _pick(rng, [1, 2, 4])
    content[at : at + width] = _pick(rng, [b"\x00", b"\xff", b"\x01", rng.bytes(1)]) * width
    return bytes(content)


def damaged_header(data, rng):
    """The header of one array, with a checksum that fits."""
    members = _members(data)
    name = _pick(rng, list(members))
    members[name] = broken_header(members[name], rng)
    return _packed(members, _pick(rng, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))


def broken_header(data, rng):
    length = struct.unpack("<H", data[8:10])[0]
    header = data[10 : 10 + length].decode("latin1")
    new = _pick(
        rng, ["(3000000000, 3000000000)", "(-1,)", "(" * 3000, "(1e9,)", "()", "(2,)", "(0, 99999999999999999999)"]
    )
    if rng.random() < 0.4:
        header = re.sub(r"'descr': '[^']*'", f"'descr': {_pick(rng, DESCRS)}", header)
    elif rng.random() < 0.7:
        header = re.sub(r"\([0-9, ]*\)", new, header)
    else:
        header = header.replace(
            _pick(rng, ["'descr'", "False", "shape", "{", "}", ","]), _pick(rng, ["", "0", "True", "'"])
        )
    magic = data[:8] if rng.random() < 0.9 else b"\x93NUMPY" + rng.bytes(2)
    return magic + struct.pack("<H", len(header) & 0xFFFF) + header.encode("latin1") + data[10 + length :]


DESCRS = (
    "'|O'",
    "'<f4'",
    "'>f8'",
    "'<i8'",
    "'<c16'",
    "'<U2'",
    "'<f16'",
    "'|b1'",
    "'<i3'",
    "[('a', '<f8')]",
    "'<M8[s]'",
    "1",
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    7,
    120,
    127,
    -128,
    2**31,
    2**62,
    -(2**63),
    np.nan,
    np.inf,
    -np.inf,
    1e308,
    -1e308,
    5e-324,
    1e18,
    0.5,
)
TYPES = ("f4", "f2", "i8", "i4", "i1", "u1", "u8", "?", "c16", "U8", ">f8", ">i8", "O", "M8[s]", "V4")


def changed_arrays(data, rng):
    """Values, shapes, types, names and order of the arrays."""
    arrays = _arrays(data)
    for _ in range(_pick(rng, [1, 1, 1, 2, 3])):
        name, other = _pick(rng, list(arrays)), _pick(rng, list(arrays))
        kind = int(rng.integers(12))
        array = arrays[name]
        if kind <= 3:
            arrays[name] = _poked(array, rng)
        elif kind == 4:
            arrays[name] = rng.permutation(array) if array.ndim else array[None]
        elif kind == 5:
            arrays[name], arrays[other] = arrays[other], arrays[name]
        elif kind == 6:
            arrays[name] = arrays[other]
        elif kind == 7:
            del arrays[name]
            if not arrays:
                break
        elif kind == 8:
            arrays[name] = _pick(
                rng, [np.ravel, np.transpose, lambda a: a[None], lambda a: a[..., :-1] if a.ndim else a]
            )(array)
        elif kind == 9:
            arrays[name] = _pick(rng, [np.zeros_like, np.ones_like, lambda a: np.concatenate([a, a]) if a.ndim else a])(
                array
            )
        elif kind == 10:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with suppress(TypeError, ValueError):  # some texts are not numbers
                    arrays[name] = array.astype(_pick(rng, TYPES))
        elif array.dtype.kind == "f":
            arrays[name] = array * (1 + _pick(rng, [1e-3, -1e-6, 1e-10, 0.5, -2.0]))
    return _saved(arrays, rng)


def _poked(array, rng):
    """Some entries replaced by numbers that hurt."""
    array = array.copy()
    with np.errstate(all="ignore"):
        for _ in range(rng.integers(1, 4)):
            if array.size and array.dtype.kind in "biuf":
                number = np.float64(_pick(rng, NUMBERS))
                at = int(rng.integers(array.size))
                if array.dtype.kind in "iu":
                    info = np.iinfo(array.dtype)
                    number = int(
                        np.clip(np.nan_to_num(number), info.min, info.max - 1 if info.bits == 64 else info.max)
                    )
                array.flat[at] = min(number, info.max) if array.dtype.kind in "iu" else number
    return array


def changed_json(data, rng):
    """The JSON of a result, or the names of a chain."""
    arrays = _arrays(data)
    texts = [name for name, array in arrays.items() if array.dtype == np.uint8 and array[:1].tobytes() in (b"{", b"[")]
    if not texts:
        return changed_arrays(data, rng)
    name = _pick(rng, texts)
    text = arrays[name].tobytes().decode()
    kind = int(rng.integers(8))
    if kind == 0:
        text = broken_bytes(text.encode(), rng).decode("latin1")
    elif kind == 1:
        number = _pick(rng, list(re.finditer(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", text)) or [None])
        if number is not None:
            text = text[: number.start()] + _pick(rng, WORDS) + text[number.end() :]
    elif kind == 2:
        text = _pick(rng, ["[" * 100_000, '{"a":' * 5000, "", "null", "[]", "{}", "3", '"x"', "[" * 90 + "]" * 90])
    else:
        tree = json.loads(text)
        _graft(tree, rng)
        text = json.dumps(tree)
    arrays[name] = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    return _saved(arrays, rng)


LEAVES = (
    None,
    True,
    -1,
    0,
    1,
    10**30,
    2**64,
    0.5,
    2.5,
    1e308,
    np.nan,
    np.inf,
    -np.inf,
    "x",
    "",
    [],
    {},
    [1],
    {"tuple": 1},
)
LEAVES = (
    *LEAVES,
    {"float": "0x1p99999"},
    {"float": "nan"},
    {"tuple": [[]]},
    "ExactCoupling",
    "SomcotCoupling",
    "MT19937",
    "seed",
)


def _graft(tree, rng):
    """Replace or remove one node somewhere in a JSON tree."""
    while True:
        places = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not places:
            return
        at = _pick(rng, places)
        if isinstance(tree[at], (dict, list)) and tree[at] and rng.random() < 0.7:
            tree = tree[at]
            continue
        if rng.random() < 0.15:
            del tree[at]
        elif isinstance(tree[at], (int, float)) and rng.random() < 0.4:
            tree[at] = _pick(
                rng, [-tree[at], tree[at] * 1.01, tree[at] + 1, tree[at] * 1e-3, tree[at] - 1e-6, int(tree[at])]
            )
        else:
            tree[at] = _pick(rng, LEAVES)
        return


WORDS = (
    "1e999", "nan", "inf", "-1", "0", "2", "99999999999999999999", "9" * 5000, "0x1p99999", "1/0", "1e308/1e-308",
    "1_0", "", "100000000", "½", "\x00", "x" * 200_000, "-0", "1e-320", "٣", '"', "'", "#", "0.5", "1000000", "0:1",
    "=", "3,4", "\ufeff", "9223372036854775807", "-9223372036854775808", "1" * 30 + "x",
)  # fmt: skip


def changed_words(data, rng):
    """Words of a text replaced by others."""
    text = data.decode()
    for _ in range(_pick(rng, [1, 1, 2])):
        word = _pick(rng, list(re.finditer(r"[^\s,]+", text)) or [re.search("", text)])
        text = text[: word.start()] + _pick(rng, WORDS) + text[word.end() :]
    return text.encode()


def changed_lines(data, rng):
    """Lines removed, doubled, swapped, glued; other ends of lines, delimiters and encodings."""
    lines = data.decode().split("\n")
    a, b = (int(rng.integers(len(lines))) for _ in range(2))
    kind = int(rng.integers(7))
    if kind == 0:
        del lines[a]
    elif kind == 1:
        lines[a:a] = [lines[b]] * _pick(rng, [1, 3, 300])
    elif kind == 2:
        lines[a], lines[b] = lines[b], lines[a]
    elif kind == 3:
        return _pick(rng, ["\r\n", "\r", "\n\n", " ", ";", "\t"]).join(lines).encode()
    elif kind == 4:
        return "\n".join(lines).replace(_pick(rng, [",", " ", "\t"]), _pick(rng, [";", ", ", "\t", ""])).encode()
    elif kind == 5:
        return "\n".join(lines).encode(_pick(rng, ["utf-16", "utf-32", "utf-8-sig", "cp500"]))
    else:
        lines[a] += _pick(rng, [" ", ",", ",,,", " 1", "\t", " # note", "é"])
    return "\n".join(lines).encode()


# --- archives ---------------------------------------------------------------------------------------------------


def _members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def _packed(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def _arrays(data):
    with np.load(io.BytesIO(data)) as archive:
        return {name: archive[name] for name in archive.files}


def _saved(arrays, rng):
    out = io.BytesIO()
    (np.savez if rng.random() < 0.8 else np.savez_compressed)(out, **arrays)
    return out.getvalue()
