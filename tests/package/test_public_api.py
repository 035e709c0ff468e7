"""The contract with those who call us: names, parameters and defaults, as ``public_api.txt`` has them.

A change that breaks callers shows up here as a difference. What is meant is entered by

    python tests/package/test_public_api.py

and told in CHANGELOG.md; what is taken away warns for a version first.
"""

import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path

import diffbisim

ROOT = Path(__file__).parents[2]
CONTRACT = Path(__file__).with_name("public_api.txt")
MODULES = ("torch", "jax", "solvers", "plot", "kernels", "examples")
BARE = inspect.Parameter.empty


def call(function):
    """Parameters and defaults, without types, which only say it again."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(...)"
    plain = [p.replace(annotation=BARE) for p in signature.parameters.values()]
    return re.sub(r" at 0x[0-9a-f]+", "", str(signature.replace(parameters=plain, return_annotation=BARE)))


def described(name, value):
    """A line for a function; for a class one for itself and one with its public members."""
    if inspect.isclass(value):
        own = [c for c in value.__mro__ if c.__module__.startswith("diffbisim")]
        names = {m for c in own for m in (*vars(c), *getattr(c, "__annotations__", ())) if not m.startswith("_")}
        yield f"{name}{call(value)}" if not issubclass(value, (Exception, Warning)) else name
        for member in sorted(names):
            found = getattr(value, member, None)
            yield f"{name}.{member}{call(found) if callable(found) and not inspect.isclass(found) else ''}"
    elif callable(value):
        yield f"{name}{call(value)}"


def contract():
    lines = [line for name in sorted(diffbisim.__all__) for line in described(name, getattr(diffbisim, name))]
    for home in MODULES:
        module = getattr(diffbisim, home, None) or import_module(f"diffbisim.{home}")
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
        ]
        lines += [
            line
            for name in sorted(names) if not name.startswith("_")
            for line in described(f"{home}.{name}", getattr(module, name))
        ]  # fmt: skip
    return lines


def test_names_parameters_and_defaults_are_those_of_the_contract():
    now, agreed = contract(), CONTRACT.read_text(encoding="utf-8").splitlines()
    gone, new = sorted(set(agreed) - set(now)), sorted(set(now) - set(agreed))
    assert not gone, f"callers of these will break; if it is meant, see the head of this file: {gone}"
    assert not new, f"enter what is new, see the head of this file: {new}"


def test_extras_do_not_pull_each_other_in():
    """Only ``all``, ``test`` and ``docs`` name other extras, and no package stands in two that a user would choose."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    own = {
        name: {re.match(r"[\w-]+", need)[0].lower() for need in needs}
        for name, needs in extras.items()
        if name not in ("all", "test", "docs", "lint", "bench")
    }
    for name, needs in own.items():
        assert "diffbisim" not in needs, name
        for other in own.keys() - {name}:
            assert not needs & own[other], (name, other)
    heavy = {"torch", "jax", "stable-baselines3"}
    assert all(name in heavy or not needs & heavy for name, needs in own.items() if name != "rl")


if __name__ == "__main__":
    CONTRACT.write_text("\n".join(contract()) + "\n", encoding="utf-8")
