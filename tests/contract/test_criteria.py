"""One contract for all that ``db.distance`` answers: whatever is asked, whatever it starts from, however it ends.

    question × what it starts from × how that came here × option × end × threads

The exact solver has an engine for each kind of question (average and total cost, finite horizons, games over actions);
test_solvers.py holds all *solvers* to their contract on discounted chains, and this file all *questions*. All problems
have the same numbers of states, so that a run may start from the result of any other: it need not gain anything, but
bounds stay true. A new question joins by one line in QUESTIONS. Every pair of values of any two factors is tried. The
oracles are linear programs by HiGHS (oracles/undiscounted.py, horizon.py, games.py).
"""

import copy
import pickle
import random
import tempfile
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
import pytest
import scipy.sparse as sp

import diffbisim as db
from cases import run_all
from diffbisim.results.base import Status
from diffbisim.solvers import Exact
from oracles import games
from oracles.bellman import transport
from oracles.horizon import induction
from oracles.undiscounted import least_average, least_total

HIGHS = 1e-7  # what its tolerances of 1e-10 guarantee of a value, here
TOL = 1e-9
SHAPE = N, M = 4, 3
DISCOUNT = 0.6

# --- the questions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Posed:
    """Two processes, what is asked of them, and the answers."""

    X: object
    Y: object
    how: dict
    oracle: object  # () -> the distance
    table: object  # () -> that from every pair of states, (N, M)


def rows(rng, n, m, zeros=0.3):
    """Random distributions (n, m), some entries zero."""
    P = rng.dirichlet(np.ones(m), size=n) * (rng.random((n, m)) >= zeros)
    P[np.arange(n), rng.integers(m, size=n)] += 0.1
    return P / P.sum(axis=1, keepdims=True)


def starts(rng):
    return [rows(rng, 1, n)[0] for n in SHAPE]


def unreached(P, law):
    """The last state moved out of reach; ``Exact(reachable=True)`` leaves it out."""
    for probabilities in (P, law):
        probabilities[..., 0] += probabilities[..., -1]
        probabilities[..., -1] = 0.0


def programs(least, P, Q, laws, *how):
    """The distance from the starts, and from each pair of states, by linear programs."""
    return (lambda: least(P, Q, *laws, *how)), (
        lambda: np.array([[least(P, Q, x, y, *how) for y in np.eye(M)] for x in np.eye(N)])
    )


def chains(kernels, laws, form=np.array):
    return [db.MarkovChain(form(P), initial=nu) for P, nu in zip(kernels, laws, strict=True)]


def discounted(rng):
    P, Q, laws, cost = rows(rng, N, N), rows(rng, M, M), starts(rng), rng.random(SHAPE)
    unreached(P, laws[0])

    @cache
    def table():
        return games.value_iteration(P[None], Q[None], cost[None, None], DISCOUNT, "matched")

    def oracle():
        return np.sum(transport(table(), *laws)[0] * table())

    return Posed(*chains((P, Q), laws), {"cost": cost, "discount": DISCOUNT}, oracle, table)


def average(rng):
    P, Q, laws, cost = rows(rng, N, N, 0.0), rows(rng, M, M), starts(rng), rng.random(SHAPE)
    how = {"cost": cost, "criterion": "average"}
    return Posed(*chains((P, Q), laws), how, *programs(least_average, P, Q, laws, cost))


def average_of_classes(rng):
    """X has two closed classes and a transient state, Y a cycle and a transient state; sparse."""
    P, Q, laws, cost = np.zeros((N, N)), np.zeros((M, M)), starts(rng), rng.random(SHAPE)
    P[:2, :2], P[2, 2], P[3] = rows(rng, 2, 2), 1.0, rows(rng, 1, N, 0.0)
    Q[0, 1], Q[1, 0], Q[2] = 1.0, 1.0, rows(rng, 1, M, 0.0)
    how = {"cost": cost, "criterion": "average"}
    return Posed(*chains((P, Q), laws, sp.csr_array), how, *programs(least_average, P, Q, laws, cost))


def total(rng):
    """Until both are in state 0, which absorbs."""
    P, Q, laws, cost = rows(rng, N, N, 0.0), rows(rng, M, M, 0.0), starts(rng), 0.1 + rng.random(SHAPE)
    P[0], Q[0], cost[0, 0] = np.eye(N)[0], np.eye(M)[0], 0.0
    unreached(P, laws[0])
    end = cost == 0
    how = {"cost": cost, "criterion": "total"}
    return Posed(*chains((P, Q), laws), how, *programs(least_total, P, Q, laws, cost, end))


