"""The bridge to JAX: against finite differences (check_grads) and the core, under jit, grad and vmap."""

import numpy as np
import pytest

import diffbisim as db
from later import Later

jax, jnp, sparse, test_util = map(Later, ("jax", "jax.numpy", "jax.experimental.sparse", "jax.test_util"))
ours = Later("diffbisim.jax")

TIGHT = {"discount": 0.8, "tol": 1e-13}


@pytest.fixture
def double():
    before = jax.config.jax_enable_x64  # jax.enable_x64 is a context only in later versions
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def random_parts():
    rng = np.random.default_rng(3)
    kernels = [rng.dirichlet(np.full(n, 2.0), size=n) for n in (4, 3)]
    starts = [rng.dirichlet(np.full(n, 2.0)) for n in (4, 3)]
    return (*kernels, *starts, rng.random((4, 3)) + 0.1)


def of_parts(P_x, P_y, nu_x, nu_y, c):
    return ours.distance(P_x, P_y, c, initial_x=nu_x, initial=nu_y, **TIGHT)


def test_check_grads_in_both_kernels_both_starts_and_the_cost(double):
    test_util.check_grads(
        of_parts, tuple(map(jnp.asarray, random_parts())), order=1, modes=["rev"], atol=1e-6, rtol=1e-6
    )


def test_jitted_gradient_is_the_cores(double):
    P_x, P_y, nu_x, nu_y, c = random_parts()
    exact = db.distance(db.MarkovChain(P_x, initial=nu_x), db.MarkovChain(P_y, initial=nu_y), c, **TIGHT)
    value, found = jax.jit(jax.value_and_grad(of_parts, argnums=(0, 1, 2, 3, 4)))(P_x, P_y, nu_x, nu_y, c)
    assert float(value) == pytest.approx(exact.value, abs=1e-12)
    g = exact.gradient
    for one, two in zip(found, (g.transition_x, g.transition_y, g.initial_x, g.initial_y, g.cost), strict=True):
        assert np.allclose(one, two, atol=1e-10)


def test_softmax_model_of_a_chain_with_learned_rewards(double):
    X = db.examples.random_chain(5, 1)
    rng = np.random.default_rng(0)

    def model(logits, rewards):
        return ours.distance(X, jax.nn.softmax(logits, axis=1), "reward", rewards=rewards, initial=1, **TIGHT)

    test_util.check_grads(
        model, (jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(rng.random(3))), 1, ["rev"], 1e-6, 1e-6
    )


def test_sparse_kernel_is_the_dense_one_on_its_support(double):
    X, Y = (db.examples.random_sparse_chain(10, 3, rng=k) for k in (0, 1))
    dense = jnp.asarray(Y.transition.toarray())
    known, G = jax.value_and_grad(lambda P: ours.distance(X, P, **TIGHT))(dense)
    stored = sparse.BCOO.fromdense(dense)
    loss = jax.jit(
        jax.value_and_grad(lambda data: ours.distance(X, sparse.BCOO((data, stored.indices), shape=(10, 10)), **TIGHT))
    )
    value, g = loss(stored.data)
    assert float(value) == pytest.approx(float(known), abs=1e-12)
    assert np.allclose(g, G[stored.indices[:, 0], stored.indices[:, 1]], atol=1e-10)


def test_vmap_is_the_loop(double):
    X = db.examples.random_chain(3, 0)
    kernels = np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 3))
    looped = [float(ours.distance(X, P, **TIGHT)) for P in kernels]
    assert np.allclose(jax.vmap(lambda P: ours.distance(X, P, **TIGHT))(kernels), looped, atol=1e-12)


SECOND = {
    "hessian": jax.hessian,
    "jitted": lambda f: jax.jit(jax.hessian(f)),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f)),
    "grad of grad": lambda f: jax.grad(lambda t: (jax.grad(f)(t) ** 2).sum()),
    "linearize": lambda f: lambda t: jax.linearize(jax.grad(f), t),
}


@pytest.mark.parametrize("way", SECOND)
@pytest.mark.parametrize("solver", ["exact", db.solvers.SinkhornPolicy(epsilon=0.5)], ids=["exact", "entropic"])
def test_second_derivatives_are_refused(double, way, solver):
    X, logits = db.examples.random_chain(3, 0), jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))

    def f(t):
        return ours.distance(X, jax.nn.softmax(t, axis=1), discount=0.8, solver=solver)

    with pytest.raises(db.InvalidArgument, match="first derivatives only"):
        SECOND[way](f)(logits)


