"""Files that an enemy could have written: results that lie, archives that explode, numbers that overflow.

Each is refused with `InvalidData`, quickly, and the message names the file.
"""

import io
import json
import re
import struct
import time
import tracemalloc
import zipfile
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from chain_files import file
from diffbisim.common.errors import InvalidData
from diffbisim.io import limits
from diffbisim.io.chains import read_chain, read_mdp, read_transitions
from diffbisim.io.prism import read_prism_labels
from diffbisim.io.tables import read_numbers, read_rewards
from diffbisim.results.base import Status
from diffbisim.results.saving import MAX_CELLS_TO_VERIFY
from diffbisim.solvers import Exact, SinkhornPolicy, Somcot

X = db.MarkovChain([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.1, 0.0, 0.9]], rewards=[0.0, 0.3, 1.0])
Y = db.MarkovChain([[0.7, 0.3], [0.4, 0.6]], rewards=[0.1, 0.8])
RUNS = {
    "exact": {},
    "reachable": {"solver": Exact(reachable=True)},
    "lumped": {"lump": True},
    "lp": {"solver": "lp"},
    "sinkhorn": {"solver": "sinkhorn-policy", "tol": 1e-4},
    "entropic": {"solver": SinkhornPolicy(epsilon=0.3)},
    "somcot": {"solver": Somcot(max_iterations=300)},
}


@cache
def solved(name):
    return db.distance(X, Y, discount=0.9, **RUNS[name])


def saved(result, path, change=None, meta=None):
    """The file of a result; ``change(arrays)`` and ``meta`` tell it to lie."""
    arrays = result.arrays()
    told = json.loads(bytes(arrays["meta"])) | (meta or {})
    arrays["meta"] = np.frombuffer(json.dumps(told).encode(), np.uint8)
    arrays = {name: np.array(array) for name, array in arrays.items()}
    if change is not None:
        change(arrays)
    np.savez(path, **arrays)
    return path


def refused(path, message, read=db.load):
    """In a second, without much memory, by name."""
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(InvalidData, match=re.escape(str(path)) + "(?s:.*)" + message):
        read(path)
    assert time.process_time() - begin < 2
    assert tracemalloc.get_traced_memory()[1] < 3e8
    tracemalloc.stop()


# --- results that lie -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(RUNS))
def test_honest_results_are_read(name, tmp_path):
    result = solved(name)
    again = db.load(saved(result, tmp_path / "r.npz"))
    assert (again.value, again.lower, again.upper) == (result.value, result.lower, result.upper)
    np.testing.assert_allclose(again.values, result.values, rtol=1e-12)
    np.testing.assert_allclose(again.gradient.cost, result.gradient.cost, atol=1e-9)


def set_tree(arrays):
    arrays["state.child"][0] = 120


def set_cycle(arrays):
    arrays["state.parent"][1] = arrays["state.child"][1]


def set_twice(arrays):
    arrays["state.child"][1] = arrays["state.child"][0]


def set_flow(arrays):
    arrays["state.flow"][0] += 0.1


def negative_flow(arrays):
    arrays["state.flow"][:] *= -1


def short_flow(arrays):
    arrays["state.flow"] = arrays["state.flow"][:1]


def wide_tree(arrays):
    arrays["state.child"] = arrays["state.child"].astype(np.int64)


def lying_table(arrays):
    arrays["state.U"][-1] += 0.3


def missing_number(arrays):
    arrays["state.U"][0] = np.nan


def negative_cost(arrays):
    arrays["cost"][0, 0] = -1.0


def large_cost(arrays):
    arrays["cost"] = np.ones((9, 9))


def no_chain(arrays):
    arrays["x.transition"][0, 0] = 0.9


def pairs(arrays):
    arrays["state.pair"] = np.array([0])


