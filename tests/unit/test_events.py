"""Tables of events: whatever the order, the library or the file, the sequences are those that were written down."""

import gzip
import io
import itertools
import re
import sys
import types
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import diffbisim as db
from chain_files import file
from diffbisim.common.errors import InputWarning, InvalidArgument, InvalidData
from diffbisim.io import limits

VISITS = {"ann": ["home", "cart", "buy"], "bob": ["home", "home"], "eve": ["cart"]}


def table(seed=0, visits=VISITS, minutes=10):
    """The visits as a shuffled table with dates."""
    rows = [
        (
            user,
            np.datetime64("2026-11-16T08:00") + np.timedelta64(minutes * t, "m"),
            page,
            "new" if user < "c" else "old",
        )
        for user, pages in visits.items()
        for t, page in enumerate(pages)
    ]
    order = np.random.default_rng(seed).permutation(len(rows))
    return {name: [rows[k][c] for k in order] for c, name in enumerate(("user", "at", "page", "arm"))}


def same(data, paths, **options):
    """Whether data are these paths, in some order of the episodes."""
    other = db.Transitions.from_trajectories(paths, end=data.end, **options)
    assert data.names == other.names
    assert data.n_states == other.n_states

    def bag(d):
        steps = [[] for _ in d.starts]
        for e, s, t in zip(d.episodes.tolist(), d.states.tolist(), d.next_states.tolist(), strict=True):
            steps[e].append((s, t))
        return sorted((int(start), *own) for start, own in zip(d.starts, steps, strict=True))

    assert bag(data) == bag(other)


NAMES = {"id": "user", "time": "at", "state": "page"}
KINDS = {
    "mapping": dict,
    "pandas": pd.DataFrame,
    "zones": lambda t: pd.DataFrame(t).assign(at=lambda d: d["at"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")),
    "categories": lambda t: pd.DataFrame(t).astype({"user": "category", "page": "category"}),
    "texts": lambda t: pd.DataFrame(t).assign(at=lambda d: d["at"].astype(str)),
    "arrow types": lambda t: pa.table(pd.DataFrame(t)).to_pandas(types_mapper=pd.ArrowDtype),
    "index": lambda t: pd.DataFrame(t).set_index(["at", "user"]),
    "durations": lambda t: pd.DataFrame(t).assign(at=lambda d: d["at"] - d["at"].min()),
    "polars": lambda t: pl.from_pandas(pd.DataFrame(t)),
    "polars durations": lambda t: pl.from_pandas(pd.DataFrame(t)).with_columns(pl.col("at") - pl.col("at").min()),
    "polars, lazy": lambda t: pl.from_pandas(pd.DataFrame(t)).lazy(),
    "pyarrow": lambda t: pa.table(pd.DataFrame(t)),
    "pyarrow zones": lambda t: pa.table(pd.DataFrame(t).assign(at=lambda d: d["at"].dt.tz_localize("UTC"))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_any_order_of_any_library(kind):
    for seed in range(4):
        same(db.Transitions.from_frame(KINDS[kind](table(seed)), **NAMES), VISITS.values())


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "mapping"])
def test_groups_share_their_states(kind):
    groups = db.Transitions.from_frame(KINDS[kind](table()), group="arm", **NAMES)
    assert sorted(groups) == ["new", "old"]
    same(groups["new"], [VISITS["ann"], VISITS["bob"]])
    same(groups["old"], [["cart"]], states=["buy", "cart", "home"])


def test_sessions_end_after_a_pause():
    frame = pd.DataFrame({"user": [1] * 5, "at": [0, 10, 50, 55, 200], "page": list("abcab")})
    for gap, paths in ((30, ["ab", "ca", "b"]), (40, ["abca", "b"]), (None, ["abcab"]), (0, list("abcab"))):
        same(db.Transitions.from_frame(frame, gap=gap, **NAMES), map(list, paths))
    dated = frame.assign(at=pd.Timestamp("2026-01-01") + pd.to_timedelta(frame["at"], unit="min"))
    for gap in ("30min", "0.5h", 1800, "1800", pd.Timedelta("30min"), np.timedelta64(30, "m")):
        same(db.Transitions.from_frame(dated, gap=gap, **NAMES), [["a", "b"], ["c", "a"], ["b"]])
    for bad in ("soon", "-1min", "3 weeks", "1M", pd.Timedelta(-5, "min"), np.timedelta64("NaT")):
        with pytest.raises(InvalidArgument, match=re.escape(f"gap is {bad!r}; give seconds, a timedelta")):
            db.Transitions.from_frame(dated, gap=bad, **NAMES)
    with pytest.raises(InvalidArgument, match="the times are numbers, so give a non-negative number"):
        db.Transitions.from_frame(frame, gap="30min", **NAMES)
    with pytest.raises(InvalidArgument, match="gap is given without time"):
        db.Transitions.from_frame(frame, gap=1, id="user", state="page")


def test_without_id_or_time_rows_follow_each_other():
    rows = {"page": list("abba"), "user": [1, 2, 1, 2]}
    same(db.Transitions.from_frame(rows, state="page"), [list("abba")])
    same(db.Transitions.from_frame(rows, id="user", state="page"), [list("ab"), list("ba")])


def test_equal_times_keep_their_order():
    rows = {"user": [1, 1, 1, 1], "at": [1, 0, 1, 1], "page": list("bacd")}
    same(db.Transitions.from_frame(rows, **NAMES), [list("abcd")])


def test_numbers_are_state_numbers():
    data = db.Transitions.from_frame({"user": [0, 0, 0], "page": [3, 1, 3]}, id="user", state="page")
    assert (data.n_states, data.names, data.states.tolist()) == (5, (0, 1, 2, 3, "■"), [3, 1, 3])
    rows = {"user": [0, 0, 0], "page": [3, 1, 3]}
    data = db.Transitions.from_frame(rows, id="user", state="page", end=None)
    assert (data.n_states, data.names, data.states.tolist()) == (4, None, [3, 1])
    fixed = db.Transitions.from_frame(rows, id="user", state="page", states=6, end=None)
    assert fixed.n_states == 6
    with pytest.raises(InvalidData, match="state = 3 is out of range"):
        db.Transitions.from_frame({"user": [0, 0, 0], "page": [3, 1, 3]}, id="user", state="page", states=3)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "mapping"])
