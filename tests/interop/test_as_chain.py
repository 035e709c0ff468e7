"""Objects of other libraries as chains, compared with what those libraries compute themselves."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

import diffbisim as db
from diffbisim.common.errors import InvalidArgument, InvalidChain, InvalidData
from later import Later
from oracles.kernels import dense

deeptime, hmmlearn, nx = Later("deeptime.markov"), Later("hmmlearn.hmm"), Later("networkx")

P = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.0, 0.25, 0.75]])
COUNTS = np.array([[9, 1, 0], [2, 5, 3], [0, 1, 3]])
NAMES = ["low", "middle", "high"]


# --- tables -------------------------------------------------------------------------------------------------------


def test_square_tables_are_kernels():
    import jax.numpy as jnp
    import polars as pl

    for table in (P, P.tolist(), sp.csr_array(P), torch.tensor(P), jnp.asarray(P), pl.DataFrame(P)):
        assert np.allclose(dense(db.as_chain(table)), P, atol=1e-6), type(table)


def test_tensors_of_every_kind():
    import jax.numpy as jnp
    from jax.experimental.sparse import BCOO

    sparse = torch.tensor(P).to_sparse()
    found = [
        torch.tensor(P, requires_grad=True), torch.tensor(P, dtype=torch.float32), sparse, sparse.to_sparse_csr(),
        torch.nn.Parameter(torch.tensor(P)), BCOO.fromdense(jnp.asarray(P)),
    ]  # fmt: skip
    for tensor in found:
        assert np.allclose(dense(db.MarkovChain.of(tensor)), P, atol=1e-6), type(tensor)
    halves = torch.full((2, 2), 0.5, dtype=torch.bfloat16)
    assert db.as_chain(halves, rewards=torch.tensor([0.0, 1.0])).rewards.tolist() == [0, 1]


@pytest.mark.parametrize("table", [COUNTS, sp.csr_array(COUNTS), torch.tensor(COUNTS), COUNTS.astype(float)])
def test_whole_numbers_that_do_not_sum_to_one_are_counts(table):
    assert np.allclose(dense(db.as_chain(table)), P, rtol=1e-15)
    assert np.array_equal(dense(db.as_chain(np.eye(3))), np.eye(3))  # these do


def test_what_is_neither_is_refused():
    with pytest.raises(InvalidChain, match=r"row 0 sums to 0.5"):
        db.as_chain(P * 0.5)
    with pytest.raises(InvalidData, match="2 of 3 states have no outgoing transition: 1, 2"):
        db.as_chain([[0, 3, 2], [0, 0, 0], [0, 0, 0]])
    with pytest.raises(InvalidChain, match="a int cannot be converted to a chain"):
        db.as_chain(3)
    with pytest.raises(InvalidData, match="no transition has positive weight"):
        db.as_chain({("a", "b"): 0})


def test_frames_go_by_name():
    frame = pd.DataFrame(P, NAMES, NAMES)
    shuffled = frame.loc[["high", "low", "middle"], ["middle", "high", "low"]]
    rewards = pd.Series([3.0, 1.0, 2.0], ["high", "low", "middle"])
    chain = db.as_chain(shuffled, rewards=rewards, initial="low")
    assert chain.names == ("high", "low", "middle")
    assert chain.rewards.tolist() == [3, 1, 2]
    assert db.distance(chain, db.MarkovChain(P, names=NAMES, rewards=[1, 2, 3])).value < 1e-8


def test_crosstabs_are_counted():
    """A table of pandas.crosstab is square only if every state was both left and entered."""
    s, s_next = ["a", "a", "b", "a", "b"], ["b", "b", "c", "c", "a"]
    table = pd.crosstab(pd.Series(s), pd.Series(s_next))
    oracle = db.MarkovChain.from_transitions(s, s_next, unseen="self-loop")
    chain = db.as_chain(table, unseen="self-loop")
    assert (chain.names, dense(chain).tolist()) == (oracle.names, dense(oracle).tolist())
    with pytest.raises(InvalidData, match="1 of 3 states have no outgoing transition: 'c'"):
        db.as_chain(table)
    with pytest.raises(InvalidChain, match=re.escape("Transitions.from_frame")):
        db.as_chain(pd.DataFrame({"user": [1.5, 2.5], "when": [0, 1], "page": [0, 1]}))


# --- graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["DiGraph", "Graph", "MultiDiGraph"])
def test_graphs_are_walks(kind):
    kind = getattr(nx, kind)
    graph = nx.gnp_random_graph(12, 0.5, seed=3, directed=kind is not nx.Graph)
    graph = nx.relabel_nodes(kind(graph), lambda k: f"n{k}")
    rng = np.random.default_rng(0)
    for node in graph:
        graph.add_edge(node, node, weight=1)
        graph.nodes[node]["height"] = float(rng.random())
    for *_, data in graph.edges(data=True):
        data["weight"] = float(rng.random())
    chain = db.as_chain(graph, rewards="height", initial="n3")
    oracle = nx.to_numpy_array(nx.stochastic_graph(nx.DiGraph(graph)) if kind is not nx.MultiDiGraph else graph)
    assert np.allclose(dense(chain), oracle / oracle.sum(axis=1, keepdims=True), rtol=1e-14)
    assert chain.names == tuple(graph)
    assert chain.rewards.tolist() == list(nx.get_node_attributes(graph, "height").values())


def test_sinks_and_attributes_of_graphs():
    graph = nx.path_graph(3, create_using=nx.DiGraph)
    with pytest.raises(InvalidData, match="no outgoing transition: 2"):
        db.as_chain(graph)
    assert dense(db.as_chain(graph, unseen="self-loop")).tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    with pytest.raises(InvalidChain, match="node 0 has no attribute 'height'"):
        db.as_chain(graph, rewards="height")
    graph.add_edge(0, 2, weight="far")
    with pytest.raises(InvalidChain, match="an edge has the weight 'far'"):
        db.as_chain(graph, unseen="self-loop")


def test_directly_follows_graphs():
    """Of the cases ab, ab, aab, b: as they would be counted with an end of their own."""
    graph = {("a", "b"): 3, ("a", "a"): 1}
    chain = db.as_chain((graph, {"a": 3, "b": 1}, {"b": 4}))
    cases = [[*case, "■"] for case in ("ab", "ab", "aab", "b")]
    oracle = db.MarkovChain.from_trajectories(cases, unseen="self-loop")
    assert chain.names == oracle.names == ("a", "b", "■")
    assert np.array_equal(dense(chain), dense(oracle))
    assert np.array_equal(chain.initial, oracle.initial)


# --- estimated models ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walk():
    return deeptime.msm.MarkovStateModel(P).simulate(3000, start=0, seed=1)


def test_markov_state_models(walk):
    counts = deeptime.TransitionCountEstimator(lagtime=2, count_mode="sliding").fit_fetch(walk)
    estimator = deeptime.msm.MaximumLikelihoodMSM(reversible=False).fit(counts)
    msm = estimator.fetch_model()
    for held in (msm, estimator):
        chain = db.as_chain(held, rewards=[0, 1, 2])
        assert np.array_equal(dense(chain), msm.transition_matrix)
        assert np.allclose(chain.initial, msm.stationary_distribution, rtol=1e-14)
    assert db.distance(msm, db.as_chain(msm), "indicator").value < 1e-8
    sparse = deeptime.msm.MarkovStateModel(sp.csr_matrix(P))
    assert np.array_equal(dense(db.as_chain(sparse)), P)


def test_count_models_and_trajectories_with_a_lag(walk):
    for lag in (1, 3):
        counts = deeptime.TransitionCountEstimator(lagtime=lag, count_mode="sliding").fit_fetch(
            [walk, walk[:7], walk[:2]]
        )
        shares = counts.count_matrix / counts.count_matrix.sum(axis=1, keepdims=True)
        assert np.allclose(dense(db.as_chain(counts)), shares, rtol=1e-14)
        assert np.allclose(db.as_chain(counts).initial, counts.state_histogram / counts.state_histogram.sum())
        assert np.allclose(dense(db.as_chain([walk, walk[:7], walk[:2]], lag=lag)), shares, rtol=1e-14)
        bare = deeptime.TransitionCountEstimator(lagtime=lag, count_mode="sliding").fit_fetch(walk)
        assert np.array_equal(dense(db.as_chain(walk, lag=lag)), dense(db.as_chain(bare)))
    part = deeptime.TransitionCountEstimator(lagtime=1, count_mode="sliding").fit_fetch(walk + 4).submodel_largest()
    assert db.as_chain(part).names == (4, 5, 6)
    assert db.as_chain(deeptime.msm.MaximumLikelihoodMSM().fit_fetch(part)).names == (4, 5, 6)
    with pytest.raises(InvalidArgument, match="lag is 0"):
        db.as_chain([walk], lag=0)


def test_hidden_models_and_posteriors_of_deeptime(walk):
    counts = deeptime.TransitionCountEstimator(lagtime=1, count_mode="effective").fit_fetch(walk)
    posterior = deeptime.msm.BayesianMSM(n_samples=2).fit_fetch(counts)
    assert np.array_equal(dense(db.as_chain(posterior)), posterior.prior.transition_matrix)
    hidden = deeptime.hmm.HiddenMarkovModel(P, np.eye(3), initial_distribution=np.array([0.2, 0.3, 0.5]))
    assert np.array_equal(dense(db.as_chain(hidden)), P)
    assert np.allclose(db.as_chain(hidden).initial, [0.2, 0.3, 0.5])


def test_hidden_models_of_hmmlearn():
    model = hmmlearn.CategoricalHMM(n_components=3)
    with pytest.raises(InvalidChain, match="this CategoricalHMM has no transition matrix yet; fit it first"):
        db.as_chain(model)
    model.startprob_, model.transmat_, model.emissionprob_ = np.array([0.5, 0.5, 0.0]), P, np.eye(3)
    assert np.array_equal(dense(db.as_chain(model)), P)
    assert db.as_chain(model).initial.tolist() == [0.5, 0.5, 0]
    seen, _ = model.sample(50, random_state=0)
    fitted = hmmlearn.CategoricalHMM(n_components=3, n_iter=2, random_state=0).fit(seen)
    assert np.array_equal(dense(db.as_chain(fitted)), fitted.transmat_)


def test_every_function_takes_them():
    """Distances of held objects are those of the chains they hold."""
    frame, other = pd.DataFrame(P, NAMES, NAMES), pd.DataFrame(COUNTS[::-1, ::-1], NAMES[::-1], NAMES[::-1])
    X, Y = db.as_chain(frame, initial="low"), db.as_chain(other, initial="high")
    value = db.distance(X, Y, "indicator", discount=0.9).value
    with pytest.warns(UserWarning, match="each starts in its first state: 'low', 'high'"):
        assert db.distance(frame, other, "indicator", discount=0.9).value == pytest.approx(value, abs=1e-8)
    with pytest.warns(UserWarning, match="each starts in its first state"):
        assert db.pairwise([frame, other], "indicator", discount=0.9)[0, 1] == pytest.approx(value, abs=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # starts that were given, or that are the same, are nothing to remark on
        assert db.distance(frame, Y, "indicator", discount=0.9).value == pytest.approx(value, abs=1e-8)
        assert db.distance(frame, frame, "indicator").value <= 1e-8
    assert db.aggregate(frame, [0, 1, 2], cost=1 - np.eye(3)).distance.value < 1e-8
    assert db.power(frame, frame, "indicator", episodes=(4,), length=3, datasets=2, permutations=19).value < 1e-8
    assert db.lump(frame, key=NAMES).n_states == 3
    assert db.compress(frame, 3, target_rewards=[0, 1, 2]).distance.value < 1e-8
    data = db.Transitions.from_trajectories([X.sample(40, rng=k).tolist() for k in range(8)], states=3)
    assert db.estimate(data, P, "indicator", replicates=20).plug_in > 0


# --- stormvogel, whose objects are told by their module; its own package brings notebooks and games along ----------


class Bag:
    __module__ = "stormvogel.model"

    def __init__(self, **parts):
        self.__dict__.update(parts)


def test_models_of_stormvogel():
    """Two actions in one state and one in the other; what it says of names, rewards and branches is what is read."""
    ids = (3, 8)  # numbers need not be 0, 1, …
    states = {s: Bag(id=s, labels=names) for s, names in zip(ids, (["init"], ["done"]), strict=True)}
    go, stay = (Bag(labels=frozenset({name})) for name in ("go", "stay"))
    of = {
        3: {go: [(0.25, states[3]), (0.75, states[8])], stay: [(1, states[3])]},
        8: {go: [(1.0, states[8])], stay: [(1.0, states[8])]},
    }
    transitions = {
        s: Bag(transition={a: Bag(branch=branch) for a, branch in actions.items()}) for s, actions in of.items()
    }
    cost = Bag(name="cost", rewards={(3, go): 2, (3, stay): 1.0})
    model = Bag(name=None, type=Bag(name="MDP"), states=states, transitions=transitions, rewards=[cost])
    mdp = db.MDP.of(model)
    assert mdp.actions == ("go", "stay")
    assert mdp.transition[0].toarray().tolist() == [[0.25, 0.75], [0, 1]]
    assert mdp.rewards.tolist() == [[2, 1], [0, 0]]
    assert mdp.initial.tolist() == [1, 0]
    assert db.MDP.of(model, rewards="done").rewards.tolist() == [0, 1]
    with pytest.raises(InvalidChain, match="not a DTMC or MDP"):
        db.as_chain(Bag(name=None, type=Bag(name="CTMC"), states={}, transitions={}, rewards=[]))