def no_table(arrays):
    del arrays["state.U"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_tree, r"pair \(0, 0\) are no spanning tree"),
        (set_cycle, "are no spanning tree"),
        (set_twice, "are no spanning tree"),
        (set_flow, r"the flows of pair \(0, 0\) do not meet the marginals"),
        (negative_flow, "'flow' has the entry -"),
        (short_flow, r"'flow' is float64 of shape \(1,\)"),
        (wide_tree, "'child' is int64"),
        (lying_table, "the table certifies"),
        (missing_number, "'U' has an entry that is nan"),
        (negative_cost, r"cost\[0, 0\] is -1, negative"),
        (large_cost, r"cost has shape \(9, 9\)"),
        (no_chain, "row 0 sums to"),
        (pairs, "'pair' does not list the pairs that the starts can reach"),
        (no_table, "there is no array 'U'"),
    ],
)
def test_a_result_with_other_arrays(tmp_path, change, message):
    refused(saved(solved("exact"), tmp_path / "r.npz", change), message)


@pytest.mark.parametrize("name", list(RUNS))
@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"discount": 2.5}, "discount is 2.5"),
        ({"discount": "0.9"}, "discount is '0.9'"),
        ({"lower": 5.0}, "not finite and in this order"),
        ({"value": float("nan")}, "not finite and in this order"),
        ({"value": True}, "value is True"),
        ({"lower": -3.0}, "lower is -3.0; distances are non-negative"),
        ({"upper": 77.0}, "upper is 77.0, above all costs"),
        ({"lower": 0.9, "value": 0.9, "upper": 0.9}, "(the distance is|certifies)"),
        ({"lower": 0.0, "value": 0.1, "upper": 0.11}, "(the distance is|certifies)"),
        ({"outcome": "GREAT"}, "outcome is 'GREAT'"),
        ({"coupling": "os.system"}, "coupling is 'os.system'"),
        ({"history": [[1]]}, r"history is \[\[1\]\]"),
        ({"work": 3}, "work is 3"),
        ({"iterations": -1}, "iterations is -1"),
        ({"diffbisim-result": 9}, "newer diffbisim"),
    ],
)
def test_a_result_that_lies(tmp_path, name, meta, message):
    refused(saved(solved(name), tmp_path / "r.npz", meta=meta), message)


@pytest.mark.parametrize("name", ["lumped", "lp", "sinkhorn", "entropic", "somcot"])
def test_every_array_of_every_solver_is_checked(tmp_path, name):
    """Cut, retyped, missing and not finite: nothing of it reaches compiled code."""
    result = solved(name)
    for array in result.coupling.state():
        value = np.asarray(result.coupling.state()[array])
        if array == "run" or (name == "lumped" and array == "epsilon") or array.startswith("newer."):
            continue
        for other in (
            value.astype(np.float32),
            value[None],
            np.full_like(value, np.nan) if value.dtype.kind == "f" else None,
        ):
            if other is None or (name == "lumped" and np.isnan(other).all()):
                continue

            def change(arrays, array=array, other=other):
                arrays[f"state.{array}"] = other

            if value.size:
                refused(saved(result, tmp_path / "r.npz", change), "")


def somcot_change(name, at, value):
    def change(arrays):
        arrays[f"state.{name}"].flat[at] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (somcot_change("x.to", 0, 99), "'x.to' has the entry 99"),
        (somcot_change("x.at", 1, 2**40), "'x.at' does not ascend"),
        (somcot_change("pending0.1", 0, -1), "'pending0.1' has the entry -1"),
        (somcot_change("pending1.0", 1, 10**9), "pending1"),
        (somcot_change("it.sums", 0, 5.0), "the average of m"),
        (somcot_change("weight", 0, 0.0), "from after the end"),
        (somcot_change("done", 0, 10**6), "do not go on"),
    ],
)
def test_a_run_that_cannot_go_on(tmp_path, change, message):
    result = db.distance(X, Y, discount=0.9, solver=Somcot(max_iterations=100))
    refused(saved(result, tmp_path / "r.npz", change), message)


def test_a_transition_that_was_never_seen_is_not_pending(tmp_path):
    result = db.distance(X, Y, discount=0.9, solver=Somcot(max_iterations=100))

    def change(arrays):
        arrays["state.pending0.1"][0], arrays["state.pending0.2"][0] = 0, 2

    refused(saved(result, tmp_path / "r.npz", change), "not among those seen")