def test_missing_values_are_decided_on(kind):
    rows = {"user": ["u"] * 5 + [None], "at": [0, 1, 2, 3, 4, 5], "page": ["a", "b", None, "c", "a", "b"]}
    held = KINDS[kind](rows)
    with pytest.raises(
        InvalidData, match=r"1 of id \('user'\), 1 of state \('page'\); the first missing id is in row 5"
    ):
        db.Transitions.from_frame(held, **NAMES)
    for missing, paths in (("split", ["ab", "ca"]), ("drop", ["abca"])):
        with pytest.warns(UserWarning, match="missing values: 1 of id"):
            data = db.Transitions.from_frame(held, missing=missing, end=None, **NAMES)
        same(data, map(list, paths))
    with pytest.raises(InvalidArgument, match="missing is 'ignore'"):
        db.Transitions.from_frame(held, missing="ignore", **NAMES)


def test_every_pattern_of_missing_states():
    """Against cutting or joining a list by hand."""
    for gone in itertools.product([False, True], repeat=5):
        if all(gone):
            continue
        pages = [None if g else "abcde"[k] for k, g in enumerate(gone)]
        rows = {"user": [0] * 5, "at": range(5), "page": pages}
        split = [list(part) for part in "".join(p or "-" for p in pages).split("-") if part]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(db.Transitions.from_frame(rows, missing="split", end=None, **NAMES), split)
            ended = db.Transitions.from_frame(rows, missing="split", **NAMES)  # only the last one ended
            assert (ended.next_states == ended.end_state).sum() == (pages[-1] is not None)
            same(db.Transitions.from_frame(rows, missing="drop", **NAMES), [[p for p in pages if p]])


def test_spelling_is_reported_and_kept():
    rows = {"user": [1] * 5, "at": range(5), "page": ["Home", "home ", "cart", "home ", "n/a"]}
    said = "'page': 'Home' (1) and 'home ' (2) differ only in spelling; 'n/a' (1) may be a missing value"
    with pytest.warns(UserWarning, match=re.escape(said)):
        data = db.Transitions.from_frame(rows, **NAMES)
    assert data.names == ("Home", "cart", "home ", "n/a", "■")


def test_pauses_between_durations():
    frame = KINDS["durations"](table(minutes=20))
    assert db.Transitions.from_frame(frame, **NAMES, gap="15min").n_episodes == 6
    assert db.Transitions.from_frame(frame, **NAMES, gap="20min").n_episodes == 3