def meeting(rng):
    """Until they meet; sparse."""
    P, Q, laws, cost = rows(rng, N, N, 0.0), rows(rng, M, M, 0.0), starts(rng), 0.1 + rng.random(SHAPE)
    end = np.eye(N, M, dtype=bool)
    how = {"cost": cost, "criterion": "total", "terminal": end}
    return Posed(*chains((P, Q), laws, sp.csr_array), how, *programs(least_total, P, Q, laws, cost, end))


def horizon(rng):
    P, Q, laws, cost = rows(rng, N, N), rows(rng, M, M), starts(rng), rng.random(SHAPE)
    w = DISCOUNT ** np.arange(4)
    how = {"cost": cost, "horizon": 3, "discount": DISCOUNT}
    solved = cache(lambda: induction([P] * 3, [Q] * 3, *laws, [cost] * 4, w / w.sum()))
    return Posed(*chains((P, Q), laws), how, lambda: solved()[0], lambda: solved()[1][0])


def timed(rng):
    """Kernels, numbers of states, costs and weights that change with time; one kernel is sparse."""
    sizes, laws = ((N, 5, 2, N), (M, 2, 4, M)), starts(rng)
    kernels = [[rows(rng, *shape) for shape in pairwise(side)] for side in sizes]
    costs, w = [rng.random(shape) for shape in zip(*sizes, strict=True)], rng.random(4) * [1, 1, 0, 1]
    X, Y = (db.TimedChain(Ps, initial=nu) for Ps, nu in zip(kernels, laws, strict=True))
    X = db.TimedChain([X.transitions[0], sp.csr_array(X.transitions[1]), X.transitions[2]], initial=laws[0])
    solved = cache(lambda: induction(*kernels, *laws, costs, w))
    return Posed(X, Y, {"cost": costs, "weights": w}, lambda: solved()[0], lambda: solved()[1][0])


def with_actions(rng, actions, form=np.array):
    """MDPs of two actions, or of two and three where these need not match."""
    counts = (2, 2) if actions == "matched" else (2, 3)
    kernels = [np.array([rows(rng, n, n) for _ in range(k)]) for n, k in zip(SHAPE, counts, strict=True)]
    r, laws = [rng.random((n, k)) for n, k in zip(SHAPE, counts, strict=True)], starts(rng)
    unreached(kernels[0], laws[0])
    sides = [
        db.MDP([form(P) for P in Ps], rewards=rewards, initial=nu)
        for Ps, rewards, nu in zip(kernels, r, laws, strict=True)
    ]

    @cache
    def table():
        cost = games.reward_cost(*r, directed=actions == "directed")
        return games.value_iteration(*kernels, cost, DISCOUNT, actions)

    def oracle():
        return np.sum(transport(table(), *laws)[0] * table())

    return Posed(*sides, {"discount": DISCOUNT, "actions": actions}, oracle, table)


QUESTIONS = {
    "discounted": discounted,
    "average": average,
    "average of classes": average_of_classes,
    "total": total,
    "meeting": meeting,
    "horizon": horizon,
    "timed": timed,
    "matched": lambda rng: with_actions(rng, "matched"),
    "lax": lambda rng: with_actions(rng, "lax"),
    "directed": lambda rng: with_actions(rng, "directed", sp.csr_array),
}


def pose(question, seed=0):
    """Made anew for every solve."""
    return QUESTIONS[question](np.random.default_rng([7, seed]))


@cache
def truth(question):
    return float(pose(question).oracle())


@cache
def true_table(question):
    return pose(question).table()


# --- the tables: options, ends, sources, passages -------------------------------------------------------------------

OPTIONS = {"full": {}, "reachable": {"reachable": True}}

ENDS = {
    "to the end": ({}, {Status.CONVERGED}),
    "first iteration": ({"max_iterations": 1}, {Status.CONVERGED, Status.ITERATIONS}),
    "no time": ({"time_limit": 0}, {Status.CONVERGED, Status.TIME}),
    "callback": ({}, {Status.CONVERGED, Status.INTERRUPTED}),
}