@pytest.mark.parametrize("name", ["seed", "Generator", "RandomState", "bytes", "__class__", 3, None])
def test_a_file_names_no_function_of_numpy(tmp_path, name):
    result = db.distance(X, Y, discount=0.9, solver=Somcot(max_iterations=100))
    before = np.random.get_state()[1].copy()  # noqa: NPY002

    def change(arrays):
        told = json.loads(bytes(arrays["state.run"]))
        told["generators"][0]["bit_generator"] = name
        arrays["state.run"] = np.frombuffer(json.dumps(told).encode(), np.uint8)

    refused(saved(result, tmp_path / "r.npz", change), "is unknown; use one of PCG64")
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM])
def test_runs_with_any_generator_go_on_from_a_file(tmp_path, kind):
    options = {"discount": 0.9}
    whole = db.distance(X, Y, solver=Somcot(max_iterations=150, rng=np.random.Generator(kind(3))), **options)
    part = db.distance(X, Y, solver=Somcot(max_iterations=100, rng=np.random.Generator(kind(3))), **options)
    part.save(tmp_path / "r.npz")
    assert (
        db.distance(X, Y, solver=Somcot(max_iterations=150), warm=db.load(tmp_path / "r.npz"), **options).value
        == whole.value
    )


def test_bounds_of_large_results_are_verified_on_request_and_otherwise_not_used(tmp_path):
    n = int(MAX_CELLS_TO_VERIFY**0.25) + 2
    rng = np.random.default_rng(0)
    big = [db.MarkovChain(rng.dirichlet(np.ones(n), size=n), rewards=rng.random(n)) for _ in range(2)]
    result = db.distance(*big, discount=0.5)
    refused(saved(result, tmp_path / "r.npz", set_flow), "do not meet the marginals")
    path = saved(result, tmp_path / "r.npz")
    quick, whole = db.load(path), db.load(path, verify=True)
    assert (whole.lower, whole.upper, whole.outcome) == (result.lower, result.upper, result.outcome)
    assert (quick.lower, quick.upper) == (result.problem.cost.min(), result.problem.cost.max())
    assert quick.outcome is Status.NOT_VERIFIED
    assert not quick.converged
    assert "verify=True" in quick.status
    assert "NOT verified" in repr(quick)
    again = db.distance(*big, discount=0.5, warm=quick)  # as a warm start it is as good as any
    assert again.converged
    assert again.iterations == 1
    for use in (quick.save, lambda _: quick.values_lower, lambda _: quick.values_upper):
        with pytest.raises(db.InvalidArgument, match="verify=True"):
            use(tmp_path / "copy.npz")
    with pytest.raises(db.InvalidArgument, match="verify is 'yes'; it must be True or False"):
        db.load(path, verify="yes")


MDPS = [db.MDP([[[0.5, 0.5], [0.1, 0.9]], [[1.0, 0.0], [0.6, 0.4]]], rewards=[0.0, r]) for r in (1.0, 0.4)]
ENDING = [db.MarkovChain([[p, 1 - p], [0.0, 1.0]], rewards=[1.0, 0.0]) for p in (0.5, 0.25)]
OTHERS = {
    "average": lambda: db.distance(X, Y, criterion="average"),
    "total": lambda: db.distance(*ENDING, criterion="total"),
    "horizon": lambda: db.distance(X, Y, horizon=3),
    "mdp": lambda: db.distance(*MDPS, discount=0.9),
}


@pytest.mark.parametrize("name", [*RUNS, *OTHERS])
def test_no_result_is_too_large_to_be_caught(tmp_path, monkeypatch, name):
    """As if every problem were large: bounds that exclude the distance are refused, or not used."""
    result = solved(name) if name in RUNS else OTHERS[name]()
    monkeypatch.setattr("diffbisim.results.saving.MAX_CELLS_TO_VERIFY", 0)
    wrong = {"lower": 0.0, "value": result.lower / 3, "upper": result.lower / 2, "outcome": "CONVERGED"}
    path = saved(result, tmp_path / "r.npz", meta=wrong)
    loaded = db.load(path)
    assert loaded.lower <= result.lower <= result.upper <= loaded.upper
    assert loaded.outcome is Status.NOT_VERIFIED
    with pytest.raises(InvalidData, match=r"(the distance is|certifies)"):
        db.load(path, verify=True)
    honest = db.load(saved(result, tmp_path / "r.npz"), verify=True)
    assert (honest.value, honest.lower, honest.upper) == (result.value, result.lower, result.upper)
    assert honest.outcome is result.outcome