def test_episodes_are_in_the_order_in_which_ids_appear():
    """So that strata can be given: one value for each id, by order of appearance."""
    frame = pd.DataFrame({"id": list("cacbab"), "t": [5, 1, 2, 9, 0, 3], "s": list("yxxzzx")})
    data = db.Transitions.from_frame(frame, id="id", time="t", state="s")
    first = frame.sort_values("t").groupby("id")["s"].first()
    assert [data.names[s] for s in data.starts] == [first[name] for name in frame["id"].unique()]


def test_columns_of_one_name_are_refused():
    frame = pd.DataFrame(table())
    with pytest.raises(InvalidData, match="state is 'page', but the table has 2 columns of this name"):
        db.Transitions.from_frame(pd.concat([frame, frame], axis=1), **NAMES)


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.xlsx"])
def test_other_kinds_of_files_are_named(tmp_path, name):
    with pytest.raises(InvalidData, match=r"files are not supported; save the table as \.csv"):
        db.read_transitions(file(tmp_path, name, "[]"), state="page")


def test_columns_and_times_that_are_not_there():
    with pytest.raises(
        InvalidData, match=re.escape("time is 'when', but the table has no such column; its columns are 'user'")
    ):
        db.Transitions.from_frame(pd.DataFrame(table()), id="user", time="when", state="page")
    for odd in ("yesterday", "16.11.2026"):
        with pytest.raises(InvalidData, match=f"row 1: the time '{odd}' is neither a number nor an ISO 8601 date"):
            db.Transitions.from_frame({"user": [1, 1], "at": ["2026-01-01", odd], "page": [0, 1]}, **NAMES)
    with pytest.raises(InvalidData, match="no rows"):
        db.Transitions.from_frame({"user": [], "at": [], "page": []}, **NAMES)


def test_zones_are_compared_in_utc():
    at = ["2026-01-01T10:00:00+02:00", "2026-01-01T08:30:00Z", "2026-01-01T03:45:00-05:00"]
    rows = {"user": [1, 1, 1], "at": at, "page": list("abc")}
    same(db.Transitions.from_frame(rows, **NAMES), [list("abc")])
    oracle = pd.to_datetime(pd.Series(at), utc=True, format="ISO8601")
    same(db.Transitions.from_frame(rows | {"at": oracle}, **NAMES), [list("abc")])


def test_events_within_a_microsecond_keep_their_order(tmp_path, monkeypatch):
    at = pd.Timestamp("2026-01-01") + pd.to_timedelta([900, 300, 600, 500_000], unit="ns")
    rows = {"user": [1] * 4, "at": at, "page": list("cabd")}
    kinds = [
        pd.DataFrame(rows),
        pa.table(pd.DataFrame(rows)),
        rows | {"at": [f"{t.isoformat(timespec='nanoseconds')}" for t in at]},
        rows | {"at": [f"{t.isoformat(timespec='nanoseconds')}Z" for t in at]},
        rows | {"at": at - at[0]},
    ]
    for kind in kinds:
        same(db.Transitions.from_frame(kind, **NAMES), [list("abcd")])
        for gap in ("400ns", pd.Timedelta(400, "ns"), "0.4us"):
            same(db.Transitions.from_frame(kind, gap=gap, **NAMES), [list("abc"), ["d"]])
    monkeypatch.setattr("diffbisim.io.logs.BATCH", 1)  # every row is a batch, and only some have nanoseconds
    for last, gap in (("2026-01-01T00:00:01", "500ms"), ("9999-12-31", "1d")):  # the latter does not fit nanoseconds
        stamps = ["2026-01-01T00:00:00.000002300", last, "2026-01-01T00:00:00.000001"]
        path = file(
            tmp_path,
            f"{last[:4]}.csv",
            "user,at,page\n" + "".join(f"1,{t},{p}\n" for t, p in zip(stamps, "bca", strict=True)),
        )
        same(db.read_transitions(path, gap=gap, **NAMES), [list("ab"), ["c"]])


