"""The distance as a differentiable function of PyTorch tensors.

    from diffbisim.autodiff.torch import distance

    P = torch.softmax(logits, dim=1)                       # any computation that ends in stochastic rows
    d = distance(X, P, cost="reward", discount=0.95)       # X is a MarkovChain or another tensor
    d.backward()

The forward pass runs a solver in double precision; the backward pass uses the envelope gradient (gradient.py), so
nothing is unrolled. The result has the dtype and device of P. Only first derivatives in reverse mode are supported. See
docs/gradients.md about kinks and the meaning of the gap.

There are two implementations. In eager mode an autograd function keeps the solution, so that derivatives are computed
only when needed, and ``torch.func.vmap`` loops over the entries. A graph of ``torch.compile`` cannot keep Python
objects, so there the distance is an operator, ``diffbisim::distance``, that returns its derivatives with the value.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from diffbisim.autodiff import bridge as _bridge
from diffbisim.autodiff.bridge import Kernel, KernelEntries, KernelSequence, Settings
from diffbisim.common.errors import InvalidArgument, MissingExtra
from diffbisim.common.parallel import tasks
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.streams import Stream
from diffbisim.processes.timed import TimedChain
from diffbisim.results.base import DistanceResult

try:
    import torch
except ImportError as error:  # pragma: no cover - tested in a subprocess
    raise MissingExtra("diffbisim.torch needs PyTorch: pip install 'diffbisim[torch]'") from error

__all__ = ["distance", "distance_and_result"]


def distance(X: Any, Y: Any, cost: Any = "reward", discount: float = 0.95, **options: Any) -> torch.Tensor:
    """Compute the distance between two chains as a scalar tensor, or a batch of distances.

    The parameters are those of :func:`distance_and_result`. Kernels with a leading batch dimension, (B, n, n), give B
    distances, solved in parallel; cost (B, n_X, n_Y), initial distributions and rewards (B, n) may have it too.
    ``torch.func.vmap`` does the same. With dense kernels ``torch.compile`` keeps the call in its graph.
    """
    if torch.compiler.is_compiling():
        return _compiled(X, Y, cost, discount, **options)
    given = {"X": X, "Y": Y, "cost": cost, "discount": discount, **options}
    names = _bridge.batched(given)
    if not names:
        return _call(**given).value()
    ones = ({**given, **{name: given[name][b] for name in names}} for b in range(len(given[names[0]])))
    calls = [_call(**one) for one in ones]
    tasks(_solve_ahead, calls, torch.is_grad_enabled())  # grad mode is thread-local
    return torch.stack([call.value() for call in calls])


@_bridge.with_arguments("tensor", "sparse (COO, CSR)")
def distance_and_result(
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
) -> tuple[torch.Tensor, DistanceResult]:
    """Compute the distance as a scalar tensor, and the full result (bounds, plans, encoder).

    Stored zeros of a sparse tensor get the one-sided derivative for adding mass there, like zeros of a dense tensor.

    {arguments}

    Returns
    -------
    value : scalar tensor
    result : DistanceResult
    """
    settings = Settings(discount, solver, tol, warm, _bridge.criterion_from(asked, discount))
    return evaluate(X, Y, cost, settings, initial=initial, initial_x=initial_x, rewards=rewards)


class _Given(NamedTuple):
    """The arguments of one distance. Those of a call of ``torch.compile`` are None where the graph has a tensor."""

    X: Any
    Y: Any
    initial_x: Any
    initial: Any
    cost: Any
    rewards: Any
    settings: Settings


def _call(X: Any, Y: Any, cost: Any, discount: float, **options: Any) -> "_Call":
    """Prepare one distance of a batch; options as for :func:`distance_and_result`."""
    initial_x, initial, rewards = (options.pop(name, None) for name in ("initial_x", "initial", "rewards"))
    how = {name: options.pop(name, None) for name in ("solver", "tol", "warm")}
    settings = Settings(discount, **how, criterion=_bridge.criterion_from(options, discount))
    return _Call.of(_Given(X, Y, initial_x, initial, cost, rewards, settings))


def _solve_ahead(_: None, call: "_Call") -> None:
    """Solve in a worker thread, so that torch finds the solution when it evaluates the call."""
    # Tensors under torch.func cannot be read here; torch evaluates these calls itself later.
    with suppress(RuntimeError):
        call.solve(call.parts)
        if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in call.parts):
            call.solve.found.gradient  # noqa: B018 - computed now and cached


def evaluate(
    X: Any, Y: Any, cost: Any, settings: Settings, *, initial: Any = None, initial_x: Any = None, rewards: Any = None
) -> tuple[torch.Tensor, DistanceResult]:
    """Compute the value and the result; like :func:`distance_and_result`, but X may be a stream."""
    call = _Call.of(_Given(X, Y, initial_x, initial, cost, rewards, settings))
    return call.value(), call.solve.found


class _Side(NamedTuple):
    """One of the two chains: a constant, or a kernel whose values are a tensor."""

    name: str
    constant: MarkovChain | TimedChain | Stream | None = None
    values: torch.Tensor | None = None
    places: tuple[Any, Any, int] | None = None  # if sparse: rows and columns of the values, and number of states
    start: Any = None
    shapes: _bridge.Shapes | None = None  # of the kernels, if there is one per step

    @property
    def timed(self) -> bool:
        """Whether there is one kernel per step."""
        return self.shapes is not None or isinstance(self.constant, TimedChain)

    def kernel(self, values: Any) -> Kernel | None:
        if self.shapes is not None:
            return KernelSequence(_bridge.pieces(np.asarray(values), self.shapes))
        if values is None or self.places is None:
            return None if values is None else np.asarray(values)
        return KernelEntries(values, *self.places)

    def chain(self, kernel: Kernel | None, start: Any) -> Any:
        if kernel is None:
            return self.constant
        return _bridge.make_chain(kernel, self.start if start is None else start, self.name)


class _Solve:
    """A problem and, once solved, its result."""

    def __init__(self, x: _Side, y: _Side, settings: Settings, shapes: _bridge.Shapes | None = None) -> None:
        self.x, self.y, self.settings, self.shapes = x, y, settings, shapes  # shapes of the costs per time
        self.result: DistanceResult | None = None
        self.entries: list[_Solve] = []  # under vmap: one per entry, instead of a result
        self.kernels: tuple[Kernel | None, Kernel | None] = (None, None)

    @property
    def found(self) -> DistanceResult:
        if self.result is None:
            raise InvalidArgument("under torch.func.vmap there is no single result; use distance")
        return self.result

    def another(self) -> "_Solve":
        """Return an unsolved copy."""
        return _Solve(self.x, self.y, self.settings, self.shapes)

    def __call__(self, parts: tuple[torch.Tensor | None, ...]) -> float:
        if self.result is not None:
            return self.result.value
        P_x, P_y, nu_x, nu_y, c = self.arrays = [None if part is None else part.detach().numpy() for part in parts]
        kernel_x, kernel_y = self.kernels = self.x.kernel(P_x), self.y.kernel(P_y)
        assert c is not None
        x, y = self.x.chain(kernel_x, nu_x), self.y.chain(kernel_y, nu_y)
        self.result = _bridge.solve(x, y, c if self.shapes is None else _bridge.pieces(c, self.shapes), self.settings)
        return self.result.value

    def derivative(self, k: int) -> torch.Tensor:
        """Return the derivative with respect to part k (kernels, initial distributions, cost)."""
        side, result = "xy"[k % 2], self.found
        if k == 4:
            found = _bridge.joined(result.gradient.cost, self.shapes)
        elif k >= 2:
            start = self.arrays[k]
            assert start is not None
            found = _bridge.start_derivative(result, side, start)
        else:
            kernel = self.kernels[k]
            assert kernel is not None
            found = _bridge.kernel_derivative(result, side, kernel)
        return torch.from_numpy(np.array(found))


class _Call(NamedTuple):
    """A problem, its parts in double precision, and a tensor that sets dtype and device of the value."""

    solve: _Solve
    parts: tuple[torch.Tensor | None, ...]
    like: torch.Tensor | None = None

    @classmethod
    def of(cls, given: _Given) -> "_Call":
        X, Y, initial_x, initial, cost, rewards, settings = given
        like = next((v for v in _flat(Y, X, cost, initial, rewards, initial_x) if _floating(v)), None)
        if like is None:
            raise InvalidArgument("no argument is a floating-point tensor; use diffbisim.distance")
        _bridge.check_constants(X, Y)
        x, y = _side(X, initial_x, None, "X"), _side(Y, initial, X, "Y")
        shapes = None
        if x.timed or y.timed:
            _bridge.needs_table(cost)
            if isinstance(cost, (list, tuple)) and np.ndim(cost[0]) == 2:
                tables = [_tensor(table) for table in cost]
                shapes, cost = _bridge.step_shapes(tables, "cost"), torch.cat([table.reshape(-1) for table in tables])
        if isinstance(cost, str):
            cost = _bridge.named_cost(cost, X, Y, rewards, torch.abs, _tensor)
        parts = tuple(map(_double, (x.values, y.values, x.start, y.start, _tensor(cost))))
        return cls(_Solve(x, y, settings, shapes), parts, like)

    def value(self) -> torch.Tensor:
        apply: Any = _Distance.apply
        found: torch.Tensor = apply(self.solve, *self.parts)
        return found if self.like is None else found.to(self.like)


class _Distance(torch.autograd.Function):
    """The distance as a function of five parts, all in double precision on the CPU."""

    @staticmethod
    def forward(solve: _Solve, *parts: torch.Tensor | None) -> torch.Tensor:
        return torch.tensor(solve(parts), dtype=torch.float64)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.solve = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, seed: torch.Tensor) -> Any:
        wanted = tuple(k for k in range(5) if ctx.needs_input_grad[1 + k])
        apply: Any = _Derivative.apply
        found = dict(zip(wanted, apply(ctx.solve, wanted, *ctx.saved_tensors), strict=True))
        return None, *(seed * found[k] if k in found else None for k in range(5))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise InvalidArgument(_bridge.REVERSE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, solve: _Solve, *parts: torch.Tensor | None) -> Any:
        solve.entries = [solve.another() for _ in range(info.batch_size)]
        own = list(_entries(info, in_dims[1:], parts))
        tasks(_solve_ahead, [_Call(*one) for one in zip(solve.entries, own, strict=True)], torch.is_grad_enabled())
        apply: Any = _Distance.apply
        return torch.stack([apply(one, *of) for one, of in zip(solve.entries, own, strict=True)]), 0


class _Derivative(torch.autograd.Function):
    """The derivatives as functions of the parts, so that second derivatives raise an error.

    ``once_differentiable`` is not enough: it raises only if the incoming gradient requires grad, and otherwise treats
    the outgoing gradient as a constant, whose derivative is silently zero.
    """

    @staticmethod
    def forward(solve: _Solve, wanted: tuple[int, ...], *parts: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        return tuple(map(solve.derivative, wanted))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *seeds: torch.Tensor) -> Any:
        raise InvalidArgument(_bridge.ONCE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise InvalidArgument(_bridge.ONCE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, solve: _Solve, wanted: tuple[int, ...], *parts: torch.Tensor | None) -> Any:
        if not solve.entries:  # the distance itself was not batched: this is torch.func.hessian
            raise InvalidArgument(_bridge.ONCE)
        apply: Any = _Derivative.apply
        own = zip(solve.entries, _entries(info, in_dims[2:], parts), strict=True)
        found = [apply(one, wanted, *of) for one, of in own]
        return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(wanted)


def _entries(info: Any, dims: Any, parts: Any) -> Iterator[tuple[torch.Tensor | None, ...]]:
    """Yield the parts of each entry of a ``torch.func.vmap`` batch."""
    for b in range(info.batch_size):
        yield tuple(part if k is None else part.select(k, b) for part, k in zip(parts, dims, strict=True))


# --- torch.compile ---------------------------------------------------------------------------------------------


_kept: list[_Given] = []  # one per compiled call; a graph can only hold its index


def _compiled(
    X: Any, Y: Any, cost: Any, discount: float, initial: Any = None, initial_x: Any = None, rewards: Any = None,
    **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Evaluate the distance in the graph of ``torch.compile``; arguments that are not tensors are stored in _kept."""
    if isinstance(rewards, torch.Tensor) and isinstance(cost, str):
        cost, rewards = (_rewards_of(X)[:, None] - rewards[..., None, :]).abs(), None
    given = {"X": X, "Y": Y, "initial_x": initial_x, "initial": initial, "cost": cost}
    tensors = {name: v for name, v in given.items() if isinstance(v, torch.Tensor)}
    solver = options.pop("solver", None)
    names = getattr(solver, "__dataclass_fields__", ())  # the tracer cannot handle frozen objects, but their fields
    options["solver"] = (type(solver), {name: getattr(solver, name) for name in names}) if names else solver
    constants: list[Any] = [None if name in tensors else v for name, v in given.items()]
    key = _keep(*constants, rewards, discount, *options.items())
    like = tensors["Y"] if "Y" in tensors else next(iter(tensors.values()))
    batch = _bridge.batched(tensors)
    size = tensors[batch[0]].shape[0] if batch else 1
    parts = [
        None if name not in tensors
        else tensors[name].to(device="cpu", dtype=torch.float64) if name in batch
        else tensors[name].to(device="cpu", dtype=torch.float64).expand(size, *tensors[name].shape)
        for name in given
    ]  # fmt: skip
    found: torch.Tensor = _operator(*parts, key)[0].to(like)
    return found if batch else found[0]


