"""The bridge to torch: against finite differences (gradcheck), the core, and itself in other layouts."""

import subprocess
import sys
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

import diffbisim as db
from cases import each
from diffbisim.solvers import Exact
from diffbisim.torch import distance, distance_and_result

TIGHT = {"discount": 0.8, "tol": 1e-13}
gradcheck = torch.autograd.gradcheck


def tensor(array):
    return torch.tensor(np.array(array), dtype=torch.float64, requires_grad=True)


@pytest.fixture
def parts():
    """Kernels, starts and cost of two random chains, positive everywhere, so that nothing is near a kink."""
    rng = np.random.default_rng(3)
    kernels = [rng.dirichlet(np.full(n, 2.0), size=n) for n in (4, 3)]
    starts = [rng.dirichlet(np.full(n, 2.0)) for n in (4, 3)]
    return [tensor(a) for a in (*kernels, *starts, rng.random((4, 3)) + 0.1)]


def of_parts(P_x, P_y, nu_x, nu_y, c):
    return distance(P_x, P_y, c, initial_x=nu_x, initial=nu_y, **TIGHT)


def test_gradcheck_in_both_kernels_both_starts_and_the_cost(parts):
    assert gradcheck(of_parts, parts)


@pytest.mark.parametrize("discount", [0.5, 0.95, 0.999])
@each(seed=range(8))
def test_gradcheck_passes_with_the_defaults_of_both_sides(seed, discount):
    rng = np.random.default_rng([5, seed])
    X = db.MarkovChain(rng.dirichlet(np.ones(4), 4), initial=rng.dirichlet(np.ones(4)), rewards=rng.random(4))
    logits, rewards = tensor(rng.normal(size=(3, 3))), tensor(rng.random(3))
    assert gradcheck(lambda t, r: distance(X, torch.softmax(t, 1), discount=discount, rewards=r), (logits, rewards))