@pytest.mark.parametrize("batch", [1, 2, 100])
@pytest.mark.parametrize("order", [1, -1])
def test_times_with_and_without_a_zone_are_not_mixed(tmp_path, monkeypatch, batch, order):
    """Whether the second kind comes in the same batch or in a later one, the line is named."""
    monkeypatch.setattr("diffbisim.io.logs.BATCH", batch)
    kinds = ["2026-01-01T10:00:00", "2026-01-01T11:00:00+02:00"][::order]
    stamps = [kinds[0], kinds[0], "", kinds[1], kinds[0]]
    path = file(tmp_path, "mixed.csv", "user,at,page\n" + "".join(f"1,{t},a\n" for t in stamps))
    with pytest.raises(InvalidData, match=r"mixed\.csv, line 5.*with and without a time zone"):
        db.read_transitions(path, **NAMES)
    rows = {"user": [1] * 5, "at": stamps, "page": list("aaaaa")}
    with pytest.raises(InvalidData, match=r"row 3: the time .*with and without a time zone"):
        db.Transitions.from_frame(rows, **NAMES)


@pytest.mark.parametrize(
    ("rows", "names", "message"),
    [
        ({"page": [[1], [2]]}, {}, r"state \('page'\) is not a column of single values"),
        (pd.DataFrame({"page": [[1], [2]]}), {}, r"state \('page'\) is not a column of single values"),
        ({"page": 3}, {}, r"state \('page'\) is not a column of single values"),
        ({"page": np.zeros((2, 2))}, {}, r"state \('page'\) is not a column of single values"),
        ({"page": [0, 1], "at": np.zeros((2, 2))}, {"time": "at"}, r"the times have the shape \(2, 2\)"),
        ({"page": [0, 1], "at": [[1], [2, 3]]}, {"time": "at"}, "the times are not a column of single values"),
        ({"page": [0, 1], "at": [0.0, np.inf]}, {"time": "at"}, "row 1: the time is infinite"),
        ({"page": [0, 1], "at": [1]}, {"time": "at"}, "different lengths: state 2, time 1"),
        ({"page": [0, 1], "user": [1]}, {"id": "user"}, "different lengths: state 2, id 1"),
        (pd.DataFrame({"page": [0, 1]}), {"id": pd.Series([1, 2])}, "id is a Series; give the name of a column"),
        (pd.DataFrame({"page": [0, 1]}).groupby("page"), {}, "the table is a DataFrameGroupBy; give a DataFrame"),
        (np.zeros((2, 2)), {}, "the table is a ndarray; give a DataFrame"),
    ],
)
def test_what_is_not_a_column_is_named(rows, names, message):
    with pytest.raises(InvalidData, match=message):
        db.Transitions.from_frame(rows, state="page", **names)


# --- files --------------------------------------------------------------------------------------------------------


def text_of(delimiter=",", order=("page", "arm", "at", "user")):
    rows = table()
    lines = [delimiter.join(order)]
    lines += [delimiter.join(str(rows[name][k]) for name in order) for k in range(len(rows["user"]))]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("order", list(itertools.permutations(("page", "arm", "at", "user")))[::5])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_texts_with_columns_in_any_order(tmp_path, order, delimiter):
    path = file(tmp_path, "clicks.csv", text_of(delimiter, order).replace("user", "User"))
    same(db.read_transitions(path, **NAMES), VISITS.values())
    packed = tmp_path / "clicks.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    groups = db.read_transitions(packed, group="arm", gap="30min", **NAMES)
    same(groups["new"], [VISITS["ann"], VISITS["bob"]])


def test_parquet_and_arrow(tmp_path):
    frame = pa.table(pd.DataFrame(table()))
    pa.parquet.write_table(frame, tmp_path / "clicks.parquet")
    pa.feather.write_feather(frame, str(tmp_path / "clicks.arrow"), compression="zstd")
    for name in ("clicks.parquet", "clicks.arrow"):
        same(db.read_transitions(tmp_path / name, **NAMES), VISITS.values())
        with pytest.raises(
            InvalidData, match=re.escape(f"{tmp_path / name}: there is no column 'who'; use one of 'us")
        ):
            db.read_transitions(tmp_path / name, id="who", state="page")
    with pytest.raises(InvalidData, match="cannot be read by pyarrow"):
        db.read_transitions(file(tmp_path, "no.parquet", "PAR1"), **NAMES)


