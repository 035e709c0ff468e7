"""Small grid worlds for the imitation experiments, with slipping moves and absorbing cells.

States are the cells, row by row. Moves are clipped at the edge of the grid. With probability ``slip`` the chosen move
is replaced by a uniformly random one. `patrol` walks clockwise around a square loop forever; `turns` measures the
progress around the loop, which imitators do not see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diffbisim.common.checks import Floats, Integers
from diffbisim.processes.chain import MarkovChain
from diffbisim.processes.mdp import MDP

Cell = tuple[int, int]

STRAIGHT: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
DIAGONAL: tuple[Cell, ...] = ((-1, -1), (-1, 1), (1, -1), (1, 1))
UP, DOWN, LEFT, RIGHT = range(4)


@dataclass(frozen=True)
class Grid:
    rows: int
    columns: int
    moves: tuple[Cell, ...] = STRAIGHT
    slip: float = 0.0
    goal: Cell | None = None  # absorbing
    holes: tuple[Cell, ...] = ()  # absorbing, and distinguished by a feature

    @property
    def cells(self) -> Integers:
        """Row and column of every state, (n, 2)."""
        return np.argwhere(np.ones((self.rows, self.columns)))

    def number(self, cell: Cell) -> int:
        return cell[0] * self.columns + cell[1]

    @property
    def features(self) -> Floats:
        """Features of every state, (n, 3): the center of the cell in the unit square, and 1 in holes."""
        fallen = np.zeros((self.rows * self.columns, 1))
        fallen[[self.number(hole) for hole in self.holes]] = 1.0
        return np.hstack([(self.cells + 0.5) / (self.rows, self.columns), fallen])

    def mdp(self, start: Any = 0) -> MDP:
        n = self.rows * self.columns
        kernels = np.zeros((len(self.moves), n, n))
        for a, move in enumerate(self.moves):
            there = np.clip(self.cells + move, 0, (self.rows - 1, self.columns - 1))
            kernels[a, np.arange(n), there @ (self.columns, 1)] = 1.0
        kernels = (1.0 - self.slip) * kernels + self.slip * kernels.mean(axis=0)
        ends = [self.number(cell) for cell in ((self.goal,) if self.goal else ()) + self.holes]
        kernels[:, ends] = np.eye(n)[ends]
        return MDP(kernels, initial=start)


def path_chain(n: int, path: list[int], start: Any) -> MarkovChain:
    """Return the chain that follows a path; states outside it, and its last state unless it is a loop, stay."""
    P = np.eye(n)
    P[path[:-1]] = np.eye(n)[path[1:]]
    return MarkovChain(P, initial=start)


def loop(grid: Grid, low: int, high: int) -> list[int]:
    """Return the states of a square loop, clockwise."""
    span = range(low, high)
    back = range(high, low, -1)
    sides = [[(low, k) for k in span], [(k, high) for k in span], [(high, k) for k in back], [(k, low) for k in back]]
    return [grid.number(cell) for side in sides for cell in side]


def patrol(grid: Grid, low: int, high: int) -> Integers:
    """Return the action of every state (of the moves STRAIGHT): clockwise on the loop, back to it elsewhere."""
    return np.array([_clockwise(row, column, low, high) for row, column in grid.cells.tolist()])


def _clockwise(row: int, column: int, low: int, high: int) -> int:
    if row < low or row > high:
        return DOWN if row < low else UP
    if column < low or column > high:
        return RIGHT if column < low else LEFT
    down, right = row - (low + high) / 2, column - (low + high) / 2
    if max(abs(down), abs(right)) < (high - low) / 2:  # inside
        if abs(down) >= abs(right):
            return UP if down <= 0 else DOWN
        return LEFT if right < 0 else RIGHT
    if row == low and column < high:
        return RIGHT
    if column == high and row < high:
        return DOWN
    return LEFT if row == high and column > low else UP


def turns(grid: Grid, chain: MarkovChain, discount: float) -> float:
    """Return the discounted mean of clockwise turns around the center of the grid per step."""
    middle = (grid.rows - 1) / 2, (grid.columns - 1) / 2
    z = (grid.cells - middle) @ np.array([1j, 1.0])  # rows point down, so angles grow clockwise
    angle = np.angle(z.conj()[:, None] * z[None, :]) * (np.abs(z)[:, None] * np.abs(z)[None, :] > 1e-9)
    return float((np.asarray(chain.transition_occupancy(discount)) * angle).sum() / (2 * np.pi))
