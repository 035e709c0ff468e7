"""Imitation with continuous observations: on a line where the learner adds what it likes, all is known."""

import inspect

import gymnasium
import numpy as np
import pytest

import diffbisim as db
from diffbisim.common.errors import InvalidArgument, InvalidData
from diffbisim.learning.imitate.baselines.bco import bco
from diffbisim.learning.imitate.baselines.gaifo import Adversary
from diffbisim.learning.imitate.baselines.nearest import NearestNode, constant, nearest
from diffbisim.learning.imitate.baselines.segments import Segments
from diffbisim.learning.imitate.baselines.sinkhorn import Sinkhorn, plan
from diffbisim.learning.imitate.baselines.survival import Indifferent
from diffbisim.learning.imitate.control import Control
from diffbisim.learning.imitate.control.cells import blur, chain_on, expert_chain, gaps, longest, table
from diffbisim.learning.imitate.control.dynamics import LOGISTIC_RIDGE, ForwardModel, Logistic, Ridge, Step
from diffbisim.learning.imitate.control.learning import ImitationInputs
from diffbisim.learning.imitate.control.rewards import CouplingReward, TrackingReward, ending
from diffbisim.learning.imitate.control.tracking import Interpolation, Nodes, PlanTracker, TableTracker, prices
from diffbisim.learning.imitate.control.walks import (
    Actions,
    Demonstrations,
    RandomAgent,
    demonstrations,
    episodes,
    feature_map,
    walk,
)
from diffbisim.learning.imitate.sb3 import BicausalReward, UnitSize, ppo
from diffbisim.processes.cells import quantize

UP = np.linspace(0.0, 1.0, 11)[:, None]  # the expert: 0.1 a step, from 0 to 1
SPEEDS = np.array([-0.2, -0.1, 0.0, 0.1, 0.2])


class Line(gymnasium.Env):
    """s' = s + a; a second coordinate follows the first one, a step late. Counts its steps; ends beyond ``goal``."""

    def __init__(self, goal=np.inf, limit=12, dimension=2):
        self.observation_space = gymnasium.spaces.Box(-9.0, 9.0, (dimension,))
        self.action_space = gymnasium.spaces.Discrete(5)
        self.goal, self.limit, self.d, self.count = goal, limit, dimension, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.s = 0, np.zeros(self.d)
        self.s[0] = self.np_random.uniform(-0.1, 0.1)
        return self.s.copy(), {}

    def step(self, action):
        self.t, self.count = self.t + 1, self.count + 1
        self.s = np.append(self.s[0] + SPEEDS[action], self.s[:-1])
        return self.s.copy(), 1.0, bool(self.s[0] > self.goal), self.t >= self.limit, {}


class Known:
    """The line's own dynamics in place of a model, on one coordinate."""

    actions = Actions(tuple(range(5)), np.eye(5))
    scale = np.ones(1)

    def move(self, states, actions):
        return states + SPEEDS[actions][:, None]

    def terminal(self, states):
        return np.zeros(len(states), dtype=bool)

    def step(self, states, actions):
        following = self.move(states, actions)
        return Step(following, self.terminal(following))


def climb(observation):
    return 3


def line_nodes(ended=False):
    return Nodes.of(Demonstrations((UP,), (ended,)), lambda points: points[:, :1])


def lesson(env, options=None, expert=climb, features=(0,), discount=0.9):
    options = options or Control(steps=300, rounds=2, cells=80, demonstrations=2)
    return ImitationInputs.of(env, expert, features, options, discount, np.random.default_rng(0))


# --- walks ---------------------------------------------------------------------------------------------------------


def test_every_step_is_counted_and_no_other_is_made():
    env = Line()
    found = db.imitate(env, [UP], features=[0], policy="tracking", sampling=Control(steps=331, rounds=3, cells=50))
    assert env.count == found.steps == 331
    assert [row["steps"] for row in found.history] == [111, 221, 331]
    seen = walk(Line(limit=4), RandomAgent(5, 0), Actions.of(Line()), 10, 0)
    assert np.diff(np.flatnonzero(seen.first)).tolist() == [4, 4]
    assert [len(path) for path in seen.paths()] == [5, 5, 3]
    assert seen.returns.tolist() == [4.0, 4.0, 2.0]
    assert episodes(Line(limit=4), RandomAgent(5, 0), Actions.of(Line()), 3, 0).returns.tolist() == [4.0] * 3