def test_what_a_file_unpacks_to_is_limited(tmp_path, monkeypatch):
    pa.parquet.write_table(pa.table({"page": np.zeros(10**5, np.int64)}), tmp_path / "z.parquet", compression="zstd")
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(b"page\n" + b"0\n" * 10**5))
    assert len(db.read_transitions(tmp_path / "z.parquet", state="page", end=None)) == 10**5 - 1
    assert len(db.read_transitions(tmp_path / "z.csv.gz", state="page", end=None)) == 10**5 - 1
    monkeypatch.setattr(limits, "BYTES", 10**5)
    monkeypatch.setattr(limits, "TEXT", 10**5)
    with pytest.raises(InvalidData, match=r"unpacks to .* bytes; raise BYTES"):
        db.read_transitions(tmp_path / "z.parquet", state="page")
    with pytest.raises(InvalidData, match="unpacks to more than 100,000 bytes"):
        db.read_transitions(tmp_path / "z.csv.gz", state="page")


def test_packed_chains_and_standard_input(tmp_path, monkeypatch):
    text = b"from;to;probability\nhome;work;0,75\nhome;home;1/4\nwork;home;1\n"
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(text)))
    for chain in (db.read_chain(tmp_path / "c.csv.gz"), db.read_chain("-"), db.read_chain("-")):
        assert chain.transition.tolist() == [[0.25, 0.75], [1, 0]]
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text)[:-12])
    with pytest.raises(InvalidData, match=re.escape("cut.csv.gz cannot be unpacked")):
        db.read_chain(tmp_path / "cut.csv.gz")


def test_lines_of_texts_are_named(tmp_path):
    good = "user,at,page\n1,0,a\n\n1,1,b\n"
    for more, line, why in (
        ("1,2\n", 5, "expected 3 fields"),
        ("1,later,c\n", 5, "the time is neither a number nor"),
        ("1,2026-11-16,c\n", 5, "the time is neither a number nor"),
        ("1,2,\n", 5, "1 of state"),
        ("1,,c\n", 5, "1 of time"),
    ):
        with pytest.raises(InvalidData, match=why) as caught:
            db.read_transitions(file(tmp_path, "c.csv", good + more), **NAMES)
        assert (caught.value.line, f"line {line}" in str(caught.value)) == (line, True), more
    with pytest.raises(InvalidData, match="there is no column 'who'; use one of these"):
        db.read_transitions(file(tmp_path, "c.csv", good), id="who", state="page")
    with pytest.raises(InvalidArgument, match="state is not given"):
        db.read_transitions(file(tmp_path, "c.csv", good), id="user")


# --- XES ----------------------------------------------------------------------------------------------------------


def xes(traces, head='<?xml version="1.0" encoding="UTF-8"?>\n'):
    """Traces as (attributes, events as attributes), with what else a log has around them."""
    parts = [head, '<log xes.version="1.0"><global scope="event"><string key="concept:name" value="none"/></global>\n']
    for own, events in traces:
        parts.append("<trace>" + "".join(f'<string key="{k}" value="{v}"/>' for k, v in own.items()))
        for event in events:
            attributes = "".join(
                f'<{"date" if k.startswith("time") else "string"} key="{k}" value="{v}"/>' for k, v in event.items()
            )
            nested = '<string key="meta" value="x"><string key="concept:name" value="inner"/></string>'
            parts.append(f"<event>{attributes}{nested}</event>")
        parts.append("</trace>\n")
    return "".join([*parts, "</log>\n"])


LOG = [
    ({"concept:name": user, "arm": "new" if user < "c" else "old"},
     [{"concept:name": page, "time:timestamp": f"2026-11-16T0{t}:00:00.000+01:00"} for t, page in enumerate(pages)])
    for user, pages in VISITS.items()
]  # fmt: skip


def test_logs_of_process_mining(tmp_path):
    path = file(tmp_path, "log.xes", xes(LOG))
    same(db.read_transitions(path), VISITS.values())
    (tmp_path / "log.xes.gz").write_bytes(gzip.compress(path.read_bytes()))
    same(db.read_transitions(tmp_path / "log.xes.gz", gap="2h"), VISITS.values())
    same(db.read_transitions(path, gap="10min"), [[page] for pages in VISITS.values() for page in pages])
    same(db.read_transitions(path, group="arm")["new"], [VISITS["ann"], VISITS["bob"]])
    assert db.read_chain(path, unseen="self-loop").names == ("buy", "cart", "home", "■")
    assert np.allclose(db.read_chain(path, unseen="self-loop").initial, [0, 1 / 3, 2 / 3, 0])


