"""Packages that take seconds to load, loaded by the first test that uses them.

Every worker collects all files, and would load all packages also for the tests of the other.
"""

from importlib import import_module


class Later:
    """A module: ``nx = Later("networkx")`` for ``import networkx as nx``. What it has is found when it is asked for."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        return getattr(import_module(self._name), name)
