"""Parametrized kernels: torch modules whose output is a row-stochastic matrix, in double precision.

    Softmax         P(y'|y) ∝ exp θ(y,y')                       the paper's; every transition stays possible
    MaskedSoftmax   the same on a given support                 exact zeros where you say so
    Sparsemax       P(·|y) = projection of θ(y,·) on the simplex   exact zeros where the data say so
    DriftWalk       one step up with probability σ(f), else down   the paper's walk, one parameter
    LowRank         P = A B, A (n,k) and B (k,n) stochastic     k hidden causes, 2 n k parameters
    Mixture         P = Σ_k w_k P_k, w = softmax θ              of given kernels
    PolicyKernel    P(s'|s) = Σ_a softmax(θ(s,·))_a P_a(s'|s)   an MDP under a learned policy

Any other module will do that returns such a matrix, dense or sparse. A :class:`ChainModel` joins a kernel with a
learned start (:class:`Start`) and learned rewards (:class:`Rewards`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diffbisim.chain import MarkovChain
from diffbisim.errors import InvalidArgument, MissingExtra
from diffbisim.mdp import MDP
from diffbisim.stochastic import as_generator

try:
    import torch
except ImportError as error:  # pragma: no cover - tested in a process of its own
    raise MissingExtra("fitting needs PyTorch: pip install 'diffbisim[torch]'") from error

Rng = int | np.random.Generator


def _parameter(value: Any, shape: tuple[int, ...] | None = None) -> torch.nn.Parameter:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    table = np.array(value, dtype=np.float64)
    if shape is not None and table.shape != shape:
        raise InvalidArgument(f"the given parameters have shape {table.shape}; this kernel needs {shape}")
    return torch.nn.Parameter(torch.tensor(table))


def _dense(matrix: Any) -> torch.Tensor:
    P = matrix.transition if isinstance(matrix, MarkovChain) else matrix
    return torch.tensor(np.array(P.toarray() if hasattr(P, "toarray") else P, dtype=np.float64))


def _noise(shape: tuple[int, ...], rng: Rng) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Small, so that rows start near uniform; not zero, because states that are alike stay alike for ever."""
    return 0.1 * as_generator(rng).normal(size=shape)


class Softmax(torch.nn.Module):
    """``P(y'|y) ∝ exp θ(y,y')`` on ``n_states``; from logits if given, else near uniform."""

    def __init__(self, n_states: int, logits: Any = None, rng: Rng = 0) -> None:
        super().__init__()
        self.logits = _parameter(_noise((n_states, n_states), rng) if logits is None else logits, (n_states, n_states))

    def forward(self) -> torch.Tensor:
        return torch.softmax(self.logits, dim=1)


class MaskedSoftmax(torch.nn.Module):
    """A softmax over the possible transitions of each row; ``support`` is a chain, a sparse matrix or a mask.

    A sparse support gives a sparse kernel (COO), with one logit per possible transition.
    """

    indices: torch.Tensor

    def __init__(self, support: Any, logits: Any = None, rng: Rng = 0) -> None:
        super().__init__()
        matrix: Any = support.transition if isinstance(support, MarkovChain) else support
        self.sparse = hasattr(matrix, "tocsr")
        mask = matrix if self.sparse else np.asarray(matrix) != 0
        self.n_states = int(mask.shape[0])
        rows, columns = (mask.tocsr() if self.sparse else mask).nonzero()
        empty = np.setdiff1d(np.arange(self.n_states), rows)
        if empty.size:
            raise InvalidArgument(f"support: row {empty[0]} is empty; every state needs a possible successor")
        self.register_buffer("indices", torch.tensor(np.array([rows, columns]), dtype=torch.int64))
        self.logits = _parameter(_noise((rows.size,), rng) if logits is None else logits, (rows.size,))

    def forward(self) -> torch.Tensor:
        rows, n = self.indices[0], self.n_states
        largest = torch.full((n,), -torch.inf, dtype=self.logits.dtype)
        largest = largest.scatter_reduce(0, rows, self.logits.detach(), "amax")
        weights = torch.exp(self.logits - largest[rows])
        values = weights / torch.zeros(n, dtype=weights.dtype).index_add(0, rows, weights)[rows]
        if self.sparse:
            return torch.sparse_coo_tensor(self.indices, values, (n, n), is_coalesced=True, check_invariants=False)
        return torch.zeros(n, n, dtype=values.dtype).index_put((rows, self.indices[1]), values)


def sparsemax(scores: torch.Tensor) -> torch.Tensor:
    """The Euclidean projection of each row on the simplex (Martins and Astudillo 2016): exact zeros.

    With the row sorted, z_1 ≥ z_2 ≥ …, the support is the largest k with 1 + k z_k > z_1 + … + z_k, and what is
    subtracted is τ = (z_1 + … + z_k - 1)/k.
    """
    z = scores.sort(dim=-1, descending=True).values
    total = z.cumsum(dim=-1)
    rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    k = (1 + rank * z > total).sum(dim=-1, keepdim=True)
    tau = (total.gather(-1, k - 1) - 1) / k
    return torch.clamp(scores - tau, min=0)


