"""Parametrized kernels: torch modules whose output is a row-stochastic matrix, in double precision.

    Softmax         P(y'|y) ∝ exp θ(y,y')                          the paper's; every transition stays possible
    MaskedSoftmax   the same on a given support                    zeros at given places
    Sparsemax       P(·|y) = projection of θ(y,·) on the simplex   zeros at places that are learned
    DriftWalk       one step up with probability σ(f), else down   the paper's walk, one parameter
    LowRank         P = A B, A (n,k) and B (k,n) stochastic        k hidden causes, 2 n k parameters
    Mixture         P = Σ_k w_k P_k, w = softmax θ                 a mixture of given kernels
    PolicyKernel    P(s'|s) = Σ_a softmax(θ(s,·))_a P_a(s'|s)      an MDP under a learned policy

Any other module that returns such a matrix, dense or sparse, works as well. A :class:`ChainModel` combines a kernel
with a learned initial distribution (:class:`Start`) and learned rewards (:class:`Rewards`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diffbisim.common.errors import InvalidArgument, MissingExtra
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP
from diffbisim.processes.stochastic import as_generator

try:
    import torch
except ImportError as error:  # pragma: no cover - tested in a process of its own
    raise MissingExtra("fitting needs PyTorch: pip install 'diffbisim[torch]'") from error

Rng = int | np.random.Generator


def _parameter(value: Any, shape: tuple[int, ...] | None = None) -> torch.nn.Parameter:
    """Return a float64 copy of the value as a parameter, checking its shape if one is given."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    table = np.array(value, dtype=np.float64)
    if shape is not None and table.shape != shape:
        raise InvalidArgument(f"the given parameters have shape {table.shape}; this kernel needs shape {shape}")
    return torch.nn.Parameter(torch.tensor(table))


def _dense(matrix: Any) -> torch.Tensor:
    """Return a kernel, or the kernel of a chain, as a dense tensor."""
    P = matrix.transition if isinstance(matrix, MarkovChain) else matrix
    return torch.tensor(np.array(P.toarray() if hasattr(P, "toarray") else P, dtype=np.float64))


def _noise(shape: tuple[int, ...], rng: Rng) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return small noise: rows start near uniform, but not equal, because identical states would stay identical."""
    return 0.1 * as_generator(rng).normal(size=shape)


class Softmax(torch.nn.Module):
    """A dense softmax kernel, ``P(y'|y) ∝ exp θ(y,y')``.

    Parameters
    ----------
    n_states : int
        Number of states.
    logits : array of shape (n_states, n_states), default=None
        Initial θ. None means small random values, so that rows start near uniform.
    rng : int or numpy.random.Generator, default=0
        Seed of the random values.
    """

    def __init__(self, n_states: int, logits: Any = None, rng: Rng = 0) -> None:
        super().__init__()
        self.logits = _parameter(_noise((n_states, n_states), rng) if logits is None else logits, (n_states, n_states))

    def forward(self) -> torch.Tensor:
        return torch.softmax(self.logits, dim=1)


class MaskedSoftmax(torch.nn.Module):
    """A softmax over the possible transitions of each row.

    Parameters
    ----------
    support : MarkovChain, sparse matrix or array of shape (n, n)
        Its nonzero entries are the possible transitions. A sparse support gives a sparse kernel (COO).
    logits : array of shape (n_transitions,), default=None
        Initial logits, one per possible transition in row order. None means small random values.
    rng : int or numpy.random.Generator, default=0
        Seed of the random values.
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
            raise InvalidArgument(f"support: row {empty[0]} is empty; every state needs at least one successor")
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
    """Project each row on the simplex (Martins and Astudillo 2016), which gives exact zeros.

    With the row sorted, z_1 ≥ z_2 ≥ …, the size of the support is the largest k with 1 + k z_k > z_1 + … + z_k, and
    τ = (z_1 + … + z_k - 1)/k is subtracted from the scores.

    Parameters
    ----------
    scores : torch.Tensor of shape (..., n)

    Returns
    -------
    torch.Tensor of shape (..., n)
        Nonnegative rows that sum to one.
    """
    z = scores.sort(dim=-1, descending=True).values
    total = z.cumsum(dim=-1)
    rank = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    k = (1 + rank * z > total).sum(dim=-1, keepdim=True)
    tau = (total.gather(-1, k - 1) - 1) / k
    return torch.clamp(scores - tau, min=0)


class Sparsemax(torch.nn.Module):
    """A kernel with exact zeros, ``P(·|y) = sparsemax(θ(y,·))``.

    The gradient of a zero entry is zero, so such an entry returns only when the other scores of its row change.

    Parameters
    ----------
    n_states : int
        Number of states.
    scores : array of shape (n_states, n_states), default=None
        Initial θ. None means small random values.
    rng : int or numpy.random.Generator, default=0
        Seed of the random values.
    """

    def __init__(self, n_states: int, scores: Any = None, rng: Rng = 0) -> None:
        super().__init__()
        self.scores = _parameter(_noise((n_states, n_states), rng) if scores is None else scores, (n_states, n_states))

    def forward(self) -> torch.Tensor:
        return sparsemax(self.scores)