def solve(question, option="full", end="to the end", threads=1, warm=None, seed=0):
    """The one place that knows how a combination is asked for; checks the warning on the way."""
    posed, solver = pose(question, seed), Exact(tol=TOL, threads=threads, **OPTIONS[option], **ENDS[end][0])
    callback = (lambda row: True) if end == "callback" else None
    with split_small_work(threads), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = db.distance(posed.X, posed.Y, solver=solver, warm=warm, callback=callback, **posed.how)
    warned = [w for w in caught if w.category is db.ConvergenceWarning and result.status in str(w.message)]
    assert len(caught) == len(warned) == (not result.converged), "a warning, or none, and no other"
    return result


@contextmanager
def split_small_work(threads):
    """With two threads, let them share even the smallest sweep."""
    from diffbisim.common import parallel, stopping
    from diffbisim.solvers.exact import transports

    with pytest.MonkeyPatch.context() as patch:
        for module in (parallel, transports) if threads > 1 else ():
            patch.setattr(module, "CHUNK", 1)
        if threads > 1:
            patch.setattr(stopping, "SHARE", 1.0)
        yield


#: What a warm start may come from: (question, option) -> result.
SOURCES = {
    "the same": lambda question, option: solve(question, option),
    "its first iteration": lambda question, option: solve(question, option, "first iteration"),
    "stopped": lambda question, option: solve(question, option, "callback"),
    "other numbers": lambda question, option: solve(question, option, seed=1),
}
SOURCES |= {f"by {other}": lambda question, option, other=other: solve(other, option) for other in QUESTIONS}


def through_file(result):
    with tempfile.TemporaryDirectory() as where:
        result.save(f"{where}/result.npz")
        return db.load(f"{where}/result.npz")


#: How a result may come to where it is used.
PASSAGES = {
    "in memory": lambda result: result,
    "from a file": through_file,
    "pickled": lambda result: pickle.loads(pickle.dumps(result)),
    "copied": copy.copy,
    "deeply copied": copy.deepcopy,
}


# --- what must hold -------------------------------------------------------------------------------------------------

FIELDS = ("transition_x", "transition_y", "cost", "initial_x", "initial_y")


def asked(call):
    """What is said, or the words with which it is refused."""
    try:
        return call()
    except db.DiffbisimError as refusal:
        return str(refusal)


def handed_out(result):
    """Everything that a result hands out, by name."""
    names = ("values", "values_lower", "values_upper", "occupancy", "encoder", "decoder", "assignment", "unvisited")
    for name in names:
        if name in dir(result):
            yield name, asked(lambda name=name: getattr(result, name))
    gradient = asked(lambda: result.gradient)
    for name in (*FIELDS, "rewards_x", "rewards_y"):
        yield f"gradient.{name}", gradient if isinstance(gradient, str) else getattr(gradient, name, None)
    for x, y in ((0, 0), (2, 1)):
        yield "plan", asked(lambda x=x, y=y: result.plan(x, y))
        yield "potentials", asked(lambda x=x, y=y: result.potentials(x, y))
    for name in ("cost", "costs", "weights", "terminal", "choices"):
        yield f"problem.{name}", getattr(result.problem, name, None)
    for side in (result.problem.x, result.problem.y):
        for name in ("transition", "transitions", "initial", "rewards"):
            yield name, getattr(side, name, None)
    yield from (("history", row) for row in result.history)
    yield "work", result.work
    yield from ((f"arrays.{name}", part) for name, part in result.arrays().items())


def as_bytes(thing):
    if isinstance(thing, tuple):
        return b"".join(map(as_bytes, thing))
    if isinstance(thing, np.ndarray):
        return thing.tobytes()
    if sp.issparse(thing):
        return thing.tocsr().data.tobytes() + thing.tocsr().indices.tobytes()
    return repr(sorted(thing.items()) if isinstance(thing, dict) else thing).encode()


def bits(result):
    """All that a result says, to the last bit."""
    numbers = (result.value, result.lower, result.upper, result.outcome.name, result.iterations, result.solver)
    return repr(numbers).encode() + b"".join(as_bytes(thing) for _, thing in handed_out(result))