def test_where_digits_end_the_default_has_converged_and_does_not_warn():
    """At a discount of 1 - 1e-5 rounding alone is above 1e-10 of the largest cost, and below the 1e-8 of the core."""
    X, P = db.MarkovChain([[0.5, 0.5], [0.25, 0.75]], rewards=[0, 1]), tensor([[0.5, 0.5], [0.5, 0.5]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, result = distance_and_result(X, P, discount=1 - 1e-5)
    assert result.converged
    assert 1e-10 < result.gap <= 1e-8


# --- second derivatives: nobody has them, so nobody gets a zero for them ---------------------------------------


def _double_backward(f, t):
    (g,) = torch.autograd.grad(f(t), t, create_graph=True)
    return torch.autograd.grad(g.pow(2).sum(), t)


def _backward_twice(f, t):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on create_graph
        f(t).backward(create_graph=True)
    g, t.grad = t.grad, None
    g.pow(2).sum().backward()


SECOND = {
    "hessian": lambda f, t: torch.autograd.functional.hessian(f, t),
    "vectorized": lambda f, t: torch.autograd.functional.hessian(f, t, vectorize=True),
    "forward over reverse": lambda f, t: torch.autograd.functional.hessian(
        f, t, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "hvp": lambda f, t: torch.autograd.functional.hvp(f, t, torch.ones_like(t)),
    "vhp": lambda f, t: torch.autograd.functional.vhp(f, t, torch.ones_like(t)),
    "double backward": _double_backward,
    "backward twice": _backward_twice,
    "gradgradcheck": lambda f, t: torch.autograd.gradgradcheck(f, t),
    "func.hessian": lambda f, t: torch.func.hessian(f)(t.detach()),
    "func.jacrev": lambda f, t: torch.func.jacrev(torch.func.jacrev(f))(t.detach()),
    "func.grad": lambda f, t: torch.func.grad(lambda s: torch.func.grad(f)(s).pow(2).sum())(t.detach()),
}


@pytest.mark.parametrize("way", SECOND)
@pytest.mark.parametrize("inner", ["softmax", "identity"])
@pytest.mark.parametrize("solver", ["exact", db.solvers.SinkhornPolicy(epsilon=0.5)], ids=["exact", "entropic"])
def test_second_derivatives_are_refused(way, inner, solver):
    """Zero would be wrong: for the entropic metric, differences of the gradient are not."""
    X = db.examples.random_chain(3, 0)
    P = np.random.default_rng(0).dirichlet(np.ones(3), 3)

    def f(t):
        return distance(X, torch.softmax(t, 1) if inner == "softmax" else t, discount=0.8, solver=solver)

    with pytest.raises(db.InvalidArgument, match=r"first derivatives only|reverse mode"):
        SECOND[way](f, tensor(np.log(P) if inner == "softmax" else P))


def test_second_derivatives_in_the_cost_are_refused_too():
    X = db.examples.random_chain(3, 0)
    c = tensor(np.random.default_rng(1).random((3, 3)))
    with pytest.raises(db.InvalidArgument, match="first derivatives only"):
        torch.autograd.functional.hessian(lambda c: distance(X, X, c) ** 2, c)


def test_directional_derivative_by_two_backward_passes():
    """torch.autograd.functional.jvp differentiates the gradient in its seed only: <gradient, direction>."""
    X, rng = db.examples.random_chain(3, 0), np.random.default_rng(2)
    t, v = tensor(rng.normal(size=(3, 3))), torch.tensor(rng.normal(size=(3, 3)))

    def f(t):
        return distance(X, torch.softmax(t, 1), **TIGHT)

    _, slope = torch.autograd.functional.jvp(f, t, v)
    f(t).backward()
    assert slope.item() == pytest.approx((t.grad * v).sum().item(), abs=1e-14)
    assert abs(slope.item()) > 1e-3


def test_functional_gradient_is_the_gradient():
    X, t = db.examples.random_chain(3, 0), tensor(np.random.default_rng(2).normal(size=(3, 3)))

    def f(t):
        return distance(X, torch.softmax(t, 1), **TIGHT)

    f(t).backward()
    torch.testing.assert_close(torch.func.grad(f)(t.detach()), t.grad, rtol=0, atol=1e-14)


def test_value_and_gradient_are_the_cores(parts):
    P_x, P_y, nu_x, nu_y, c = (part.detach().numpy() for part in parts)
    result = db.distance(db.MarkovChain(P_x, initial=nu_x), db.MarkovChain(P_y, initial=nu_y), c, **TIGHT)
    value = of_parts(*parts)
    value.backward()
    assert value.item() == pytest.approx(result.value, abs=1e-12)
    exact = result.gradient
    for part, known in zip(parts, ("transition_x", "transition_y", "initial_x", "initial_y", "cost"), strict=True):
        assert np.allclose(part.grad.numpy(), getattr(exact, known), atol=1e-10)


def test_gradcheck_through_softmax_and_rewards():
    X = db.examples.random_chain(5, 1)
    rng = np.random.default_rng(0)
    logits, rewards, start = tensor(rng.normal(size=(3, 3))), tensor(rng.random(3)), tensor(rng.normal(size=3))

    def model(logits, rewards, start):
        P, nu = torch.softmax(logits, dim=1), torch.softmax(start, dim=0)
        return distance(X, P, "reward", rewards=rewards, initial=nu, **TIGHT)

    assert gradcheck(model, (logits, rewards, start))


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_kernels_are_the_dense_ones_on_their_support(layout):
    X = db.examples.random_sparse_chain(12, 3, rng=0)
    dense = tensor(db.examples.random_sparse_chain(12, 3, rng=1).transition.toarray())
    plain = distance(X, dense, initial=2, **TIGHT)
    plain.backward()
    stored = dense.detach().to_sparse_coo() if layout == "coo" else dense.detach().to_sparse_csr()
    stored.requires_grad_()
    value = distance(X, stored, initial=2, **TIGHT)
    value.backward()
    assert value.item() == pytest.approx(plain.item(), abs=1e-12)
    support = dense.detach() > 0
    assert stored.grad.layout == stored.layout
    assert torch.allclose(stored.grad.to_dense()[support], dense.grad[support], atol=1e-10)


def test_gradcheck_in_the_values_of_a_sparse_kernel():
    X = db.examples.random_sparse_chain(8, 3, rng=0)
    places = torch.tensor(np.array(db.examples.random_sparse_chain(8, 2, rng=1).transition.nonzero()))
    logits = tensor(np.random.default_rng(0).normal(size=(8, 2)))

    def model(logits):
        values = torch.softmax(logits, dim=1).ravel()
        return distance(X, torch.sparse_coo_tensor(places, values, (8, 8)), **TIGHT)

    assert gradcheck(model, (logits,))


def test_stored_zeros_get_the_derivative_of_mass_that_enters():
    X, h = db.examples.random_chain(3, 5), 1e-6
    data = [0.4, 0.6, 0.0, 1.0, 0.5, 0.5]
    places = torch.tensor([[0, 0, 0, 1, 2, 2], [0, 1, 2, 0, 1, 2]])

    def at(values):
        return distance(X, torch.sparse_coo_tensor(places, values, (3, 3)), **TIGHT)

    values = tensor(data)
    at(values).backward()
    entering = torch.tensor([-h, 0.0, h, 0.0, 0.0, 0.0], dtype=torch.float64)
    difference = (at(values + entering) - at(values)).item() / h
    assert (values.grad[2] - values.grad[0]).item() == pytest.approx(difference, abs=1e-5)


def test_single_precision_outside_double_inside(parts):
    single = [part.detach().to(torch.float32).requires_grad_() for part in parts]
    value, result = distance_and_result(*single[:2], single[4], initial_x=single[2], initial=single[3], **TIGHT)
    value.backward()
    assert value.dtype == torch.float32
    assert result.gap <= 1e-12
    of_parts(*parts).backward()
    for one, two in zip(single, parts, strict=True):
        assert one.grad.dtype == torch.float32
        assert torch.allclose(one.grad.double(), two.grad, atol=1e-5)


def test_warm_start_gives_the_same_and_saves_work():
    X, Y = db.examples.random_chain(20, 0), torch.tensor(np.array(db.examples.random_chain(20, 1).transition))
    cold, result = distance_and_result(X, Y)
    again, warm = distance_and_result(X, Y, warm=result)
    assert again.item() == pytest.approx(cold.item(), abs=1e-8)
    assert warm.iterations < result.iterations


def test_any_solver(parts):
    exact = of_parts(*parts).item()
    P_x, P_y, nu_x, nu_y, c = parts
    value = distance(P_x, P_y, c, initial_x=nu_x, initial=nu_y, discount=0.8, solver="lp")
    value.backward()
    assert value.item() == pytest.approx(exact, abs=1e-8)
    assert P_y.grad is not None


def test_a_name_is_the_same_solver_as_everywhere():
    """And what says what is computed is passed on, so that a bridge refuses it as ``distance`` does."""
    X, Y = (db.examples.random_chain(4, seed) for seed in (0, 1))
    P, cost = torch.tensor(np.array(Y.transition)), np.abs(X.rewards[:, None] - Y.rewards)
    named, made, usual = (distance_and_result(X, P, cost, 0.9, solver=s)[1] for s in ("exact", Exact(), None))
    assert (named.value, named.upper, named.work) == (made.value, made.upper, made.work)
    assert usual.gap <= 1e-10 * cost.max()
    with pytest.raises(db.InvalidArgument, match="criterion 'mean' is unknown"):
        distance(X, P, cost, criterion="mean")


def test_indicator_and_default_start():
    mdp = db.examples.imitation_chain()
    X = mdp.induced_chain(db.examples.soft_right_policy(mdp, 0.4))
    P = torch.full((5, 5), 0.2, dtype=torch.float64)
    known = db.distance(X, db.MarkovChain(P.numpy(), initial=X.initial, names=X.names), "indicator", 0.9).value
    assert distance(X, P, "indicator", 0.9).item() == pytest.approx(known, abs=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, P: distance(X, P * 2), "row 0 of Y sums to 2"),
        (lambda X, P: distance(X, P[:2], torch.ones(3, 2)), "must be square"),
        (lambda X, P: distance(X, P.numpy()), "no argument is a floating-point tensor"),
        (lambda X, P: distance(X, P[:2, :2] / P[:2, :2].sum(1, keepdim=True)), "rewards of the 2 states of Y"),
        (lambda X, P: distance(X, P, "other"), "is unknown"),
        (lambda X, P: distance(X, P, initial_x=0), "with its own initial distribution"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call, message):
    X = db.examples.random_chain(3, 0)
    with pytest.raises(db.DiffbisimError, match=message):
        call(X, torch.tensor(np.array(X.transition)))


WITHOUT = """
import sys
for name in ("torch", "jax", "stable_baselines3"):
    sys.modules[name] = None  # cannot be imported
import diffbisim as db
from diffbisim.processes.environments import as_env
from diffbisim.learning.imitate.environment import Sampling

X = db.examples.cycle(2)
for call in ("import diffbisim.torch", "import diffbisim.jax", "db.fit(X, object())"):
    try:
        exec(call)
    except db.MissingExtra as error:
        print(error)
how = Sampling(steps=60, rounds=1, resets=1, iterations=1)
env = as_env(db.examples.imitation_chain())
found = db.imitate(env, [[0, 1, 2, 3, 4]], discount=0.9, sampling=how, max_iterations=1)
print(db.distance(X, X).value, found.policy.shape, db.compress(db.examples.block_chain(2, 2), 2).chain.n_states)
"""


def test_a_missing_extra_says_what_to_install_and_breaks_nothing_else():
    """Distances, imitation with tables, and compression need neither torch nor JAX."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *remedies, answers = done.stdout.splitlines()
    for remedy, extra in zip(remedies, ("torch", "jax", "torch"), strict=True):
        assert f"pip install 'diffbisim[{extra}]'" in remedy
    assert answers == "0.0 (5, 4) 2"


@pytest.mark.parametrize("asked", [{"horizon": 3, "discount": 0.9}, {"weights": [0.0, 0.0, 1.0]}])
def test_finite_horizons_are_differentiated_too(asked):
    rng = np.random.default_rng(3)
    P, Q = (torch.tensor(rng.dirichlet(np.ones(n), size=n), requires_grad=True) for n in (3, 2))
    c = torch.tensor(rng.random((3, 2)), requires_grad=True)

    def value(P, Q, c):
        return distance(P, Q, c, initial=0, initial_x=0, **asked)

    assert torch.autograd.gradcheck(value, (P, Q, c))


def timed_parts():
    """Kernels of two processes over three steps whose numbers of states change, and costs by time."""
    rng = np.random.default_rng(5)
    sizes = (2, 3, 2, 4), (3, 2, 2, 3)
    kernels = [[rng.dirichlet(2 * np.ones(m), n) for n, m in pairwise(s)] for s in sizes]
    return *kernels, [rng.random(shape) for shape in zip(*sizes, strict=True)], rng.dirichlet(np.ones(3))


def test_gradcheck_through_a_kernel_for_every_step():
    """In all kernels of both sides, in the costs of all times and in a start; the value is that of the core."""
    Ps, Qs, costs, start = timed_parts()
    flat = [tensor(a) for a in (*Ps, *Qs, *costs, start)]

    def of(*parts):
        how = {"initial": parts[10], "initial_x": 1, "weights": [1.0, 0.5, 0.0, 2.0]}
        return distance(parts[:3], list(parts[3:6]), list(parts[6:10]), **how)

    assert torch.autograd.gradcheck(of, flat)
    X, Y = db.TimedChain(Ps, initial=1), db.TimedChain(Qs, initial=start)
    known = db.distance(X, Y, costs, weights=[1.0, 0.5, 0.0, 2.0])
    assert of(*flat).item() == pytest.approx(known.value, abs=1e-12)


def test_a_constant_process_over_steps_against_one_kernel():
    """A TimedChain does not move; the other side is the same at every step, and so is its cost."""
    rng = np.random.default_rng(6)
    X = db.TimedChain([rng.dirichlet(np.ones(3), 3) for _ in range(3)])
    P, C = (tensor(a) for a in (rng.dirichlet(np.ones(2), 2), rng.random((3, 2))))
    assert torch.autograd.gradcheck(lambda P, C: distance(X, P, C, discount=0.7), (P, C))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda P: distance([P, P], P, "reward"), "cost 'reward' is not available with one kernel per step"),
        (lambda P: distance([P[0], P[1]], P, np.eye(2)), "X is a list, but not of dense two-dimensional tables"),
        (lambda P: distance([P, 2 * P], P, np.eye(2)), r"row 0 of X\[1\] sums to 2"),
        (lambda P: distance([P, P], P, [np.eye(2)] * 2), "cost has 2 tables; give one for each of the 3 times"),
        (lambda P: distance([P, P], P, np.eye(2), criterion="average"), "a TimedChain is finite"),
    ],
)
def test_errors_of_kernels_for_every_step(call, message):
    with pytest.raises(db.DiffbisimError, match=message):
        call(tensor([[0.5, 0.5], [0.2, 0.8]]))


def test_a_batch_is_the_loop_with_its_gradients():
    rng = np.random.default_rng(11)
    kernels = torch.tensor(rng.dirichlet(np.ones(4), (3, 4)), requires_grad=True)
    costs = torch.tensor(rng.random((3, 4, 4)), requires_grad=True)
    X = db.MarkovChain(rng.dirichlet(np.ones(4), 4))
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    whole = distance(X, kernels, costs)
    looped = torch.stack([distance(X, P, c) for P, c in zip(kernels, costs, strict=True)])
    assert torch.equal(whole, looped)
    for one, other in zip(*(torch.autograd.grad(weights @ d, (kernels, costs)) for d in (whole, looped)), strict=True):
        assert torch.equal(one, other)
    both = distance(kernels, kernels.flip(0), costs[0])
    assert torch.equal(both, torch.stack([distance(kernels[b], kernels[2 - b], costs[0]) for b in range(3)]))
    with pytest.raises(db.InvalidArgument, match="batches differ in size: Y of 3, cost of 2"):
        distance(X, kernels, costs[:2])


def of_logits(t):
    return distance(db.examples.random_chain(4, 0), torch.softmax(t, -1), **TIGHT)


BATCHED = {
    "vmap of grad": torch.func.vmap(torch.func.grad(of_logits)),
    "grad of vmap": torch.func.grad(lambda t: torch.func.vmap(of_logits)(t).sum()),
    "jacrev of vmap": lambda t: torch.func.jacrev(torch.func.vmap(of_logits))(t).sum(0),
    "nested": lambda t: torch.func.vmap(torch.func.vmap(torch.func.grad(of_logits)))(t[None])[0],
    "another axis": lambda t: torch.func.vmap(torch.func.grad(of_logits), 1)(t.movedim(0, 1)),
}


def test_vmap_is_the_loop_with_its_gradients():
    """Values and derivatives to the bit; what is not in the batch stands for all."""
    t = torch.tensor(np.random.default_rng(7).normal(size=(3, 4, 4)))
    assert torch.equal(torch.func.vmap(of_logits)(t), torch.stack([of_logits(one) for one in t]))
    gradients = torch.stack([torch.func.grad(of_logits)(one) for one in t])
    for way, batched in BATCHED.items():
        assert torch.equal(batched(t), gradients), way
    with pytest.raises(db.InvalidArgument, match="reverse mode"):
        torch.func.vmap(torch.func.hessian(of_logits))(t)
    with pytest.raises(db.InvalidArgument, match=r"under torch.func.vmap there is no single result"):
        torch.func.vmap(lambda P: distance_and_result(db.examples.random_chain(4, 0), P)[0])(torch.softmax(t, -1))


def test_compiled_without_a_break_it_is_what_it_was():
    """In kernel, rewards and start, and as a batch, whose size becomes a symbol; another chain is another graph."""
    solver, rng = db.solvers.SinkhornPolicy(epsilon=0.5), np.random.default_rng(1)

    def loss(X, t, rewards, start):
        P, nu = torch.softmax(t, -1), torch.softmax(start, -1)
        return distance(X, P, rewards=rewards, initial=nu, discount=0.8, solver=solver).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    given = [tensor(rng.normal(size=shape)) for shape in ((4, 4), (4,), (4,))]
    for X, batch in ((db.examples.random_chain(4, 0), ()), (db.examples.random_chain(4, 1), (2,))):
        parts = [given[0].expand(*batch, 4, 4), *given[1:]]
        ours, plain = compiled(X, *parts), loss(X, *parts)
        assert torch.equal(ours, plain)
        pairs = zip(torch.autograd.grad(ours, given), torch.autograd.grad(plain, given), strict=True)
        assert all(torch.allclose(one, other, rtol=0, atol=1e-15) for one, other in pairs)


def soft_transport(p, q, C, reg):
    """min <π, C> + reg KL(π ‖ p⊗q), by plain Sinkhorn iterations on logarithms."""
    f, g = torch.zeros_like(p), torch.zeros_like(q)
    for _ in range(300):
        f = -reg * torch.logsumexp((g - C) / reg + q.log(), 1)
        g = -reg * torch.logsumexp((f[:, None] - C) / reg + p.log()[:, None], 0)
    return p @ f + q @ g


def test_the_discounted_weisfeiler_lehman_distance_is_the_entropic_one():
    """ot-markov-distances iterates C ← δ c + (1-δ) OT_reg(C): discount = 1 - δ, epsilon = reg / δ."""
    rng, reg, delta = np.random.default_rng(2), 0.1, 0.6
    shapes = ((3, 3), (2, 2), (3,), (2,))
    P, Q, nu, mu = (torch.tensor(rng.dirichlet(np.ones(shape[-1]), shape[:-1])) for shape in shapes)
    c = C = torch.tensor(rng.random((3, 2)))
    for _ in range(20):  # 0.4 ** 20 = 1e-8
        steps = torch.stack([torch.stack([soft_transport(p, q, C, reg) for q in Q]) for p in P])
        C = delta * c + (1 - delta) * steps
    solver = db.solvers.SinkhornPolicy(epsilon=reg / delta)
    ours = distance(P, Q, c, 1 - delta, initial_x=nu, initial=mu, solver=solver)
    assert ours.item() == pytest.approx(soft_transport(nu, mu, C, reg).item(), abs=1e-7)