class DriftWalk(torch.nn.Module):
    """The paper's random walk on a line: up with probability σ(drift), else down; it stays put at the ends.

    Parameters
    ----------
    drift : float, default=0.0
        Initial drift.
    n_states : int, default=16
        Number of states.
    """

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
    """A low-rank kernel ``P = A B`` with stochastic factors: the next state depends on one of `rank` hidden causes.

    Parameters
    ----------
    n_states : int
        Number of states.
    rank : int
        Number of hidden causes; A has shape (n_states, rank) and B has shape (rank, n_states).
    rng : int or numpy.random.Generator, default=0
        Seed of the initial factors.
    """

    def __init__(self, n_states: int, rank: int, rng: Rng = 0) -> None:
        super().__init__()
        if not 1 <= rank <= n_states:
            raise InvalidArgument(f"rank is {rank}; it must be between 1 and n_states = {n_states}")
        generator = as_generator(rng)
        self.left = _parameter(10 * _noise((n_states, rank), generator))
        self.right = _parameter(10 * _noise((rank, n_states), generator))

    def forward(self) -> torch.Tensor:
        return torch.softmax(self.left, dim=1) @ torch.softmax(self.right, dim=1)


class Mixture(torch.nn.Module):
    """A mixture ``P = Σ_k w_k P_k`` of given kernels with learned weights ``w = softmax θ``.

    Parameters
    ----------
    kernels : sequence of MarkovChain or array of shape (n, n)
        The kernels to mix.
    logits : array of shape (n_kernels,), default=None
        Initial θ. None means equal weights.
    """

    kernels: torch.Tensor

    def __init__(self, kernels: Sequence[Any], logits: Any = None) -> None:
        super().__init__()
        if not len(kernels):
            raise InvalidArgument("kernels is empty; a mixture needs at least one kernel")
        given = [_dense(P) for P in kernels]
        if len({P.shape for P in given}) > 1:
            raise InvalidArgument(f"kernels have shapes {[tuple(P.shape) for P in given]}; they must be equal")
        self.register_buffer("kernels", torch.stack(given))
        self.logits = _parameter(np.zeros(len(kernels)) if logits is None else logits, (len(kernels),))

    def forward(self) -> torch.Tensor:
        return torch.einsum("k,kij->ij", torch.softmax(self.logits, dim=0), self.kernels)


class PolicyKernel(torch.nn.Module):
    """The chain of an MDP under a learned policy ``π(·|s) = softmax θ(s,·)``.

    Parameters
    ----------
    mdp : MDP
        The decision process.
    logits : array of shape (n_states, n_actions), default=None
        Initial θ. None means the uniform policy.
    """

    kernels: torch.Tensor

    def __init__(self, mdp: MDP, logits: Any = None) -> None:
        super().__init__()
        self.register_buffer("kernels", torch.stack([_dense(P) for P in mdp.transition]))
        n_actions, n_states = self.kernels.shape[:2]
        self.logits = _parameter(np.zeros((n_states, n_actions)) if logits is None else logits, (n_states, n_actions))

    @property
    def policy(self) -> torch.Tensor:
        """The policy, of shape (n_states, n_actions)."""
        return torch.softmax(self.logits, dim=1)

    def forward(self) -> torch.Tensor:
        return torch.einsum("sa,ast->st", self.policy, self.kernels)


class Start(torch.nn.Module):
    """A learned initial distribution ``softmax θ``.

    Parameters
    ----------
    n_states : int
        Number of states.
    logits : array of shape (n_states,), default=None
        Initial θ. None means the uniform distribution.
    """

    def __init__(self, n_states: int, logits: Any = None) -> None:
        super().__init__()
        self.logits = _parameter(np.zeros(n_states) if logits is None else logits)

    def forward(self) -> torch.Tensor:
        return torch.softmax(self.logits, dim=0)


class Rewards(torch.nn.Module):
    """Learned rewards.

    Parameters
    ----------
    values : array of shape (n_states,) or (n_states, k)
        Initial rewards, or initial features.
    """

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = _parameter(values)

    def forward(self) -> torch.Tensor:
        return self.values


class Parts(NamedTuple):
    """The parts of a model; a part that is None or not a tensor is not learned."""

    transition: torch.Tensor
    initial: Any = None
    rewards: Any = None


class ChainModel(torch.nn.Module):
    """A kernel with an initial distribution and rewards; ``forward`` returns :class:`Parts`.

    Parameters
    ----------
    kernel : torch.nn.Module
        Module that returns the kernel, or :class:`Parts`.
    initial, rewards : torch.nn.Module or constant, default=None
        Modules are learned, constants are not.
    """

    def __init__(self, kernel: torch.nn.Module, initial: Any = None, rewards: Any = None) -> None:
        super().__init__()
        self.kernel, self.initial, self.rewards = kernel, initial, rewards

    def forward(self) -> Parts:
        made = self.kernel()
        if isinstance(made, Parts):
            return made
        initial, rewards = (part() if callable(part) else part for part in (self.initial, self.rewards))
        return Parts(made, initial, rewards)