def test_logs_that_are_none(tmp_path):
    laughs = '<?xml version="1.0"?><!DOCTYPE log [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>\n'
    for text, why in (
        (xes(LOG, laughs), "line 1.*declarations"),
        (xes(LOG)[:-40], "line 5.*this is not XML"),
        ("<trace/>", "the document is a <trace>, not a <log>"),
        ("<log/>", "contains no <event>"),
        ("<log>" + "<a>" * 200 + "</a>" * 200 + "</log>", "elements are nested more than 100 deep"),
        (xes([({}, [{"concept:name": "a"}, {"other": "b"}])]), r"1 of state \('state'\)"),
    ):
        with pytest.raises(InvalidData, match=why):
            db.read_transitions(file(tmp_path, "log.xes", text))


# --- ends, steps of equal length, clusters ------------------------------------------------------------------------


def test_the_end_is_a_state_of_its_own():
    rows = {"user": [1, 1, 2], "at": [0, 1, 0], "page": ["a", "b", "b"]}
    data = db.Transitions.from_frame(rows, **NAMES)
    chain = data.chain(rewards={"a": 1, "b": 2})  # no error although the end has no successors
    assert chain.transition.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert chain.rewards.tolist() == [1, 2, 0]
    assert data.chain(rewards=[1, 2]).rewards.tolist() == [1, 2, 0]
    assert data.chain(rewards=[1, 2, 7]).rewards.tolist() == [1, 2, 7]
    assert data.chain(rewards={"a": 1, "b": 2, "■": 7}).rewards.tolist() == [1, 2, 7]
    assert data.chain(unseen="drop").names == ("a", "b", "■")
    assert db.Transitions.from_frame(rows, end="left", **NAMES).names == ("a", "b", "left")
    assert db.Transitions.from_frame(rows, end=None, **NAMES).names == ("a", "b")
    with pytest.raises(InvalidData, match="end is 'b', but this is a state of the data"):
        db.Transitions.from_frame(rows, end="b", **NAMES)
    with pytest.raises(InvalidArgument, match="end is '■'; omit it with lag, actions or rewards"):
        db.Transitions.from_trajectories([[0, 1, 0]], lag=2, end="■")
    for how in ({"criterion": "average"}, {"initial": "stationary"}):
        with pytest.raises(InvalidArgument, match="all sequences end in the absorbing state '■'"):
            db.estimate(data, data, "indicator", **how)


def test_states_at_equal_intervals():
    """Against a loop over the times of the grid; only a state that is never left is known to last."""
    rng = np.random.default_rng(5)
    for step in (0.7, 1.0, 2.5):
        rows, paths = {"user": [], "at": [], "page": []}, []
        for user in range(20):
            at = np.cumsum(rng.exponential(size=8)).tolist()
            pages = [*rng.integers(3, size=7).tolist(), 3 if user % 2 else 0]
            for name, column in (("user", [user] * 8), ("at", at), ("page", pages)):
                rows[name] += column
            path, t = [], at[0]
            while t <= at[-1]:
                path.append(pages[max(k for k in range(8) if at[k] <= t)])
                t += step
            paths.append([*path, 3] if user % 2 else path)
        same(db.Transitions.from_frame(rows, every=step, **NAMES), paths)
    days = {"user": [1] * 3, "at": ["2026-01-01", "2026-02-15", "2026-03-02"], "page": list("aba")}
    same(db.Transitions.from_frame(days, every="30d", **NAMES), [["a", "a", "a"]])  # b at no time of the grid
    for bad in (0, "0d", "-1d", "month"):
        with pytest.raises(InvalidArgument, match="every is"):
            db.Transitions.from_frame(days, every=bad, **NAMES)
    with pytest.raises(InvalidArgument, match="every is given without time"):
        db.Transitions.from_frame(days, every="30d", id="user", state="page")
    with pytest.raises(InvalidArgument, match="every is '1us', which gives"):
        db.Transitions.from_frame(days, every="1us", **NAMES)


def test_clusters_and_strata_are_columns():
    rows = {"user": [1, 1, 2, 2, 3], "page": list("abaab"), "house": ["x", "x", "x", "x", "y"], "age": [7, 7, 8, 8, 7]}
    data = db.Transitions.from_frame(rows, id="user", state="page", cluster="house", strata="age")
    assert data.n_clusters == 2
    assert data.strata.tolist() == [7, 8, 7]
    taken = data.take_clusters([1, 0, 0])
    assert (taken.n_episodes, taken.clusters.tolist(), taken.strata.tolist()) == (5, [0, 1, 1, 2, 2], [7, 7, 8, 7, 8])
    with pytest.raises(InvalidData, match=r"strata \('age'\) changes within sequence 0"):
        db.Transitions.from_frame(rows | {"age": [7, 8, 8, 8, 7]}, id="user", state="page", strata="age")


