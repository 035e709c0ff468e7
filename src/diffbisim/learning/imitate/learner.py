"""The learner's policy and how it moves: a table of logits, or a torch module.

A policy π_θ(a|s) has the kernel P_θ(s'|s) = Σ_a π_θ(a|s) P(s'|s,a). With the implicit reward r(s,s') in the centered
gauge, A(s,a) = Σ_s' P(s'|s,a) r(s,s') is the advantage of an action (E_π[A|s] = 0), and with the occupancy ρ

    ∇_θ d = - Σ_s ρ(s) Σ_a A(s,a) ∇_θ π_θ(a|s)

at every policy where the distance is differentiable. This is exact and needs neither a critic nor samples. For logits
θ(s,a) the gradient is -ρ(s) π(a|s) A(s,a). The natural (mirror) geometry measures a step δ of the logits by
Σ ρ(s) π(a|s) δ(s,a)²; its direction of steepest descent is A(s,·) itself, so that rarely visited states move as fast as
others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from diffbisim.common.checks import Floats
from diffbisim.common.errors import InvalidArgument, MissingExtra
from diffbisim.learning.optimize.steps import Cut
from diffbisim.processes.mdp import MDP
from diffbisim.results.base import DistanceResult

#: Lower limit of log-probabilities: e^-70 is below every tolerance, but keeps the support of the chain.
MIN_LOG_PROBABILITY = -70.0


@dataclass(frozen=True, eq=False)
class PolicyEvaluation:
    """A policy, its distance, and the resulting reward and advantages."""

    policy: Floats  # π, (n, n_actions)
    result: DistanceResult
    reward: Floats  # r, (n, n)
    advantage: Floats  # A, (n, n_actions), mean zero under π
    occupancy: Floats  # ρ, (n,)


class Learner(ABC):
    """A policy that can be moved; cuts are linear in π, because the distance is less curved in π than in the logits."""

    #: Whether every state has probabilities of its own.
    is_table: ClassVar[bool]

    @abstractmethod
    def table(self) -> Floats:
        """Return π of shape (n, n_actions)."""

    def cut(self, at: PolicyEvaluation, natural: bool) -> Cut:
        """Return the linear model of the distance, whose derivative with respect to π(a|s) is -ρ(s) A(s,a)."""
        rho = at.occupancy[:, None]
        return Cut(at.result.value, at.policy, -rho * at.advantage, rho if natural else np.ones_like(rho))

    def pull(self, gradient: Floats, at: PolicyEvaluation) -> Floats:
        """Turn a derivative with respect to π into one with respect to the logits (softmax Jacobian)."""
        return np.asarray(at.policy * (gradient - (at.policy * gradient).sum(axis=1, keepdims=True)))

    def spread(self, at: PolicyEvaluation, natural: bool) -> Floats | float:
        """Return the current weights of the parameters."""
        return at.policy if natural else 1.0

    def with_unvisited(self, step: Floats, at: PolicyEvaluation, length: float) -> Floats:
        """Complete a natural step: states that are never visited follow their own advantage with this length."""
        return np.where(at.occupancy[:, None] > 0, step, length * at.advantage)

    @abstractmethod
    def move(self, step: Floats, cap: float) -> float:
        """Add a step to the parameters, with no entry above `cap`, and return the largest change."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return what :meth:`restore` needs."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot."""

    def state(self) -> list[Any]:
        """Return everything that changes, the snapshot first, as arrays and tensors."""
        return [self.snapshot()]

    def resume(self, state: list[Any]) -> None:
        """Restore a saved :meth:`state`."""
        self.restore(state[0])

    def identity(self, state: list[Any], best: Any = None) -> Any:
        """Return what the caller can see of a state, with `best` as the snapshot if given (optimize/checkpoint.py)."""
        return None  # a table does not belong to the caller


class TabularLearner(Learner):
    """The softmax of a table of logits."""

    is_table: ClassVar[bool] = True

    def __init__(self, policy: Floats) -> None:
        with np.errstate(divide="ignore"):
            self.logits = _normalized(np.log(policy))

    def table(self) -> Floats:
        probabilities = np.exp(self.logits)
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))

    def move(self, step: Floats, cap: float) -> float:
        step = _capped(step, cap)
        self.logits = _normalized(self.logits + step)
        return float(np.abs(step).max())

    def snapshot(self) -> Floats:
        return self.logits

    def restore(self, snapshot: Floats) -> None:
        self.logits = snapshot


def _capped(step: Floats, cap: float) -> Floats:
    """Scale each state's step so that no entry exceeds the cap."""
    largest = np.abs(step).max(axis=1, keepdims=True)
    return np.asarray(step * np.minimum(1.0, cap / np.maximum(largest, 1e-300)))


def _normalized(logits: Floats) -> Floats:
    """Return log-probabilities, bounded below by MIN_LOG_PROBABILITY."""
    logits = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(np.maximum(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), MIN_LOG_PROBABILITY))