def _keep(X: Any, Y: Any, initial_x: Any, initial: Any, cost: Any, rewards: Any, discount: Any, *options: Any) -> int:
    """Store the constants of a call and return their index; runs once, while the graph is traced."""
    for name, chain in {"X": X, "Y": Y}.items():
        if not (chain is None or isinstance(chain, MarkovChain)):
            raise InvalidArgument(
                f"{name} is a {type(chain).__name__}, but torch.compile supports dense kernels and MarkovChains only; "
                "call distance in a function decorated with torch.compiler.disable"
            )
    asked = dict(options)
    solver, tol, warm = (asked.pop(name, None) for name in ("solver", "tol", "warm"))
    if isinstance(solver, tuple):
        kind, given = solver
        solver = kind(**{field.name: given[field.name] for field in fields(kind) if field.init})
    settings = Settings(discount, solver, tol, warm, _bridge.criterion_from(asked, discount))
    _kept.append(_Given(X, Y, initial_x, initial, cost, rewards, settings))
    return len(_kept) - 1


def _rewards_of(X: Any) -> torch.Tensor:
    """Return the rewards of the chain as a constant of the graph."""
    if not isinstance(X, MarkovChain) or X.rewards is None:
        raise InvalidArgument(_bridge.NEEDS_REWARDS)
    return _tensor(X.rewards)