def test_clusters_of_both_groups_are_refused():
    paths = [[0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]] * 2
    A, B = (db.Transitions.from_trajectories(paths, states=2) for _ in range(2))
    with pytest.raises(InvalidArgument, match="cluster: 2 names occur in several groups, such as 'u6' in X and Y"):
        db.estimate(A, B, "indicator", cluster=([f"u{k}" for k in range(8)], [f"u{k + 6}" for k in range(8)]))
    with pytest.raises(InvalidArgument, match="cluster of Y has 7 entries for 8 episodes"):
        db.estimate(A, B, "indicator", cluster=(range(8), range(10, 17)))
    for function in (db.estimate, db.power):
        with pytest.raises(InvalidArgument, match="cluster must have one sequence of names for each group"):
            function(A, B, "indicator", cluster="user")
    with pytest.raises(InvalidArgument, match="length is for chains"):
        db.power(A, B, "indicator", length=5)
    with pytest.raises(InvalidArgument, match="strata needs groups of episodes"):
        db.estimate(A.take([0, 1]), B.take([0, 1]), "indicator", strata=([0, 1], [0, 1]))
    plan = db.power(A, B, "indicator", cluster=([0, 0, 1, 1, 2, 2, 3, 3], range(10, 18)), episodes=4, datasets=2)
    assert str(plan).endswith("clusters in each group")


def test_units_of_intervals():
    """Months and years have no fixed length; a week has."""
    days = np.array(["2026-01-01", "2026-01-08", "2026-01-22"], dtype="M8[D]")
    table = {"t": days, "s": ["a", "b", "a"]}
    found = [db.Transitions.from_frame(table, time="t", state="s", every=every) for every in ("1w", "7d", "168h")]
    assert [len(one) for one in found] == [3, 3, 3]
    for every in ("1M", "1mo", "1y", np.timedelta64(1, "M"), np.timedelta64(1, "Y"), True):
        with pytest.raises(InvalidArgument, match=r"every is .*months and years vary in length: give days"):
            db.Transitions.from_frame(table, time="t", state="s", every=every)
    with pytest.raises(InvalidArgument, match="every is True; the times are numbers"):
        db.Transitions.from_frame({"t": [0, 1], "s": [0, 1]}, time="t", state="s", every=True)


def test_visits_between_two_steps_are_counted():
    """a at 0, b from 1 to 2, a from 2 on: steps at 0, 10, 20 show a only."""
    table = {"t": [0, 1, 2, 15, 20], "s": list("abaab")}
    with pytest.warns(InputWarning, match="every is 10, and 1 of 3 visits to a state begin and end between two steps"):
        found = db.Transitions.from_frame(table, time="t", state="s", every=10)
    assert [found.name_of(k) for k in (*found.states, found.next_states[-1])] == ["a", "a", "b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db.Transitions.from_frame(table, time="t", state="s", every=1)


def test_steps_of_different_length_are_reported_however_few_they_are():
    short, long = (
        db.Transitions.from_frame({"t": [0, 4, 8], "s": [0, 1, 0]}, time="t", state="s", every=every)
        for every in (2, 4)
    )
    with pytest.warns(InputWarning, match=r"a step takes 2 in X and 4 in Y \(medians\)"):
        db.estimate(short, long, "indicator", permutations=19, replicates=20)


def test_strata_of_one_group_only_are_refused():
    table = {"t": [0, 1] * 8, "id": np.repeat(range(8), 2), "s": [0, 1] * 8, "site": [0] * 16}
    options = {"id": "id", "time": "t", "state": "s"}
    X, Y = db.Transitions.from_frame(table, **options, strata="site"), db.Transitions.from_frame(table, **options)
    for call in (lambda: db.estimate(X, Y, "indicator"), lambda: db.compare({"X": X, "Y": Y}, "indicator")):
        with pytest.raises(InvalidArgument, match="Y has no strata, and another group does; create all groups with"):
            call()
    with pytest.raises(InvalidData, match=r"cluster .'c'. changes within sequence 0"):
        db.Transitions.from_frame({**table, "c": [0, 1, *[2] * 14]}, **options, cluster="c")
