"""Some random chains of calls against exact integers; benchmarks/long/bounds.py has a hundred thousand."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "long" / "bounds.py"
spec = importlib.util.spec_from_file_location("long_bounds", FILE)
bounds = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bounds)


INSTANCES = 160


@pytest.mark.parametrize("part", range(4))
def test_bounds_of_random_chains_of_calls_are_true(part):
    numbers = range(part, INSTANCES, 4)
    solves, wrong, _ = bounds.batch(1, numbers)
    assert sum(solves.values()) >= len(numbers)
    assert not wrong


def test_all_solvers_states_and_ends_occur():
    """Not a test of the solvers: the instances above are of every kind."""
    calls = [call for k in range(INSTANCES) for call in bounds.instance(1, k)]
    assert {call["solver"] for call in calls} == set(bounds.SOLVERS)
    assert {call["passage"] for call in calls} == {"cold", *bounds.PASSAGES}
    assert {call["end"] for call in calls} == set(bounds.ENDS)
    assert {call["lump"] for call in calls} == {False, True}


def test_an_instance_is_reproducible_and_survives_json():
    one, two = bounds.instance(3, 17), bounds.from_json(json.loads(json.dumps(bounds.to_json(bounds.instance(3, 17)))))
    for mine, theirs in zip(one, two, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_a_wrong_bound_is_noticed(monkeypatch):
    """The watchman watched: bounds moved by one part in 10^14 beyond the truth are violations."""
    from dataclasses import replace

    solve = bounds.solve

    def shifted(call, warm):
        result = solve(call, warm)
        exact = bounds.true(result, 0.0)
        return replace(result, lower=exact.value * (1 + 1e-14), value=exact.value * (1 + 1e-14), upper=result.upper)

    monkeypatch.setattr(bounds, "solve", shifted)
    cold = {"solver": "exact", "how": {"threads": 1}, "end": "to the end", "passage": "cold", "lump": False}
    found = []
    for k in range(20):
        call = {**bounds.instance(2, k)[0], **cold}
        if call["cost"].min() < call["cost"].max():
            found += bounds.run([call])[1]
    assert any("above the true" in fault for *_, fault in found)
