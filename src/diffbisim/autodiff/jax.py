"""The distance as a differentiable function of JAX arrays; works under ``jit``, ``grad`` and ``vmap``.

    from diffbisim.autodiff.jax import distance

    def loss(logits):
        return distance(X, jax.nn.softmax(logits, axis=1), cost="reward", discount=0.95)

    jax.jit(jax.grad(loss))(logits)

The solver runs outside of JAX (``pure_callback``), in double precision regardless of the dtype of the arrays; the
result has the dtype of Y. The derivative is the envelope gradient (gradient.py). Only first derivatives in reverse mode
are supported.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from diffbisim.autodiff import bridge as _bridge
from diffbisim.autodiff.bridge import Kernel, KernelEntries, KernelSequence, Settings
from diffbisim.common.errors import DiffbisimError, InvalidArgument, InvalidChain, MissingExtra
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.timed import TimedChain
from diffbisim.results.base import DistanceResult

try:
    import jax
    import jax.numpy as jnp
    from jax.experimental.sparse import BCOO
except ImportError as error:  # pragma: no cover - tested in a subprocess
    raise MissingExtra("diffbisim.jax needs JAX: pip install 'diffbisim[jax]'") from error

__all__ = ["distance"]

Parts = dict[str, Any]  # arrays by name: x, y (values), places_x, places_y, start_x, start_y, cost


@_bridge.with_arguments("array", "BCOO")
def distance(
    X: Any,
    Y: Any,
    cost: Any = "reward",
    discount: float = 0.95,
    *,
    initial: Any = None,
    initial_x: Any = None,
    rewards: Any = None,
    solver: Any = None,
    tol: float | None = None,
    warm: DistanceResult | None = None,
    **asked: Any,
) -> jax.Array:
    """Compute the distance between two chains as a scalar array, or a batch of distances.

    {arguments}

    Returns
    -------
    value : array, a scalar or of shape (B,)
    """
    given = {"X": X, "Y": Y, "cost": cost, "initial": initial, "initial_x": initial_x, "rewards": rewards}
    if names := _bridge.batched(given):
        rest = {"discount": discount, "solver": solver, "tol": tol, "warm": warm, **asked}
        batch: Any = jax.vmap(lambda one: distance(**{**given, **one}, **rest))
        return jnp.asarray(batch({name: jnp.asarray(given[name]) for name in names}))
    X, Y = map(_process, (X, Y))
    _bridge.check_constants(X, Y)
    parts: Parts = {}
    shapes: dict[str, _bridge.Shapes] = {}
    for side, chain, start, other in (("x", X, initial_x, None), ("y", Y, initial, X)):
        if isinstance(chain, list):
            shapes[side] = _bridge.step_shapes(chain, side.upper())
        _add_side(parts, side, chain, start, other)
    if any(isinstance(chain, (TimedChain, list)) for chain in (X, Y)):
        _bridge.needs_table(cost)
        if isinstance(cost, (list, tuple)) and np.ndim(cost[0]) == 2:
            tables = [jnp.asarray(table) for table in cost]
            shapes["cost"], cost = _bridge.step_shapes(tables, "cost"), _joined(tables)
    if isinstance(cost, str):
        cost = _bridge.named_cost(cost, X, Y, rewards, jnp.abs, jnp.asarray)
    parts["cost"] = jnp.asarray(cost)
    dtype = next(parts[name] for name in ("y", "x", "cost") if name in parts).dtype
    run = partial(_run, X, Y, Settings(discount, solver, tol, warm, _bridge.criterion_from(asked, discount)), shapes)
    return _differentiable(run, partial(_derivatives, shapes), dtype)(parts)


def _process(chain: Any) -> Any:
    """Return chains unchanged, a kernel as an array, and the kernels of several steps as a list."""
    if isinstance(chain, (MarkovChain, TimedChain, BCOO)):
        return chain
    by_step = isinstance(chain, (list, tuple)) and bool(chain) and np.ndim(chain[0]) == 2
    wrong = InvalidArgument(f"a {type(chain).__name__} is not a kernel; give an array or a chain")
    if chain is None:  # older versions of JAX make it NaN
        raise wrong
    try:
        return list(map(jnp.asarray, chain)) if by_step else jnp.asarray(chain)
    except (TypeError, ValueError):
        raise wrong from None


def _joined(tables: Any) -> jax.Array:
    return jnp.concatenate([table.reshape(-1) for table in tables])


def _differentiable(
    run: Callable[[Parts], DistanceResult], derivatives: Callable[[DistanceResult, Parts], Parts], dtype: Any
) -> Callable[[Parts], jax.Array]:
    """Return a function of the parts whose value and derivative are computed by callbacks."""
    shaped: Any = jax.ShapeDtypeStruct
    scalar = shaped((), dtype)

    faults: list[DiffbisimError] = []

    def solution(parts: Parts) -> DistanceResult:
        try:
            return run(parts)
        except DiffbisimError as fault:
            faults.append(fault)
            raise

    def value(parts: Parts) -> Any:
        return np.asarray(solution(parts).value, dtype=dtype)

    def value_and_derivative(parts: Parts) -> Any:
        result = solution(parts)
        return np.asarray(result.value, dtype=dtype), derivatives(result, parts)

    @jax.custom_vjp
    def d(parts: Parts) -> Any:
        return jax.pure_callback(value, scalar, parts, vmap_method="sequential")

    # Second derivatives end up here; without this JAX would raise an error about callbacks.
    @jax.custom_jvp
    def with_derivative(parts: Parts) -> Any:
        learned = {k: shaped(v.shape, v.dtype) for k, v in parts.items() if _floating(v)}
        return jax.pure_callback(value_and_derivative, (scalar, learned), parts, vmap_method="sequential")

    @with_derivative.defjvp
    def raise_for_second_derivative(parts: Any, tangents: Any) -> Any:
        raise InvalidArgument(_bridge.ONCE)

    def backward(derivative: Parts, seed: Any) -> tuple[Parts]:
        pulled = {k: (seed * v).astype(v.dtype) for k, v in derivative.items()}
        return ({k: pulled.get(k) for k in names},)

    names: list[str] = []

    def call(parts: Parts) -> jax.Array:
        names[:] = list(parts)
        try:
            out: jax.Array = d(parts)
        except Exception:  # outside of jit, JAX wraps the errors of a callback in one of its own
            if faults:
                raise faults.pop() from None
            raise
        return out

    d.defvjp(with_derivative, backward)
    return call


def _run(X: Any, Y: Any, settings: Settings, shapes: dict[str, _bridge.Shapes], parts: Parts) -> DistanceResult:
    x = X if "x" not in parts else _bridge.make_chain(_kernel(parts, "x", shapes), _start(parts, "x"), "X")
    y = Y if "y" not in parts else _bridge.make_chain(_kernel(parts, "y", shapes), _start(parts, "y"), "Y")
    cost: Any = np.asarray(parts["cost"], dtype=np.float64)
    return _bridge.solve(x, y, _bridge.pieces(cost, shapes["cost"]) if "cost" in shapes else cost, settings)


def _derivatives(shapes: dict[str, _bridge.Shapes], result: DistanceResult, parts: Parts) -> Parts:
    """Return the derivatives by name, in the dtype of each part."""
    found: Parts = {"cost": _bridge.joined(result.gradient.cost, shapes.get("cost"))}
    for side in "xy":
        if side in parts:
            found[side] = _bridge.kernel_derivative(result, side, _kernel(parts, side, shapes))
        if _floating(parts.get(f"start_{side}")):
            found[f"start_{side}"] = _bridge.start_derivative(result, side, _start(parts, side))
    return {k: np.asarray(v, dtype=parts[k].dtype) for k, v in found.items()}


def _kernel(parts: Parts, side: str, shapes: dict[str, _bridge.Shapes]) -> Kernel:
    values = np.asarray(parts[side], dtype=np.float64)
    if side in shapes:
        return KernelSequence(_bridge.pieces(values, shapes[side]))
    if f"places_{side}" not in parts:
        return values
    rows, columns = np.asarray(parts[f"places_{side}"]).T.astype(np.int64)
    return KernelEntries(values, rows, columns, len(np.asarray(parts[f"start_{side}"])))


def _start(parts: Parts, side: str) -> Any:
    return np.asarray(parts[f"start_{side}"], dtype=np.float64)


def _add_side(parts: Parts, side: str, chain: Any, initial: Any, other: Any) -> None:
    """Add the arrays of one chain to ``parts``; a MarkovChain has none."""
    name = side.upper()
    if isinstance(chain, (MarkovChain, TimedChain)):
        _bridge.no_start(initial, name)
        return
    if isinstance(chain, BCOO):
        if chain.n_batch or chain.n_dense:
            raise InvalidArgument(f"{name} is a BCOO array with batch or dense dimensions; use n_batch=n_dense=0")
        parts[side], parts[f"places_{side}"] = chain.data, chain.indices
    elif isinstance(chain, list):
        parts[side] = _joined(chain)
    elif chain.ndim != 2 or chain.shape[0] != chain.shape[1] or chain.size == 0:
        raise InvalidChain(f"{name} has shape {chain.shape}; it must be square, (n_states, n_states), and not empty")
    else:
        parts[side] = chain
    n = chain[0].shape[0] if isinstance(chain, list) else chain.shape[0]
    start = _bridge.default_start(other, n) if initial is None else initial
    if np.ndim(start) == 0:
        start = jnp.zeros(n, parts[side].dtype).at[start].set(1.0)
    parts[f"start_{side}"] = jnp.asarray(start)


def _floating(value: Any) -> bool:
    return value is not None and bool(jnp.issubdtype(value.dtype, jnp.floating))