class Sparsemax(torch.nn.Module):
    """``P(·|y)`` = sparsemax of θ(y,·): exact zeros; a zero comes back only when its row moves as a whole."""

    def __init__(self, n_states: int, scores: Any = None, rng: Rng = 0) -> None:
        super().__init__()
        self.scores = _parameter(_noise((n_states, n_states), rng) if scores is None else scores, (n_states, n_states))

    def forward(self) -> torch.Tensor:
        return sparsemax(self.scores)


class DriftWalk(torch.nn.Module):
    """The paper's walk on a line: up with probability σ(drift), else down; the ends stay."""

    up: torch.Tensor
    down: torch.Tensor

    def __init__(self, drift: float = 0.0, n_states: int = 16) -> None:
        super().__init__()
        here = np.arange(n_states)
        for name, target in (("up", np.minimum(here + 1, n_states - 1)), ("down", np.maximum(here - 1, 0))):
            self.register_buffer(name, torch.tensor(np.eye(n_states)[target]))
        self.drift = _parameter(float(drift))

    def forward(self) -> torch.Tensor:
        return torch.sigmoid(self.drift) * self.up + torch.sigmoid(-self.drift) * self.down


class LowRank(torch.nn.Module):
    """``P = A B`` with stochastic ``A (n, rank)`` and ``B (rank, n)``: the next state depends on a hidden cause."""

    def __init__(self, n_states: int, rank: int, rng: Rng = 0) -> None:
        super().__init__()
        if not 1 <= rank <= n_states:
            raise InvalidArgument(f"rank is {rank}; it must lie between 1 and n_states = {n_states}")
        generator = as_generator(rng)
        self.left = _parameter(10 * _noise((n_states, rank), generator))
        self.right = _parameter(10 * _noise((rank, n_states), generator))

    def forward(self) -> torch.Tensor:
        return torch.softmax(self.left, dim=1) @ torch.softmax(self.right, dim=1)


class Mixture(torch.nn.Module):
    """``P = Σ_k w_k P_k`` of given kernels (chains or matrices), weights ``w = softmax θ``."""

    kernels: torch.Tensor

    def __init__(self, kernels: Sequence[Any], logits: Any = None) -> None:
        super().__init__()
        if not len(kernels):
            raise InvalidArgument("kernels is empty; a mixture needs at least one")
        given = [_dense(P) for P in kernels]
        if len({P.shape for P in given}) > 1:
            raise InvalidArgument(f"kernels have shapes {[tuple(P.shape) for P in given]}; a mixture needs equal ones")
        self.register_buffer("kernels", torch.stack(given))
        self.logits = _parameter(np.zeros(len(kernels)) if logits is None else logits, (len(kernels),))

    def forward(self) -> torch.Tensor:
        return torch.einsum("k,kij->ij", torch.softmax(self.logits, dim=0), self.kernels)


class PolicyKernel(torch.nn.Module):
    """The chain of an MDP under the policy ``softmax θ(s,·)``; ``policy`` gives the policy itself."""

    kernels: torch.Tensor

    def __init__(self, mdp: MDP, logits: Any = None) -> None:
        super().__init__()
        self.register_buffer("kernels", torch.stack([_dense(P) for P in mdp.transition]))
        n_actions, n_states = self.kernels.shape[:2]
        self.logits = _parameter(np.zeros((n_states, n_actions)) if logits is None else logits, (n_states, n_actions))

    @property
    def policy(self) -> torch.Tensor:
        return torch.softmax(self.logits, dim=1)

    def forward(self) -> torch.Tensor:
        return torch.einsum("sa,ast->st", self.policy, self.kernels)


class Start(torch.nn.Module):
    """A learned start distribution ``softmax θ``."""

    def __init__(self, n_states: int, logits: Any = None) -> None:
        super().__init__()
        self.logits = _parameter(np.zeros(n_states) if logits is None else logits)

    def forward(self) -> torch.Tensor:
        return torch.softmax(self.logits, dim=0)


class Rewards(torch.nn.Module):
    """Learned rewards, one per state, or features (n_states, k)."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = _parameter(values)

    def forward(self) -> torch.Tensor:
        return self.values


class Parts(NamedTuple):
    """What a model is made of; a part that is None or no tensor is not learned."""

    transition: torch.Tensor
    initial: Any = None
    rewards: Any = None


class ChainModel(torch.nn.Module):
    """A kernel with a start and rewards, each a module (learned) or a constant; ``forward`` gives :class:`Parts`."""

    def __init__(self, kernel: torch.nn.Module, initial: Any = None, rewards: Any = None) -> None:
        super().__init__()
        self.kernel, self.initial, self.rewards = kernel, initial, rewards

    def forward(self) -> Parts:
        made = self.kernel()
        if isinstance(made, Parts):
            return made
        initial, rewards = (part() if callable(part) else part for part in (self.initial, self.rewards))
        return Parts(made, initial, rewards)