def test_results_built_on_a_distance_that_is_not_verified_say_so(tmp_path, monkeypatch):
    fit = db.fit(X, db.kernels.Softmax(3), max_iterations=2, tol=10.0)
    small = db.compress(X, 2, restarts=1)
    policy = db.imitate(MDPS[0], MDPS[0].induced_chain([0, 1]), max_iterations=2)
    assert fit.converged
    monkeypatch.setattr("diffbisim.results.saving.MAX_CELLS_TO_VERIFY", 0)
    for result in (fit, small, policy):
        result.save(tmp_path / "r.npz")
        quick, whole = db.load(tmp_path / "r.npz"), db.load(tmp_path / "r.npz", verify=True)
        assert quick.distance.outcome is Status.NOT_VERIFIED
        assert getattr(quick, "outcome", Status.NOT_VERIFIED) is Status.NOT_VERIFIED
        assert quick.distance.upper == result.distance.problem.scale
        assert whole.distance.upper == result.distance.upper
        assert getattr(whole, "outcome", None) is getattr(result, "outcome", None)
        with pytest.raises(db.InvalidArgument, match="verify=True"):
            quick.save(tmp_path / "copy.npz")


def test_classes_with_members_out_of_reach_are_read(tmp_path):
    still = [db.MarkovChain(np.eye(3), rewards=rewards) for rewards in ([0.0, 0.0, 1.0], [0.5, 0.5, 2.0])]
    result = db.distance(*still, solver=Exact(reachable=True), lump=True)
    again = db.load(saved(result, tmp_path / "r.npz"))
    assert again.value == result.value == pytest.approx(0.5)

    def change(arrays):
        arrays["state.values"][0, 0] = np.nan

    refused(saved(result, tmp_path / "r.npz", change), "NaN at pairs that the starts can reach")


def test_stopped_runs_are_read(tmp_path):
    """Tables far out of range, wide bounds: honest all the same."""
    larger = [db.examples.random_chain(12, seed) for seed in (0, 1)]  # one iteration solves the smallest problems
    with pytest.warns(db.ConvergenceWarning):
        result = db.distance(*larger, discount=0.99, solver=Exact(max_iterations=1))
    assert db.load(saved(result, tmp_path / "r.npz")).upper == result.upper
    refused(saved(result, tmp_path / "r.npz", meta={"lower": result.upper, "value": result.upper}), "the distance is")


# --- archives ---------------------------------------------------------------------------------------------------


def write_archive(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


GOOD = {"transition.npy": npy(np.eye(2)), "initial.npy": npy(np.array([1.0, 0.0]))}


def with_header(header, data=b"", magic=b"\x93NUMPY\x01\x00"):
    return magic + struct.pack("<H", len(header)) + header.encode() + data


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }"


def test_a_zip_bomb(tmp_path):
    path = tmp_path / "bomb.npz"
    size = 3 * 10**8
    header = with_header(HEADER.replace("(2, 2)", f"({size // 8},)"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("initial.npy", "w") as member:
        member.write(header)
        for _ in range(size // 10**6):
            member.write(bytes(10**6))
    assert path.stat().st_size < 10**6
    for read in (read_chain, db.load):
        refused(path, "unpack to", read)


def test_the_limit_can_be_raised(tmp_path, monkeypatch):
    path = tmp_path / "c.npz"
    np.savez_compressed(path, transition=np.eye(100), initial=np.eye(100)[0])
    monkeypatch.setattr(limits, "INFLATED", 1000)
    refused(path, "raise the limits in diffbisim.io.limits", read_chain)
    monkeypatch.setattr(limits, "INFLATED", 10**6)
    assert read_chain(path).n_states == 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_header(HEADER.replace("(2, 2)", "(1000000000, 1000000000)"), bytes(32)), "should have 8,000,000,000"),
        (with_header(HEADER.replace("(2, 2)", "(" + "9" * 3000 + ",)")), "should have"),
        (with_header(HEADER, bytes(8)), "should have 32 bytes, but has 8"),
        (with_header(HEADER, bytes(40)), "should have 32 bytes, but has 40"),
        (with_header(HEADER.replace("'<f8'", "'|O'"), bytes(32)), "allow_pickle=False"),
        (with_header(HEADER.replace("'<f8'", "[('a', '<f8')]"), bytes(32)), "fields"),
        (with_header(HEADER.replace("'<f8'", "'<U2'"), bytes(32)), "not numbers"),
        (with_header("-" * 9000 + "1"), "cannot be read"),
        (with_header("(" * 9000), "cannot be read"),
        (with_header(HEADER, bytes(32), b"\x93NUMPX\x01\x00"), "not in numpy's format"),
        (b"", "not in numpy's format"),
    ],
)
def test_headers_of_arrays(tmp_path, content, message):
    path = write_archive(tmp_path / "c.npz", {**GOOD, "transition.npy": content})
    refused(path, message, read_chain)


