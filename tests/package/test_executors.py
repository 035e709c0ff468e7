"""Independent tasks on executors of every kind. Oracle: the same work in a loop."""

import tempfile
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import joblib
import pytest

import diffbisim as db
import fatal
from diffbisim.common import parallel
from diffbisim.common.parallel import as_done, tasks


def times(shared, item):
    return [shared["factor"] * k for k in item] if isinstance(item, list) else shared["factor"] * item


def forked(n):
    return ProcessPoolExecutor(n, mp_context=get_context("fork"))


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_joblib_backends(backend):
    with joblib.parallel_config(backend, n_jobs=2):
        assert tasks(times, range(9), {"factor": 3}, "joblib") == [3 * k for k in range(9)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads
def test_a_process_that_dies_costs_its_tasks_only(tmp_path):
    with forked(2) as pool, pytest.warns(RuntimeWarning, match="died"):
        assert tasks(fatal.square, range(12), str(tmp_path / "killed"), pool) == [k * k for k in range(12)]
    assert (tmp_path / "killed").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_work_that_kills_every_process_is_given_up():
    with forked(1) as pool, pytest.warns(RuntimeWarning), pytest.raises(db.DiffbisimError, match="died 3 times"):
        tasks(fatal.always, range(2), None, pool)


class Elsewhere:
    """Processes of a machine that does not see our files."""

    def __init__(self):
        self.sent = []

    def submit(self, function, *args):
        shared, future = args[0] if args else None, Future()
        self.sent.append(getattr(shared, "pickled", None) is not None)
        if shared is not None and not self.sent[-1]:
            shared = parallel.InSharedFile(shared.path + ".not-here")
        try:
            future.set_result(function(shared) if args else function())
        except Exception as error:
            future.set_exception(error)
        return future


def test_what_is_shared_comes_along_where_files_are_not_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    machine = Elsewhere()
    assert tasks(times, range(3), {"factor": 5}, machine) == [0, 5, 10]
    assert machine.sent.count(True) == 3
    assert not list(tmp_path.iterdir())


def test_closing_the_iterator_drops_the_rest():
    done = as_done(times, range(1000), {"factor": 1})
    assert next(done)[1] is not None
    done.close()


def test_progress_counts_what_is_in_a_batch():
    seen = []
    assert tasks(times, [[1, 2], [3]], {"factor": 1}, progress=lambda *of: seen.append(of)) == [[1, 2], [3]]
    assert seen[-1] == (3, 3)


def test_what_is_no_executor_is_refused():
    with pytest.raises(db.InvalidArgument, match="executor is a int"):
        tasks(times, [1], None, 3)
    with pytest.raises(db.InvalidArgument, match="'here' is not a cluster"):
        tasks(times, [1], None, "here")
