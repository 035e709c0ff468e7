"""The gallery: every example runs, draws what its text promises, and finds what is known."""

import runpy
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import diffbisim as db

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("plot_0*.py"))


@pytest.fixture
def run(monkeypatch):
    """Run an example; its names and how many figures it has drawn."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    yield lambda name: (runpy.run_path(str(next((ROOT / "examples").glob(f"plot_*_{name}.py")))), plt.get_fignums())
    plt.close("all")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_begins_with_a_title(path):
    head = path.read_text(encoding="utf-8").splitlines()
    assert head[0].startswith('"""')
    assert set(head[2]) == {"="}
    assert len(head[2]) == len(head[1])


def test_own_table(run):
    names, figures = run("own_table")
    result = names["result"]
    # No coupling brings the mean hours of sun closer than they are.
    mean = [chain.occupancy(0.9) @ chain.rewards for chain in (names["X"], names["Y"])]
    assert abs(mean[0] - mean[1]) - 1e-12 <= result.upper  # rounding of the means
    assert len(figures) == 2


def test_two_groups(run):
    names, figures = run("two_groups")
    different, same = names["different"], names["same"]
    assert different.lower <= names["truth"][0] <= different.upper
    assert different.p_value < 0.05 < same.p_value
    assert same.lower == names["truth"][1] == 0
    assert len(figures) == 2  # of pyplot, which is what the page shows


def test_torch_loss(run):
    names, _ = run("torch_loss")
    constant, annealed = names["constant"], names["annealed"]
    assert annealed[0][-1] == pytest.approx(1.5, abs=0.005)
    assert annealed[1][-1] < 0.1 * constant[1][-1]


def test_frozen_lake(run):
    names, figures = run("frozen_lake")
    assert names["result"].distance.upper <= 1e-6
    mdp, value = names["mdp"], names["expected_return"]
    assert value(mdp, names["result"].policy, 100) == pytest.approx(value(mdp, names["expert_policy"], 100), abs=1e-4)
    assert len(figures) == 2


def test_solvers(run):
    names, _ = run("solvers")
    results = names["results"]
    assert list(results) == ["exact", "lp", "sinkhorn-policy", "sinkhorn-value", "somcot"]
    assert results["lp"].value == pytest.approx(results["exact"].value, abs=1e-8)


def test_prism(run):
    names, _ = run("prism")
    assert names["quotient"].n_states == 5
    assert np.allclose(names["found"], names["by_hand"])
    if "smaller" in names:
        assert names["smaller"].nr_states == 5


def test_many_chains(run):
    names, figures = run("many_chains")
    D, family = names["matrix"], np.repeat(np.arange(3), 4)
    same = family[:, None] == family[None]
    assert D[same].max() < D[~same].min()
    assert len(figures) == 2


def test_compress(run):
    names, figures = run("compress")
    small, blocks = names["small"], names["blocks"]
    assert [len(set(small.assignment[blocks == b])) for b in range(5)] == [1] * 5
    assert names["X"].n_states == db.lump(names["X"]).n_states == 25
    assert len(figures) == 1


def test_every_example_is_tested():
    text = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES:
        assert f'run("{path.stem[8:]}")' in text, path.name
