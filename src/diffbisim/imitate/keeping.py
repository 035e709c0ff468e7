"""The checkpoint of an imitation: written between iterations, read when the same call is made again.

What is kept is the run (run.py), the random generator, the learner, and in an environment the counts of all that was
seen. A module as policy is trained in place, so it may come back as the call before has left it, or as it was given
then; with any other values it is another run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.data.gymnasium import sizes
from diffbisim.fit.checkpoint import Checkpoint, digest
from diffbisim.imitate.learner import Learner, TabularLearner


class Keeper:
    """Reads and writes the checkpoint of one imitation; without a path it does nothing.

    As a context manager it leaves the learner as the file has it when the block is interrupted, so that the same call
    goes on from there.
    """

    def __init__(
        self, path: str | Path | None, learner: Learner, rng: np.random.Generator, facts: Callable[[], dict[str, Any]]
    ) -> None:
        self.learner, self.rng, self.kept = learner, rng, learner.state()
        self.file = None if path is None else Checkpoint(path, "imitate", facts())
        self.begun = "" if self.file is None else digest(self.kept[:2])

    def read(self) -> Mapping[str, Any] | None:
        """What was kept, None if nothing; the generator goes on where it stood."""
        state = None if self.file is None else self.file.read()
        if self.file is None or state is None:
            return None
        if not isinstance(self.learner, TabularLearner):
            kept, ended = state["learner"], [state["best"], state["learner"][1]]
            if self.begun not in (state["begun"], digest(kept[:2]), digest(ended)):
                raise self.file.of_another_run("the values at which the parameters of policy begin")
        self.begun, self.kept = state["begun"], state["learner"]
        self.learner.resume(self.kept)
        self.rng.bit_generator.state = state["rng"].bit_generator.state
        found: Mapping[str, Any] = state["state"]
        return found

    def write(self, state: Callable[[], Mapping[str, Any]], best: Any = None) -> None:
        """Keep what ``state()`` says; ``best`` is the snapshot that the run would leave in the learner."""
        if self.file is None:
            return
        self.kept = self.learner.state()
        best = self.kept[0] if best is None else best
        held = {"begun": self.begun, "learner": self.kept, "best": best, "rng": self.rng, "state": state()}
        self.file.write(held)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and self.file is not None:
            self.learner.resume(self.kept)


def environment_facts(env: Any) -> list[Any]:
    """What can be told of an environment: its class, name and options, sizes, and its table if it carries one."""
    inner, spec = getattr(env, "unwrapped", env), getattr(env, "spec", None)
    named = [getattr(spec, "id", None), getattr(spec, "kwargs", None)]
    return [type(inner), named, sizes(env), getattr(inner, "P", None), getattr(inner, "mdp", None)]