def test_single_precision_outside_double_inside():
    X = db.examples.random_chain(4, 0)
    P = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(4), size=4), dtype=jnp.float32)
    value, g = jax.jit(jax.value_and_grad(lambda P: ours.distance(X, P, discount=0.8)))(P)
    exact = db.distance(X, db.MarkovChain(np.asarray(P), rewards=X.rewards), discount=0.8)
    assert value.dtype == g.dtype == jnp.float32
    assert float(value) == pytest.approx(exact.value, abs=1e-6)
    assert np.allclose(g, exact.gradient.transition_y, atol=1e-5)


def test_errors_name_the_argument_and_the_remedy():
    X = db.examples.random_chain(3, 0)
    with pytest.raises(db.DiffbisimError, match="rewards of the 2 states"):
        ours.distance(X, jnp.eye(2))
    with pytest.raises(Exception, match="row 0 of Y sums to 2"):  # compiled: JAX wraps the error
        jax.jit(lambda P: ours.distance(X, P))(2 * jnp.eye(3)).block_until_ready()
    wrong = [
        (lambda: ours.distance(X, 2 * jnp.eye(3)), "row 0 of Y sums to 2"),
        (lambda: jax.grad(lambda P: ours.distance(X, P))(2 * jnp.eye(3)), "row 0 of Y sums to 2"),
        (lambda: ours.distance(X, jnp.eye(3), jnp.ones((2, 3))), r"cost has shape \(2, 3\)"),
        (lambda: ours.distance(X, jnp.zeros((0, 0)), jnp.ones((3, 0))), r"Y has shape \(0, 0\); it must be square"),
        (lambda: ours.distance(X, None), "a NoneType is not a kernel"),
        (lambda: ours.distance(X, jnp.eye(3), lump=True), "has no option 'lump'"),
    ]
    for call, message in wrong:
        with pytest.raises(db.DiffbisimError, match=message):
            call()


def test_nested_lists_are_kernels():
    X = db.MarkovChain([[0.9, 0.1], [0.5, 0.5]], rewards=[0, 1])
    kernel = [[0.8, 0.2], [0.4, 0.6]]
    expected = db.distance(X, db.MarkovChain(kernel, rewards=[0, 1])).value
    assert float(ours.distance(X, kernel)) == pytest.approx(expected, rel=1e-5)


def test_check_grads_through_a_kernel_for_every_step(double):
    """Numbers of states change, and so do the costs; the value is that of the core, jitted."""
    rng = np.random.default_rng(5)
    Ps = [rng.dirichlet(2 * np.ones(m), n) for n, m in ((2, 3), (3, 2))]
    Qs = [rng.dirichlet(2 * np.ones(m), n) for n, m in ((3, 2), (2, 2))]
    costs = [rng.random(shape) for shape in ((2, 3), (3, 2), (2, 2))]

    def of(Ps, Qs, costs):
        return ours.distance(Ps, Qs, costs, weights=[1.0, 0.5, 2.0])

    test_util.check_grads(of, (Ps, Qs, costs), order=1, modes=("rev",))
    known = db.distance(db.TimedChain(Ps), db.TimedChain(Qs), costs, weights=[1.0, 0.5, 2.0])
    assert float(jax.jit(of)(Ps, Qs, costs)) == pytest.approx(known.value, abs=1e-12)
    slopes = jax.grad(of)(list(map(jnp.asarray, Ps)), Qs, costs)
    for slope, of_core in zip(slopes, known.gradient.transition_x, strict=True):
        np.testing.assert_allclose(slope, of_core, rtol=0, atol=1e-9)
    with pytest.raises(db.InvalidArgument, match="is not available with one kernel per step"):
        ours.distance(db.TimedChain(Ps), Qs, "reward")


def test_a_batch_is_the_loop_with_its_gradients(double):
    rng = np.random.default_rng(12)
    kernels, costs = jnp.asarray(rng.dirichlet(np.ones(3), (2, 3))), jnp.asarray(rng.random((2, 3, 3)))
    X, weights = db.MarkovChain(rng.dirichlet(np.ones(3), 3)), jnp.asarray([1.0, -2.0])

    def whole(P, c):
        return weights @ ours.distance(X, P, c)

    def looped(P, c):
        return sum(w * ours.distance(X, P_b, c_b) for w, P_b, c_b in zip(weights, P, c, strict=True))

    assert ours.distance(X, kernels, costs).shape == (2,)
    for one, other in zip(*(jax.grad(f, (0, 1))(kernels, costs) for f in (whole, looped)), strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-14)
