"""The levels of instructions that the engine is built for and this processor supports."""

import importlib

from diffbisim import _engine, _engine_baseline

LEVELS = [_engine_baseline] + ([importlib.import_module("diffbisim._engine_v3")] if _engine.level == "v3" else [])


def at_every_level(monkeypatch, threads=(1, 2)):
    """Let all calls of the engine go to each level in turn; yields the numbers of threads for each."""
    for level in LEVELS:
        for name in vars(level):
            if not name.startswith("_"):
                monkeypatch.setattr(_engine, name, getattr(level, name))
        yield from threads
