"""Imitation with continuous observations, all scenes, methods and seeds; one file per run, and none is run twice.

python benchmarks/long/control.py FOLDER [PART OF PARTS]     # "0 2" and "1 2" share the work between two processes
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from diffbisim.experiments import control
from diffbisim.imitate.control import Control


def run(folder, part=0, parts=1):
    """All runs of a part, stored one by one."""
    settings = control.FULL
    cases = [
        (scene, method, settings.first_seed + k)
        for k in range(settings.seeds)
        for scene, method in control.cases(settings)
    ]
    cases.sort(key=lambda case: control.SCENES[case[0]].options != Control())  # the long ones last
    for scene, method, seed in cases[part::parts]:
        path = folder / f"{scene}, {method}, {seed}.json"
        if not path.exists():
            path.write_text(json.dumps(control.imitation(scene, method, seed)), encoding="utf-8")
            print(path.stem, json.loads(path.read_text(encoding="utf-8"))["share"], flush=True)


def outcome(folder):
    """What is in the folder by now."""
    seen = sorted(folder.glob("*.json"), key=lambda path: int(path.stem.rsplit(", ", 1)[1]))
    runs = {}
    for path in seen:
        case = next((s, m) for s in control.SCENES for m in control.METHODS if path.stem.startswith(f"{s}, {m}, 1"))
        runs.setdefault(case, []).append(json.loads(path.read_text(encoding="utf-8")))
    order = [case for case in control.cases(control.FULL) if case in runs]
    return control.Outcome(replace(control.FULL, seeds=1), {case: runs[case] for case in order})


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    run(where, *map(int, sys.argv[2:4]))
    for row in control.table(outcome(where)):
        print(*row.values(), sep=" | ")