def test_actions_of_a_box_are_a_grid():
    env = Line()
    env.action_space = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
    actions = Actions.of(env, 3)
    assert np.array(actions.raw).tolist() == [[a, b] for a in (-2.0, 0.0, 2.0) for b in (0.0, 0.5, 1.0)]
    env.action_space = gymnasium.spaces.Box(-1, 1, (4,))
    with pytest.raises(InvalidArgument, match="625 actions"):
        Actions.of(env)
    env.action_space = gymnasium.spaces.MultiBinary(2)
    with pytest.raises(InvalidArgument, match="Discrete, or a bounded Box"):
        Actions.of(env)


def test_experts_of_every_kind_show_the_same():
    class Model:
        def predict(self, observation, deterministic):
            assert deterministic
            return climb(observation), None

    env, first = Line(goal=0.95, limit=20), feature_map([0], 2)
    watched, modeled = (demonstrations(expert, env, first, 3, 5) for expert in (climb, Model()))
    assert [path.tolist() for path in watched.paths] == [path.tolist() for path in modeled.paths]
    assert watched.ended == (True,) * 3
    assert all(np.allclose(np.diff(path, axis=0), 0.1) for path in watched.paths)
    wide = demonstrations([np.hstack([UP, -UP])], env, first)
    assert np.array_equal(wide.paths[0], UP)
    assert np.array_equal(demonstrations([UP], env, feature_map(lambda s: s[:, 0] + 0.0, 2)).paths[0], UP)
    with pytest.raises(InvalidData, match="shows 3 numbers"):
        demonstrations([np.zeros((4, 3))], env, first)
    with pytest.raises(InvalidArgument, match="columns of 0 … 1"):
        feature_map([2], 2)


# --- the model -----------------------------------------------------------------------------------------------------


def test_linear_dynamics_and_their_ends_are_learned():
    env = Line(goal=0.5)
    seen = walk(env, RandomAgent(5, 0), Actions.of(env), 1_500, 0)
    model = ForwardModel(seen, Actions.of(env), np.zeros((0, 2)))
    assert model.error < 0.01  # a linear function of state and action is among the features
    states = np.array([[0.45, 0.3], [0.0, 0.2], [0.2, 0.4], [-0.3, -0.1]])
    step = model.step(states, np.array([4, 3, 0, 1]))
    assert np.allclose(step.states, [[0.65, 0.45], [0.1, 0.0], [0.0, 0.2], [-0.4, -0.3]], atol=0.02)
    assert step.ended.tolist() == [True, False, False, False]


def test_ridge_learns_a_smooth_function():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (800, 2))
    y = np.sin(x[:, :1]) * x[:, 1:]
    assert np.abs(Ridge(x[:700], y[:700], 0)(x[700:]) - y[700:]).mean() < 0.01 * y.std()


