"""Imitation with continuous observations for several scenes, methods and seeds; completed runs are not repeated.

python benchmarks/long/control.py plan FOLDER                      # the table of docs/control.md
python benchmarks/long/control.py cells FOLDER --scene MountainCar --scene Pendulum
python benchmarks/long/control.py ppo FOLDER --scene CartPole --scene Acrobot --seeds 2
python benchmarks/long/control.py plan FOLDER --scene Pendulum --change g=12 --demonstrations 1

--part 0 2 and --part 1 2 divide the work between two processes. Each run is stored in a file. Runs with other steps,
demonstrations or worlds are stored in separate folders.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from diffbisim.learning.imitate.control import Control
from experiments import control


def run(folder, settings, part, parts):
    """Run all runs of a part and store them one by one."""
    cases = [
        (scene, method, settings.first_seed + k)
        for k in range(settings.seeds)
        for scene, method in control.cases(settings)
    ]
    cases.sort(key=lambda case: control.ALL_SCENES[case[0]].options != Control())  # long runs last
    for scene, method, seed in cases[part::parts]:
        path = folder / f"{scene}, {method}, {seed}.json"
        if not path.exists():
            path.write_text(json.dumps(control.imitation(scene, method, seed, settings)), encoding="utf-8")
            print(path.stem, json.loads(path.read_text(encoding="utf-8"))["share"], flush=True)


def outcome(folder, settings):
    """Print the results in the folder so far."""
    runs = {}
    for scene, method in control.cases(settings):
        paths = [folder / f"{scene}, {method}, {settings.first_seed + k}.json" for k in range(settings.seeds)]
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
        if found:
            runs[scene, method] = found
    return control.Outcome(settings, runs)


def asked():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["plan", "cells", "ppo"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scene", action="append", choices=list(control.ALL_SCENES))
    parser.add_argument("--method", action="append", choices=list(control.METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--steps", type=int, help="default: of the scene; cells 10,000, ppo 30,000")
    parser.add_argument("--demonstrations", type=int, help="default 5")
    parser.add_argument("--change", action="append", default=[], metavar="NAME=NUMBER", help="of the learner's world")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1))
    return parser.parse_args()


def settings_of(given):
    """Return the settings of the experiment and the folder for runs with them."""
    scenes = tuple(given.scene or control.SCENES)
    changes = tuple((name, float(value)) for name, value in (change.split("=") for change in given.change))
    steps = given.steps or {"plan": None, "cells": 10_000, "ppo": 30_000}[given.how]
    other = {"steps": steps, "demonstrations": given.demonstrations, "rounds": 4 if given.how == "cells" else None}
    other = {name: value for name, value in other.items() if value is not None}
    options = replace(control.ALL_SCENES[scenes[0]].options, **other) if other else None
    default = {"plan": control.PLANNED, "cells": [control.CELLS], "ppo": control.REWARDS}
    methods = tuple(given.method or default[given.how])
    name = ", ".join(f"{name}={value:g}" for name, value in (*other.items(), *changes))
    settings = control.Settings(scenes, methods, given.seeds, given.first_seed, options, changes)
    return settings, given.folder / name


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = asked()
    chosen, where = settings_of(given)
    where.mkdir(parents=True, exist_ok=True)
    run(where, chosen, *given.part)
    for row in control.table(outcome(where, chosen)):
        print(*row.values(), sep=" | ")