for _constant in (_keep, _rewards_of):  # as torch.compiler.assume_constant_result does, whose import takes two seconds
    _constant.__dict__["_dynamo_marked_constant"] = True


@torch.library.custom_op("diffbisim::distance", mutates_args=())
def _operator(
    P_x: torch.Tensor | None, P_y: torch.Tensor | None, nu_x: torch.Tensor | None, nu_y: torch.Tensor | None,
    c: torch.Tensor | None, key: int,
) -> list[torch.Tensor]:  # fmt: skip
    """Return the values of a batch, (B,), and their derivatives by each of the five parts; empty for missing parts."""
    kept, given = _kept[key], (P_x, P_y, nu_x, nu_y, c)
    calls = []
    for b in range(next(v.shape[0] for v in given if v is not None)):
        own = (constant if v is None else v[b] for constant, v in zip(kept[:5], given, strict=True))
        X, Y, initial_x, initial, cost = own
        calls.append(_Call.of(_Given(X, Y, initial_x, initial, cost, kept.rewards, kept.settings)))
    tasks(_solve_and_differentiate, calls)
    values = torch.tensor([call.solve.found.value for call in calls], dtype=torch.float64)
    return [values] + [
        values.new_empty(0) if v is None else torch.stack([call.solve.derivative(k) for call in calls])
        for k, v in enumerate(given)
    ]


