"""Damaged files of every kind: each is refused with a `DiffbisimError`, or works. The engine is tests/mutations.py.

More of the same, in subprocesses that may crash: ``python benchmarks/long/fuzz.py --mutations 100000``.
"""

import numpy as np
import pytest

from mutations import attempt, mutated, samples

MUTATIONS = 50  # of each of the 29 kinds of file: some 1,450 in all


@pytest.fixture(scope="module")
def files():
    return samples()


def test_the_files_themselves_can_be_read(files, tmp_path):
    for sample in files.values():
        assert attempt(sample, sample.files, tmp_path, np.random.default_rng(1)), sample.name


@pytest.mark.parametrize("part", range(4))
def test_damaged_files_are_refused_or_work(files, tmp_path, part):
    outcomes = []
    for kind, sample in enumerate(list(files.values())[part::4]):
        for k in range(MUTATIONS):
            rng = np.random.default_rng([part, kind, k])
            outcomes.append(attempt(sample, mutated(sample, rng), tmp_path, rng))
    assert 0.02 < np.mean(outcomes) < 0.6  # the damage is neither nothing nor always at the door