def check(result, question, option, finished):
    """The contract, for one result; ``finished``: the run went to its own end."""
    exact, scale = truth(question), result.problem.scale
    assert 0 <= result.lower <= result.value <= result.upper
    assert result.upper < np.inf or (result.outcome is Status.TIME and result.problem.criterion == "total")
    for row in ({"lower": result.lower, "upper": result.upper}, *result.history):
        assert row["lower"] <= exact + HIGHS, "a lower bound above the distance"
        assert row["upper"] >= exact - HIGHS, "an upper bound below the distance"
    assert not result.converged or result.gap <= 2.000001 * TOL * max(scale, result.value)
    whole = finished and option == "full"
    check_tables(result, question, whole)
    check_occupancy(result, question, finished)
    check_gradient(result, question, finished)


def check_tables(result, question, whole):
    """Every entry within its bounds, and these around the true one; NaN together, where a pair was not solved."""
    values, lower, upper = result.values, result.values_lower, result.values_upper
    known = ~np.isnan(values)
    assert values.shape == lower.shape == upper.shape == SHAPE
    assert known.all() or not whole
    assert np.array_equal(known, ~np.isnan(lower))
    assert np.array_equal(known, ~np.isnan(upper))
    assert (lower[known] <= values[known]).all()
    assert (values[known] <= upper[known]).all()
    table = true_table(question)[known]
    assert (lower[known] <= table + HIGHS).all()
    assert (table - HIGHS <= upper[known]).all()
    if result.converged:
        assert (upper - lower)[known].max() <= 1e-6 * max(result.problem.scale, result.value)