def _solve_and_differentiate(_: None, call: _Call) -> None:
    call.solve(call.parts)
    call.solve.found.gradient  # noqa: B018 - computed now and cached


@_operator.register_fake
def _shapes(P_x: Any, P_y: Any, nu_x: Any, nu_y: Any, c: Any, key: int) -> list[torch.Tensor]:
    given = (P_x, P_y, nu_x, nu_y, c)
    one = next(v for v in given if v is not None)
    return [one.new_empty(one.shape[0])] + [one.new_empty(0) if v is None else torch.empty_like(v) for v in given]


def _save_derivatives(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*output[1:])


def _pull_back(ctx: Any, seeds: Any) -> Any:
    seed = seeds[0]
    found = (seed.reshape(-1, *(1,) * (v.ndim - 1)) * v if v.ndim > 1 else None for v in ctx.saved_tensors)
    return *found, None


_operator.register_autograd(_pull_back, setup_context=_save_derivatives)


def _side(chain: Any, initial: Any, other: Any, name: str) -> _Side:
    """Prepare one of the two chains; ``other`` provides the default initial distribution."""
    if isinstance(chain, (MarkovChain, TimedChain, Stream)):
        _bridge.no_start(initial, name)
        return _Side(name, chain)
    if isinstance(chain, (list, tuple)):
        shapes, flat = _bridge.step_shapes(chain, name), torch.cat([_tensor(P).reshape(-1) for P in chain])
        start = _bridge.default_start(other, shapes[0][0]) if initial is None else initial
        return _Side(name, values=flat, start=start, shapes=shapes)
    if not isinstance(chain, torch.Tensor):
        raise InvalidArgument(
            f"{name} is a {type(chain).__name__}; give a MarkovChain, a tensor with its kernel, or a list of kernels, "
            "one per step"
        )
    start = _bridge.default_start(other, chain.shape[0]) if initial is None else initial
    if chain.layout == torch.strided:
        return _Side(name, values=chain, start=start)
    stored: Any = chain
    flat = (stored if stored.layout == torch.sparse_coo else stored.to_sparse_coo()).coalesce()
    rows, columns = flat.indices().numpy()
    return _Side(name, values=flat.values(), places=(rows, columns, int(chain.shape[0])), start=start)


def _flat(*values: Any) -> list[Any]:
    """Return the values, with lists and tuples flattened."""
    return [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(np.array(value, dtype=np.float64))


def _double(value: Any) -> torch.Tensor | None:
    """Convert a floating-point tensor differentiably to double precision on the CPU; None for anything else."""
    return value.to(device="cpu", dtype=torch.float64) if _floating(value) else None