def test_archives_that_are_packed_otherwise(tmp_path):
    path = tmp_path / "c.npz"
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        refused(write_archive(path, GOOD, method), "only deflate is supported", read_chain)
    assert read_chain(write_archive(path, GOOD, zipfile.ZIP_DEFLATED)).n_states == 2
    data = bytearray(write_archive(path, GOOD).read_bytes())
    for match in re.finditer(rb"PK\x01\x02", bytes(data)):
        data[match.start() + 8] |= 1
    path.write_bytes(bytes(data))
    refused(path, "is encrypted", read_chain)


def test_archives_that_are_cut_off(tmp_path):
    whole = write_archive(tmp_path / "whole.npz", GOOD).read_bytes()
    for k in range(0, len(whole), 7):
        (tmp_path / "c.npz").write_bytes(whole[:k])
        with pytest.raises(InvalidData, match="is not a chain archive"):
            read_chain(tmp_path / "c.npz")


@pytest.mark.parametrize("version", ["x", 1.5, [1, 1], np.array(["one"])])
def test_a_version_of_another_type(tmp_path, version):
    np.savez(tmp_path / "c.npz", diffbisim=version, transition=np.eye(2), initial=[1.0, 0.0])
    refused(tmp_path / "c.npz", "", read_chain)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[" * 100_000, "nested more than 100 deep"),
        ('{"tuple": [' * 5000 + "]}" * 5000, "nested more than 100 deep"),
        ('["]]]]", ' + "[" * 101 + "]" * 101 + "]", "nested more than 100 deep"),
        ("[" + "9" * 5000 + ", 1]", "a number of 5,000 digits"),
        ('[{"float": "0x1p99999"}, 1]', "'0x1p99999' is not a hexadecimal number"),
        ('[{"float": 3}, 1]', "a name is not a string"),
        ('[{"tuple": 3}, 1]', "a name is not a string"),
        ("[[1], 2]", "a name is not a string"),
        ("[1.5, 2]", "a name is not a string"),
        ("3", "must be a list"),
        ('["a", "a"]', "repeats"),
        ("[1", "is damaged"),
    ],
)
def test_names(tmp_path, names, message):
    text = np.frombuffer(names.encode(), np.uint8)
    np.savez(tmp_path / "c.npz", transition=np.eye(2), initial=[1.0, 0.0], names=text)
    refused(tmp_path / "c.npz", message, read_chain)


def test_brackets_in_names_are_text(tmp_path):
    chain = db.MarkovChain(np.eye(2), names=["[" * 500 + '"\\', "]" * 500])
    db.write_chain(chain, tmp_path / "c.npz")
    assert read_chain(tmp_path / "c.npz").names == chain.names


@pytest.mark.parametrize("indptr", [[0, 2**62, 2], [0, -1, 2], [0, 1, 3], [1, 1, 2], [0, 2, 1], [0]])
def test_pointers_that_lead_astray(tmp_path, indptr):
    parts = {"data": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array(indptr, np.int64)}
    np.savez(tmp_path / "c.npz", initial=[1.0, 0.0], **parts)
    refused(tmp_path / "c.npz", "indptr", read_chain)


def test_other_ways_to_write_the_same_chain(tmp_path):
    P = np.array([[0.25, 0.75], [1.0, 0.0]])
    for other in (P.astype(">f8"), np.asfortranarray(P), P.astype(np.float32), P.astype(np.longdouble)):
        np.savez(tmp_path / "c.npz", transition=other, initial=np.array([1, 0]))
        assert np.array_equal(read_chain(tmp_path / "c.npz").transition, P)
    parts = sp.csr_array(P)
    np.savez(
        tmp_path / "c.npz", data=parts.data, indices=parts.indices.astype("u8"), indptr=parts.indptr, initial=[1, 0]
    )
    assert np.array_equal(read_chain(tmp_path / "c.npz").transition.toarray(), P)