class ModuleLearner(Learner):
    """A torch module from states to logits: (n,) state numbers or (n, k) features -> (n, n_actions).

    The plain gradient is that of -Σ ρ π_θ A with ρ and A fixed, by autograd. A natural step first computes the step
    δ(s,a) of a table and projects it on the parameters by least squares with the same weights, min_v Σ ρ π (J v - δ)²,
    where J is the Jacobian of the logits. With one cut this is the natural gradient of the parameters.
    """

    is_table: ClassVar[bool] = False

    def __init__(self, module: Any, mdp: MDP, features: Any = None) -> None:
        import torch

        self.torch, self.module = torch, module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        if not self.parameters:
            raise InvalidArgument("policy has no parameters that require a gradient; there is nothing to learn")
        if features is None:
            self.inputs = torch.arange(mdp.n_states)
        else:
            self.inputs = torch.as_tensor(np.asarray(features), dtype=self.parameters[0].dtype)
        self.weights = np.ones((mdp.n_states, 1))
        shape = tuple(self.module(self.inputs).shape)
        if shape != (mdp.n_states, mdp.n_actions):
            raise InvalidArgument(
                f"policy returns logits of shape {shape}; expected {(mdp.n_states, mdp.n_actions)}, one row per state"
            )

    def table(self) -> Floats:
        with self.torch.no_grad():
            logits = self.module(self.inputs).double().cpu().numpy()
        return TabularLearner(np.exp(_normalized(logits))).table()

    def cut(self, at: PolicyEvaluation, natural: bool) -> Cut:
        if natural:
            self.weights = at.occupancy[:, None] * at.policy
            return super().cut(at, natural)
        fixed = self.torch.from_numpy(-at.occupancy[:, None] * at.advantage)
        surrogate = (fixed * self.torch.softmax(self.module(self.inputs).double(), dim=1)).sum()
        gradient = self._gradient(surrogate)
        return Cut(at.result.value, self.snapshot(), gradient, np.ones_like(gradient))

    def pull(self, gradient: Floats, at: PolicyEvaluation) -> Floats:
        return gradient if gradient.ndim == 1 else super().pull(gradient, at)

    def move(self, step: Floats, cap: float) -> float:
        if step.ndim == 2:
            step = self._onto_parameters(_capped(step, cap))
        largest = float(np.abs(step).max(initial=0.0))
        self.restore(self.snapshot() + step * min(1.0, cap / max(largest, 1e-300)))
        return min(largest, cap)

    def with_unvisited(self, step: Floats, at: PolicyEvaluation, length: float) -> Floats:
        return step  # a network has no separate parameters for unvisited states

    def _onto_parameters(self, step: Floats) -> Floats:
        """Project a step of the logits on the parameters."""
        logits = self.module(self.inputs).double().flatten()
        J = np.stack([self._gradient(logit) for logit in logits])
        root = np.sqrt(self.weights).reshape(-1, 1)
        v, *_ = np.linalg.lstsq(root * J, root[:, 0] * step.ravel(), rcond=1e-5)
        return np.asarray(v, dtype=np.float64)

    def _gradient(self, scalar: Any) -> Floats:
        """Return the flat gradient of a scalar with respect to all parameters."""
        parts = self.torch.autograd.grad(scalar, self.parameters, retain_graph=True, allow_unused=True)
        pairs = zip(self.parameters, parts, strict=True)
        return np.concatenate([np.zeros(p.numel()) if g is None else _flat(g) for p, g in pairs])

    def snapshot(self) -> Floats:
        return np.concatenate([_flat(p) for p in self.parameters])

    def restore(self, snapshot: Floats) -> None:
        at = 0
        with self.torch.no_grad():
            for p in self.parameters:
                part = self.torch.from_numpy(snapshot[at : at + p.numel()].reshape(tuple(p.shape)))
                p.copy_(part.to(p))
                at += p.numel()

    def state(self) -> list[Any]:
        """Return parameters, buffers, and the weights of the last cut."""
        return [self.snapshot(), [buffer.detach().clone() for buffer in self.module.buffers()], self.weights]

    def resume(self, state: list[Any]) -> None:
        snapshot, buffers, self.weights = state
        self.restore(snapshot)
        with self.torch.no_grad():
            for buffer, value in zip(self.module.buffers(), buffers, strict=True):
                buffer.copy_(value)

    def identity(self, state: list[Any], best: Any = None) -> Any:
        return [state[0] if best is None else best, state[1]]


def _flat(tensor: Any) -> Floats:
    return np.asarray(tensor.detach().cpu().double().numpy().ravel(), dtype=np.float64)


def make_learner(policy: Any, mdp: MDP, features: Any) -> Learner:
    """Return the learner for None (uniform), a table of probabilities, or a torch module."""
    if policy is None or isinstance(policy, (list, tuple, np.ndarray)):
        if features is not None:
            raise InvalidArgument("features need a torch module as policy; a table has a row for every state")
        return TabularLearner(mdp.uniform_policy() if policy is None else mdp._policy(policy))
    if not (isinstance(policy, Callable) and hasattr(policy, "parameters")):  # type: ignore[arg-type]
        raise InvalidArgument(
            f"policy is a {type(policy).__name__}; pass an (n_states, n_actions) table or a torch module"
        )
    try:
        return ModuleLearner(policy, mdp, features)
    except ImportError as error:
        raise MissingExtra("a module as policy needs PyTorch: pip install 'diffbisim[torch]'") from error