def check_occupancy(result, question, finished):
    m = asked(lambda: result.occupancy)
    if isinstance(m, str):
        refused = "numbers of states change" if question == "timed" else "the run stopped at time"
        assert refused in m
        assert question == "timed" or not finished
        return
    assert m.min() >= 0
    assert np.isfinite(m).all()
    ends = question in ("total", "meeting")  # expected visits
    assert ends or m.sum() == pytest.approx(1.0, rel=0, abs=1e-12)
    for part in (result.encoder, result.decoder):
        np.testing.assert_allclose(part.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    if finished:
        cost = asked(lambda: result.gradient.cost)
        table = result.problem.cost.reshape(cost.shape)
        assert np.sum(cost * table) == pytest.approx(result.value, rel=0, abs=result.gap + 1e-7)


def check_gradient(result, question, finished):
    """Finite on the supports; refused where the run was stopped before it came to the start."""
    gradient = asked(lambda: result.gradient)
    if isinstance(gradient, str):
        assert not finished
        assert "continue it with warm=result" in gradient
        return
    for name in FIELDS:
        part = getattr(gradient, name)
        sides = {"x": result.problem.x, "y": result.problem.y}
        owner = sides.get(name[-1]) if name != "cost" else None
        kernels = getattr(owner, name[:-2], getattr(owner, "transitions", None)) if owner is not None else None
        for table, P in zip(*map(listed, (part, part if kernels is None else kernels)), strict=True):
            if sp.issparse(table):
                assert np.isfinite(table.data).all(), name
            else:
                known = np.isfinite(table) | (np.asarray(P) <= 0 if kernels is not None else False)
                assert known.all(), f"NaN in the gradient: {name}"


def listed(part):
    """One table, or one for each action or step."""
    return list(part) if isinstance(part, tuple) or np.ndim(part) == 3 else [part]


# --- the combinations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    question: str
    source: str
    passage: str
    option: str
    end: str
    threads: int

    def __str__(self):
        return "-".join(map(str, vars(self).values())).replace(" ", "_")


def possible():
    begins = [("nothing", "in memory"), *product(SOURCES, PASSAGES)]
    for question, begin, option, end, threads in product(QUESTIONS, begins, OPTIONS, ENDS, (1, 2)):
        yield Case(question, *begin, option, end, threads)


def covered(case):
    """What one case tries: every pair of its values."""
    return set(combinations(vars(case).items(), 2))


@cache
def sample():
    """Cases of the product, in random but fixed order, that try something new."""
    every, seen, cases = list(possible()), set(), []
    random.Random(1).shuffle(every)
    for case in every:
        if new := covered(case) - seen:
            seen |= new
            cases.append(case)
    return sorted(cases, key=str)


@cache
def source_of(source, question, option):
    return SOURCES[source](question, option)


@pytest.mark.parametrize("question", QUESTIONS)
def test_contract(question):
    run_all(keeps_the_contract, [{"case": case} for case in sample() if case.question == question])


def keeps_the_contract(case):
    warm, before = None, b""
    if case.source != "nothing":
        warm = PASSAGES[case.passage](source_of(case.source, case.question, case.option))
        before = bits(warm)
    how = (case.question, case.option, case.end, case.threads, warm)
    result = solve(*how)
    assert result.outcome in ENDS[case.end][1]
    check(result, case.question, case.option, result.converged)
    assert bits(solve(*how)) == bits(result), "asked twice, answered differently"
    assert warm is None or bits(warm) == before, "the source was written to"


@pytest.mark.parametrize("end", ["to the end", "callback"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_result_is_the_same_after_every_passage(question, end):
    for option in OPTIONS:
        result = solve(question, option, end)
        told = bits(result)
        for passage, through in PASSAGES.items():
            again = through(result)
            if passage == "from a file":  # what is computed on demand is computed anew
                alike(again, result)
                check(again, question, option, result.converged)
            else:
                assert bits(again) == told, passage


def alike(one, other):
    """The same numbers and table; all that follows from them up to rounding."""
    for name in ("value", "lower", "upper", "outcome", "iterations", "solver", "history", "work"):
        assert getattr(one, name) == getattr(other, name)
    assert type(one) is type(other)
    np.testing.assert_allclose(one.values, other.values, rtol=1e-15, atol=0)
    mine, theirs = dict(handed_out(one)), dict(handed_out(other))
    assert mine.keys() == theirs.keys()
    for name in ("occupancy", "encoder", "decoder", *(f"gradient.{field}" for field in FIELDS)):
        for a, b in zip(listed(mine[name]), listed(theirs[name]), strict=True):
            if isinstance(a, str):
                assert a == b
            else:
                a, b = (part.toarray() if sp.issparse(part) else part for part in (a, b))
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-10, err_msg=name)


def vandalize(thing):
    """Write into it, if it lets itself be written to."""
    if isinstance(thing, tuple):
        for part in thing:
            vandalize(part)
        return
    try:
        if isinstance(thing, np.ndarray):
            thing[...] = 0
        elif sp.issparse(thing):
            thing.data[...] = 0
        elif isinstance(thing, dict):
            thing.update(dict.fromkeys(thing, -1))
    except (ValueError, TypeError):
        pass  # read-only


@pytest.mark.parametrize("passage", PASSAGES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_result_cannot_be_broken_by_writing_into_what_it_hands_out(question, passage):
    result = PASSAGES[passage](solve(question))
    told = bits(result)
    for name, thing in list(handed_out(result)):
        vandalize(thing)
        assert bits(result) == told, f"broken by writing into {name}"
    check(solve(question, warm=result), question, "full", True)


@pytest.mark.parametrize("question", QUESTIONS)
def test_from_a_file_a_run_goes_on_as_from_memory(question, tmp_path):
    """Several problems in a row, some of them stopped: nothing but what is saved may be carried along."""
    kept = loaded = None
    for step in range(6):
        end = "first iteration" if step % 2 else "to the end"
        kept, again = (solve(question, end=end, warm=warm, seed=step // 2) for warm in (kept, loaded))
        assert (again.value, again.lower, again.upper) == (kept.value, kept.lower, kept.upper), step
        assert again.work == kept.work
        assert np.array_equal(again.values, kept.values, equal_nan=True)
        again.save(tmp_path / "result.npz")
        loaded = db.load(tmp_path / "result.npz")


@pytest.mark.parametrize("question", QUESTIONS)
def test_warm_results_that_cannot_be_used_are_refused(question):
    posed = pose(question)
    for warm, words in ((0.5, "warm is a float"), (other_sizes(), r"warm is a result for \(2, 2\) states")):
        if question not in ("horizon", "timed") or warm == 0.5:  # these go by steps and take what fits
            with pytest.raises(db.DiffbisimError, match=words):
                db.distance(posed.X, posed.Y, warm=warm, **posed.how)
        else:
            check(solve(question, warm=warm), question, "full", True)


@cache
def other_sizes():
    X = db.MarkovChain(np.full((2, 2), 0.5), rewards=[0, 1])
    return db.distance(X, X.with_initial(1), discount=DISCOUNT)


def test_every_pair_occurs():
    """Not a test of the engines: the sample is as good as the head of this file says."""
    seen = {what for case in sample() for what in covered(case)}
    assert seen == {what for case in possible() for what in covered(case)}