# --- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_chain, "9" * 5000 + " 1\n0 0 1\n", "line 1(?s:.*)counts"),
        (read_chain, "99999999999 1\n0 0 1\n", "line 1(?s:.*)more than 10,000,000 states"),
        (read_chain, "2 1\n0 99999999999999999999 1\n", "line 2(?s:.*)target must be an integer"),
        (read_chain, "2 1\n0 0 0x1p99999\n", "line 2(?s:.*)probability must be a number"),
        (read_mdp, "2 2 1\n1 100000000 1 1\n", "line 2(?s:.*)more than 1,000 choices"),
        (read_mdp, "2 2 1\n1 99999999999999999999 1 1\n", "line 2(?s:.*)choice must be an integer"),
        (lambda path: read_mdp(path, unseen="uniform"), "9000000 2 1\n1 1 1 1\n", "more than 1,000,001"),
        (lambda path: read_chain(path, unseen="self-loop"), "9000000 1\n0 0 1\n", "more than 1,000,001"),
    ],
)
def test_prism_files(tmp_path, read, text, message):
    refused(file(tmp_path, "m.tra", text), message, read)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('0="init"\n99999999999999999999: 0\n', "line 2(?s:.*)expected"),
        ('0="init"\n0: ' + "1" * 40 + "x\n", "line 2(?s:.*)expected"),
        ('0="init"\n' + "1" * 100_000 + "\n", "line 2(?s:.*)expected"),
        ("1" * 100_000 + "\n0: 0\n", "line 1(?s:.*)expected a header"),
    ],
)
def test_prism_labels(tmp_path, text, message):
    refused(file(tmp_path, "m.lab", text), message, read_prism_labels)


def test_rewards_of_too_many_states(tmp_path):
    path = file(tmp_path, "m.tra", "1 1\n0 0 1\n")
    file(tmp_path, "m.srew", "99999999999999 0\n")
    with pytest.raises(InvalidData, match=r"m\.srew, line 1(?s:.*)more than 10,000,000 states"):
        read_chain(path)


@pytest.mark.parametrize("unseen", ["self-loop", "uniform"])
def test_tables_with_names_for_numbers(tmp_path, unseen):
    for text in ("state,next_state\n0,9000000\n9000000,0\n", "from,to,probability\n0,9000000,1\n9000000,0,1\n"):
        path = file(tmp_path, "c.csv", text)
        refused(path, "more than 1,000,002", lambda path: read_chain(path, unseen=unseen))
        assert read_chain(path, unseen="drop").names == (0, 9000000)


def test_costs_and_rewards(tmp_path):
    refused(file(tmp_path, "c.csv", "0,1\n1,1e999\n"), "line 2(?s:.*)finite", read_numbers)
    (tmp_path / "c.npy").write_bytes(with_header(HEADER.replace("(2, 2)", "(10000000000,)"), bytes(8)))
    refused(tmp_path / "c.npy", "should have 80,000,000,000", read_numbers)
    refused(tmp_path / "c.npy", "should have 80,000,000,000", read_rewards)


def test_text_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "TEXT", 20)
    refused(file(tmp_path, "c.csv", "state,next_state\n0,1\n1,0\n"), "more than 20", read_transitions)


def test_a_device_is_no_file():
    with pytest.raises(InvalidData, match="/dev/zero is a pipe or a device"):
        read_chain("/dev/zero", format="csv")


@pytest.mark.parametrize(("name", "read"), [("c.csv", read_chain), ("c.csv", read_transitions), ("m.tra", read_mdp)])
def test_what_does_not_fit_into_memory(tmp_path, name, read, monkeypatch):
    def fail(*_):
        raise MemoryError("Unable to allocate 8 PiB")

    monkeypatch.setattr("diffbisim.io.tables.Table.integers", fail)
    monkeypatch.setattr("diffbisim.io.tables.Table.states", fail)
    text = "state,next_state\n0,0\n" if name == "c.csv" else "1 1 1\n0 0 0 1\n"
    refused(file(tmp_path, name, text), "not enough memory for it: Unable to allocate 8 PiB", read)