def test_logistic_regression_finds_a_rare_class():
    """Beyond a circle that one point in fifty leaves; the loss is convex, so a slope of zero is its minimum."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4_000, 2))
    beyond = (x**2).sum(axis=1) > 8.0
    found = Logistic(x[:3_000], beyond[:3_000], 0)
    φ, y = found.features(x[:3_000]).astype(np.float64), np.where(beyond[:3_000], 1.0, -1.0)
    pull = φ.T @ (y / (1.0 + np.exp(y * (φ @ found.weights)))) / 3_000
    assert np.abs(pull - LOGISTIC_RIDGE * found.weights).max() < 1e-5
    wrong = (found(x[3_000:]) > 0) != beyond[3_000:]
    assert wrong.sum() <= 0.2 * beyond[3_000:].sum()


# --- tracking ------------------------------------------------------------------------------------------------------


def test_the_value_of_tracking_is_that_of_the_closed_form():
    """Twice as fast as the expert at most: a gap of 0.1 j shrinks by 0.1 a step, and nothing is lost after that."""
    γ, nodes, centers = 0.9, line_nodes(), np.arange(-20, 41)[:, None] / 10
    tracker = TableTracker(nodes, Known(), centers, γ, shift=0)
    scale = UP.std()
    for x, behind in ((0, 3), (2, 1), (4, 0), (5, 5)):
        s = UP[x, 0] - behind / 10
        expected = sum(γ**t * (behind - t) / 10 for t in range(behind)) / scale
        assert tracker.table[x, np.abs(centers[:, 0] - s).argmin()] == pytest.approx(expected, abs=0.02)
    tracker.node = 2
    assert tracker.act(np.array([0.0])) == 4  # behind the clock: as fast as possible
    tracker.node = 2
    assert tracker.act(np.array([0.2])) == 3  # on it: as the expert
    assert tracker.node == 3
    tracker.shift, tracker.node = 3, 2
    assert tracker.act(np.array([0.0])) == 3  # the clock is put back instead
    assert tracker.node == 1


def test_prices_share_out_the_starts():
    """One demonstration is the cheapest everywhere, and by how much it is grows: its price leaves it the last third."""
    near = np.arange(30.0)
    costs = np.stack([np.full(30, 40.0), np.full(30, 45.0), np.full(30, 30.0) - near], axis=1)
    chosen = (costs - prices(costs)).argmin(axis=1)
    assert (chosen[20:] == 2).all()
    assert (chosen[:20] != 2).all()


def test_a_demonstration_that_cannot_be_followed_need_not_be():
    """At the prices of unequal shares φ = ρ log(1/n / share), the condition of optimality of unbalanced transport."""
    costs = np.random.default_rng(0).uniform([10.0, 10.0, 30.0], [12.0, 12.0, 32.0], (400, 3))
    ρ, blur = 6.0, 0.05 * costs.std()
    φ = prices(costs, ρ)
    wanted = np.exp((φ - costs) / blur)
    share = (wanted / wanted.sum(axis=1, keepdims=True)).mean(axis=0)
    assert np.allclose(φ, -ρ * np.log(3.0 * share), atol=1e-6)
    assert share[2] < 0.05
    assert share[:2].min() > 0.4


def test_a_demonstration_that_is_easy_to_follow_is_not_followed_always():
    centers, starts = np.arange(-20, 41)[:, None] / 10, np.linspace(-0.2, 0.4, 8)[:, None]

    def taken(apart, **options):
        nodes = Nodes.of(Demonstrations((UP, UP + apart), (False, False)), lambda points: points[:, :1])
        tracker = TableTracker(nodes, Known(), centers, 0.9, **options)
        return [nodes.path[tracker._match(s)] for s in starts]

    assert taken(0.3) == [0] * 8  # without prices
    assert taken(0.3, starts=starts) == [0] * 4 + [1] * 4
    assert taken(2.5, starts=starts) == [0] * 8  # too far away to be followed from any start


def test_ended_learners_are_compared_for_ever():
    nodes, γ = line_nodes(ended=True), 0.9
    there, early = UP[-1] / nodes.scale, UP[-2] / nodes.scale
    assert ending(nodes, 10, there, γ) == 0.0
    gap = 0.1 / nodes.scale[0]
    assert ending(nodes, 9, early, γ) == pytest.approx(1.0 + γ / (1 - γ) * gap)
    still = line_nodes(ended=False)
    assert ending(still, 10, there, γ) == pytest.approx(1.0 / (1 - γ))


def test_plans_follow_a_path_in_known_dynamics():
    tracker = PlanTracker(line_nodes(), Known(), 6, 0.95, rng=0)
    s, gaps = np.array([-0.2]), []
    for t in range(10):
        s = s + SPEEDS[tracker.act(s)]
        gaps.append(abs(s[0] - UP[t + 1, 0]))
    assert max(gaps[4:]) <= 0.3 + 1e-9  # the clock may be three steps late
    assert s[0] > 0.6


def test_plans_are_charged_until_the_demonstration_ends():
    """A gap that stays costs g Σ γ^t: up to the last node if the demonstration ends there, for ever if it is cut."""
    γ, gap, up = 0.9, 0.3 / UP.std(), np.full((1, 4), 3)
    for ended, steps in ((True, [9, 6, 4]), (False, [np.inf] * 3)):
        tracker = PlanTracker(line_nodes(ended), Known(), 4, γ, rng=0)
        for x, left in zip((0, 3, 5), steps, strict=True):
            value = tracker._values(np.array([x]), *tracker._imagine(UP[x] - 0.3, up))[0, 0]
            assert value == pytest.approx(gap * (1 - γ ** (left + 1)) / (1 - γ))


def test_plans_that_end_early_pay_for_the_rest():
    """Beside an expert that stays at 0, a learner that walks away by 0.2 a step and ends at 0.6 stays there."""

    class Cliff(Known):
        def terminal(self, states):
            return states[:, 0] > 0.55

    γ, still = 0.9, Nodes.of(Demonstrations((np.zeros((11, 1)),), (False,)), lambda points: points[:, :1])
    tracker = PlanTracker(still, Cliff(), 5, γ, rng=0)
    away = tracker._values(np.zeros(1, dtype=int), *tracker._imagine(np.zeros(1), np.full((1, 5), 4)))[0, 0]
    assert away == pytest.approx(0.2 + γ * 0.4 + γ**2 * 1.6 / (1 - γ))
    for _ in range(3):  # at 0.4: one step back is better than the cliff
        assert tracker.act(np.array([0.4])) < 2


def test_plans_that_have_ended_together_cost_nothing():
    class Over(Known):
        def terminal(self, states):
            return np.ones(len(states), dtype=bool)

    tracker = PlanTracker(line_nodes(ended=True), Over(), 3, 0.9, rng=0)
    imagined = tracker._imagine(np.zeros(1), np.full((1, 3), 2))
    assert tracker._values(np.array([9, 10]), *imagined).tolist() == [[0.0, 0.0]]


def test_a_lost_planner_continues_where_it_is():
    nodes = Nodes.of(Demonstrations((UP, UP + 5.0), (False, False)), lambda points: points[:, :1])
    tracker = PlanTracker(nodes, Known(), 4, 0.9, shift=0, rng=0)
    for start, following in ((0, 15), (12, 13)):  # nowhere near the first path; a little behind on the second one
        tracker.node, tracker.plan = start, np.full((1, 4), 3)
        tracker.act(np.array([5.3 if start == 0 else 5.07]))
        assert tracker.node == following


@pytest.mark.parametrize("planner", ["table", "plans"])
def test_imitation_from_a_part_of_what_is_observed(planner):
    options = Control(steps=400, rounds=2, cells=80, horizon=6, planner=planner, demonstrations=2)
    found = db.imitate(Line(), climb, discount=0.9, features=[0], sampling=options)
    own = np.array([path[-1, 0] for path in found.walk(Line(), 4, 3).paths()])
    assert np.abs(own - 1.2).max() < 0.45  # the expert ends at 1.2, give or take its start and the clock
    assert found.model_error < 0.05
    found.reset(np.zeros(2))
    assert found.act(np.zeros(2)) in range(5)


def test_interpolation_rebuilds_points_among_the_centers():
    rng = np.random.default_rng(0)
    grid = np.array([[x, y] for x in range(6) for y in range(6)], dtype=float)
    points = rng.uniform(1, 4, (50, 2))
    where, weights = Interpolation(grid)(points)
    assert np.allclose(weights.sum(axis=1), 1.0)
    assert (weights >= 0).all()
    assert np.abs((grid[where] * weights[..., None]).sum(axis=1) - points).max() < 0.2  # of cells of width 1
    assert np.abs((grid[where] * weights[..., None]).sum(axis=1) - points).mean() < 0.05


# --- cells ---------------------------------------------------------------------------------------------------------


def test_imitation_on_cells_climbs():
    options = Control(steps=400, rounds=1, cells=25, demonstrations=2)
    found = db.imitate(Line(limit=8), climb, discount=0.8, policy="markov", sampling=options)
    last = np.array([path[-1, 0] for path in found.walk(Line(limit=8), 3, 1).paths()])
    assert (last > 0.3).all()
    assert found.history[-1]["blur"] <= 0.5
    assert found.history[-1]["distance"] >= 0


def test_cells_that_blur_are_refused_with_numbers():
    class Slow(Line):
        def step(self, action):
            self.s = self.s + 0.001 * SPEEDS[action] * self.np_random.normal(size=self.d)
            return self.s.copy(), 0.0, False, False, {}

        def reset(self, **options):
            super().reset(**options)
            self.s = self.np_random.normal(size=self.d)
            return self.s.copy(), {}

    env = gymnasium.wrappers.TimeLimit(Slow(dimension=4), 20)
    paths = [np.random.default_rng(k).normal(size=(20, 4)) for k in range(2)]
    with pytest.raises(InvalidArgument, match=r"of the distance it covers in 10 steps.*tracking"):
        db.imitate(env, paths, policy="markov", sampling=Control(steps=1_200, rounds=1, cells=10))


def test_cells_that_hold_every_step_do_not_blur():
    """Multiples of 0.1 on cells that are these: the table is the line itself. On coarse cells it is not."""

    class OnGrid(Line):
        def reset(self, **options):
            super().reset(**options)
            self.s[0] = 0.0
            return self.s.copy(), {}

    seen = walk(OnGrid(dimension=1), RandomAgent(5, 0), Actions.of(Line()), 300, 0)
    fine, coarse = np.arange(-30, 31)[:, None] / 10, np.arange(-3, 4)[:, None] * 1.0
    assert blur(seen, table(Known(), fine, seen), fine, np.ones(1)) < 0.02
    assert blur(seen, table(Known(), coarse, seen), coarse, np.ones(1)) > 0.6


def test_the_expert_on_cells_ends_where_it_ended():
    chain, where = expert_chain(line_nodes(ended=True))
    assert len(where) == chain.n_states - 1
    assert chain.transition[-1, -1] == 1.0
    assert chain.occupancy(0.5)[-1] > 0


def test_paths_on_cells_of_their_own_are_counted():
    """0.0, 0.1, … 1.0, each in its cell: the chain goes from one to the next, or two on, and ends with the last."""
    cells = quantize([UP], centers=UP)
    once, twice = (chain_on(cells, [UP], [True], hold).transition for hold in (1, 2))
    following = np.minimum(np.arange(12) + 1, 11)
    following[9] = 11  # the last state has ended
    assert (once[np.arange(10), following[:10]] == 1.0).all()
    assert (twice[np.arange(10), [2, 3, 4, 5, 6, 7, 8, 9, 11, 11]] == 1.0).all()
    cut = chain_on(cells, [UP], [False]).transition
    assert cut[10].tolist() == cut[9].tolist()  # never seen to leave, nor to stay: as the nearest
    assert cut[-1, -1] == 1.0


def test_the_longest_hold_that_is_nearly_as_sharp():
    assert [longest(blurs) for blurs in ([0.3, 0.25, 0.29], [0.2, 0.3, 0.24], [0.2, 0.3, np.inf])] == [2, 2, 0]


def test_held_actions_are_steps_of_the_table():
    seen = walk(Line(dimension=1), RandomAgent(5, 0), Actions.of(Line()), 50, 0)
    fine = np.arange(-30, 31)[:, None] / 10
    twice = table(Known(), fine, seen, hold=2)
    for a in (0, 3):
        once = table(Known(), fine, seen).transition[a]
        assert np.allclose((twice.transition[a] - once @ once).toarray()[10:50], 0.0, atol=1e-3)


# --- baselines -----------------------------------------------------------------------------------------------------


def test_nearest_state_costs_the_least_of_all_nodes():
    nodes = line_nodes(ended=True)
    one = np.zeros(1, dtype=int)
    still = NearestNode(nodes.points, one, one, nodes.ended, nodes.scale, nodes.features)
    seen = np.random.default_rng(0).normal(size=(7, 1))
    for ended in (False, True):
        every = nodes.cost(np.arange(11)[:, None], seen[None], ended)
        assert np.allclose(still.cost([0], seen, ended), every.min(axis=0))


def test_baselines_run_on_the_same_steps():
    env = Line(goal=0.95, limit=20)
    for method in (nearest, constant):
        given = lesson(env)
        before = env.count
        assert method(given).steps == env.count - before == 300


@pytest.mark.parametrize("frames", [1, 2])
def test_cloning_finds_the_action_of_the_expert(frames):
    found = bco(lesson(Line(), Control(steps=600, rounds=1, demonstrations=3)), frames)
    seen = found.walk(Line(), 2, 0)
    assert (seen.actions == 3).mean() > 0.8


# --- rewards for networks ------------------------------------------------------------------------------------------


def test_rewards_are_the_cost_of_the_coupling():
    env = BicausalReward([UP], features=[0], discount=0.9).wrap(Line())
    seen, _ = env.reset(seed=0)
    assert env.observation_space.contains(seen)
    start, scale = float(seen[0]), UP.std()
    rewards = [env.step(3)[1] for _ in range(10)]
    assert np.allclose(rewards, -abs(start) / scale, atol=1e-6)  # as fast as the expert, from another start
    assert env.step(2)[4]["environment_reward"] == 1.0


def test_ending_is_no_way_out():
    """The discounted return is the same, whether a learner ends or stays where it is for ever; but for the flag."""
    env = BicausalReward([UP], features=[0], discount=0.9).wrap(gymnasium.wrappers.TimeLimit(Line(goal=0.05), 20))
    env.reset(seed=0)
    _, reward, ended, _, _ = env.step(4)
    s = env.unwrapped.s[0]
    gaps = [min(abs(s - x) / UP.std(), 2.0) + 1.0 for x in np.append(UP[1:, 0], np.ones(300))]
    assert ended
    assert reward == pytest.approx(-sum(0.9**t * gap for t, gap in enumerate(gaps)))


def test_far_is_far_enough():
    """The distance that is paid is bounded; the node is chosen by the distance itself."""
    nodes = line_nodes()
    assert watch(TrackingReward(nodes, 0.9), nodes.points[:3] + 50.0) == [-2.0, -2.0]
    shifting = TrackingReward(nodes, 0.9, shift=3)
    assert watch(shifting, nodes.points[:2] + 3.0) == [-2.0]
    assert shifting.node == 4  # three beyond the clock


def watch(score, path, ended=False):
    """The rewards of a score along (T, k) states, the first of which is the start."""
    score.reset(path[0])
    return [score.step(state, ended and k == len(path) - 2)[0] for k, state in enumerate(path[1:])]


def test_segments_cost_the_nearest_of_the_expert():
    nodes, γ = line_nodes(ended=True), 0.9
    points = nodes.points
    assert np.allclose(watch(Segments(nodes, γ, 3), points, ended=True), 0.0)
    other = np.random.default_rng(0).normal(size=(6, 1))
    flags = np.where(nodes.ended, 1.0, 0.0)
    nearest_of = [np.sqrt((s - points[:, 0]) ** 2 + flags**2).min() for s in other[1:, 0]]
    assert np.allclose(watch(Segments(nodes, γ, 1), other), np.negative(nearest_of))
    back = watch(Segments(nodes, γ, 2), points[::-1][1:])  # the same states in the other direction: both off by 0.1
    assert np.allclose(back[:-1], -0.1 / nodes.scale[0])
    early = watch(Segments(nodes, γ, 1), points[:3], ended=True)[-1]
    assert early == pytest.approx(-1.0 / (1 - γ))  # there, but ended, for ever


def test_sinkhorn_pays_what_a_transport_costs():
    rng = np.random.default_rng(0)
    C = rng.uniform(size=(6, 9))
    flow = plan(C, 0.2, 500)
    assert np.allclose(flow.sum(axis=0), 1 / 9)
    assert np.allclose(flow.sum(axis=1), 1 / 6, atol=1e-6)
    K = np.log(flow) + C / (0.2 * C.mean())  # log of u_i v_j: of rank one, which makes it the entropic optimum
    assert np.allclose(K - K[:1] - K[:, :1] + K[0, 0], 0.0, atol=1e-8)
    nodes = line_nodes(ended=False)
    score = Sinkhorn(nodes, 0.9)
    assert watch(score, nodes.points) == [0.0] * 10
    first = score.settle()
    assert first.shape == (10,)
    assert abs(first).max() < 0.5  # nearly its own transport
    watch(score, nodes.points + 5.0)
    far = nodes.points[1:].mean() + 5.0 - nodes.points.mean()  # all above all: every transport costs the same
    assert score.settle().mean() == pytest.approx(-far)
    assert len(score.settle()) == 0


def test_an_adversary_tells_the_direction():
    nodes = line_nodes()
    score = Adversary(nodes, 0.9, every=40)
    assert watch(score, nodes.points[::-1]) == [0.0] * 10  # nothing is known yet
    for _ in range(4):
        watch(score, nodes.points[::-1])
    up, down = watch(score, nodes.points), watch(score, nodes.points[::-1])
    assert min(up) > max(down) > 0.0


def test_the_reward_of_the_coupling_is_an_advantage_on_cells():
    """Centered under the learner's own steps, of size one, and the expert's step is worth more than standing still."""
    rng, nodes = np.random.default_rng(0), line_nodes(ended=True)
    score = CouplingReward(nodes, 0.9, every=60, n_cells=11)
    steps = rng.choice([0.0, 0.1], (7, 9), p=[0.7, 0.3])
    idle = [np.append(0.0, np.cumsum(row))[:, None] / nodes.scale for row in steps]
    for path in idle:
        assert watch(score, path) == [0.0] * 9  # nothing is known yet
    score.reset(nodes.points[0])
    learner = chain_on(score.cells, idle, [False] * 7)
    law = np.asarray(learner.transition)
    assert np.allclose((law * score.table).sum(axis=1), 0.0, atol=1e-9)
    assert (learner.occupancy(0.9)[:, None] * law * score.table**2).sum() == pytest.approx(1.0)
    assert 0.0 < score.value <= gaps(score.cells.centers, score.cells.centers).max()
    at = score.cells.encode(nodes.points)
    assert all(score.table[at[k], at[k + 1]] > score.table[at[k], at[k]] for k in range(3))


def test_scores_without_an_expert():
    path = np.zeros((4, 1))
    assert watch(Indifferent(0.0, -1.0), path, ended=True) == [0.0, 0.0, -1.0]
    assert watch(Indifferent(-1.0, -1.0), path) == [-1.0] * 3


@pytest.mark.parametrize("score", [TrackingReward, Sinkhorn])
def test_smoke_ppo_makes_the_steps_it_is_given(score):
    env = Line(goal=0.95, limit=20)
    given = lesson(env, Control(steps=60, demonstrations=2))
    before = env.count
    found = ppo(given, score)
    assert env.count - before == found.steps == 60
    assert found.walk(Line(), 2, 0).states.shape == (24, 2)


def test_rewards_of_any_size_are_given_unit_size():
    """Discounted sums of what comes out have standard deviation one, whatever the unit of what goes in."""
    rng, sums, total = np.random.default_rng(0), [], 0.0
    given = rng.exponential(size=4_000)
    over = rng.random(4_000) < 0.05
    found = {unit: [UnitSize(0.9)] for unit in (1e-3, 1.0, 1e3)}
    paid = {unit: [size(unit * r, end) for r, end in zip(given, over, strict=True)] for unit, (size,) in found.items()}
    assert np.allclose(paid[1.0][2_000:], paid[1e3][2_000:], rtol=1e-3)  # up to the first sum, of size one
    for reward, end in zip(paid[1.0], over, strict=True):
        total = reward + 0.9 * total
        sums.append(total)
        total *= not end
    assert np.std(sums[1_000:]) == pytest.approx(1.0, rel=0.05)


def test_odd_arguments_are_named():
    for options, message in (
        ({"policy": "sideways"}, "tracking"),
        ({"sampling": db.imitate.__globals__["Sampling"]()}, "Control"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            db.imitate(Line(), [np.hstack([UP, UP])], **options)
    with pytest.raises(InvalidArgument, match='"tracking" or "coupling"'):
        BicausalReward([UP], reward="other")
    with pytest.raises(InvalidArgument, match="planner"):
        Control(planner="best")
    with pytest.raises(InvalidArgument, match="explore"):
        Control(explore=2)


# --- options -------------------------------------------------------------------------------------------------------

BOX_OPTIONS = {
    "cost": "reward", "criterion": "average", "horizon": 5, "weights": [1.0], "terminal": [1.0], "update": "gradient",
    "attainable": True, "max_iterations": 7, "tol": 1e-3, "solver": "exact", "simplest": True, "every": 3,
}  # fmt: skip


def test_imitation_on_boxes_honors_or_refuses_every_option(tmp_path):
    """Every parameter is either refused by name or changes the run; a new one has to be entered here."""
    honored = {
        "mdp",
        "expert",
        "discount",
        "rng",
        "policy",
        "features",
        "sampling",
        "callback",
        "progress",
        "checkpoint",
    }
    assert honored | set(BOX_OPTIONS) == set(inspect.signature(db.imitate).parameters)
    how = {"features": [0], "sampling": Control(steps=90, rounds=3, cells=20)}
    for name, value in BOX_OPTIONS.items():
        with pytest.raises((db.InvalidArgument, ValueError), match=name):
            db.imitate(Line(), [UP], **{**how, name: value})
    straight, rows, seen, env = db.imitate(Line(), [UP], **how), [], [], Line()
    stopped = db.imitate(
        env, [UP], **how, checkpoint=tmp_path / "run.npz", callback=lambda row: rows.append(row) or True
    )
    assert (len(rows), len(stopped.history), env.count) == (1, 1, 30)
    again = db.imitate(env, [UP], **how, checkpoint=tmp_path / "run.npz", progress=lambda *done: seen.append(done))
    assert env.count == 90
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert again.history == straight.history
    assert np.array_equal(again.walk(Line(), 2).states, straight.walk(Line(), 2).states)
    with pytest.raises(db.InvalidData, match="discount"):
        db.imitate(Line(), [UP], **how, discount=0.8, checkpoint=tmp_path / "run.npz")
