"""The levels of instructions that the engine is built for and this processor supports."""

import importlib

from diffbisim import _engine, _engine_baseline

LEVELS = [_engine_baseline] + ([importlib.import_module("diffbisim._engine_v3")] if _engine.level == "v3" else [])
