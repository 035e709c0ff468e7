"""Objects of libraries that are too heavy for the test environment, compared with what these libraries compute.

    pip install pomegranate pm4py && python benchmarks/long/held.py

Libraries that are not installed are skipped with a message. The exit code is 1 if a comparison fails.
"""

import importlib
import sys
import tempfile
from pathlib import Path

import numpy as np

import diffbisim as db

P = np.array([[0.7, 0.2, 0.1], [0.2, 0.8, 0.0], [0.3, 0.3, 0.4]])


def dense(kernel):
    return kernel if isinstance(kernel, np.ndarray) else kernel.toarray()


def pomegranate():
    """Compare hidden Markov models, dense and sparse, and a chain of order one with their own samples."""
    import torch
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM, SparseHMM
    from pomegranate.markov_chain import MarkovChain

    start, end = [0.5, 0.25, 0.25], [0.1, 0.1, 0.1]
    emissions = [Categorical([row]) for row in (0.9 * np.eye(3) + 0.05).tolist()]
    hidden = DenseHMM(emissions, edges=(0.9 * P).tolist(), starts=start, ends=end)
    edges = [(emissions[i], emissions[j], 0.9 * P[i, j]) for i, j in zip(*np.nonzero(P), strict=True)]
    sparse = SparseHMM(emissions, edges=edges, starts=start, ends=end)
    for model in (hidden, sparse):
        found = db.as_chain(model)
        assert np.allclose(dense(found.transition), P, atol=1e-6), type(model)
        assert np.allclose(found.initial, start, atol=1e-6)
    walks = np.stack([db.MarkovChain(P).sample(30, rng=k) for k in range(200)])
    chain = MarkovChain(k=1).fit(torch.tensor(walks)[:, :, None])
    counted = db.MarkovChain.from_trajectories(walks)
    found = db.as_chain(chain)
    assert np.allclose(found.transition, counted.transition, atol=1e-5)
    assert np.allclose(found.initial, counted.initial, atol=1e-5)


def pm4py():
    """Check that a log, its data frame and its directly-follows graph give the same process."""
    import pandas as pd
    import pm4py

    rng = np.random.default_rng(0)
    rows = [
        {"case:concept:name": f"case {k}", "concept:name": "abc"[state], "time:timestamp": moment}
        for k in range(30)
        for state, moment in zip(
            db.MarkovChain(P).sample(int(rng.integers(1, 9)), rng=k),
            pd.date_range("2026-01-01", periods=10, freq="h", tz="UTC"),
            strict=False,
        )
    ]
    log = pm4py.format_dataframe(pd.DataFrame(rows))
    graph = pm4py.discover_dfg(log)
    X = db.as_chain(tuple(map(dict, graph)))
    ended = [[*case["concept:name"], "■"] for _, case in log.groupby("case:concept:name", sort=False)]
    Y = db.MarkovChain.from_trajectories(ended, unseen="self-loop")
    assert db.distance(X, Y, "indicator").value < 1e-8
    data = db.Transitions.from_frame(log, id="case:concept:name", time="time:timestamp", state="concept:name")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.xes"
        pm4py.write_xes(log, str(path))
        read = db.read_transitions(path)
    for other in (read, db.Transitions.from_trajectories([case[:-1] for case in ended])):
        assert db.distance(*(d.chain(unseen="self-loop") for d in (data, other)), "indicator").value < 1e-8


def main() -> None:
    failed = 0
    for check in (pomegranate, pm4py):
        try:
            importlib.import_module(check.__name__)
        except (ImportError, SyntaxError) as error:
            print(f"{check.__name__:12s} left out: {error}")
            continue
        try:
            check()
            print(f"{check.__name__:12s} agrees")
        except Exception as error:
            failed += 1
            print(f"{check.__name__:12s} FAILED: {type(error).__name__}: {error}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
