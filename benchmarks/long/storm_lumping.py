"""Exact lumping compared with Storm's bisimulation: equal numbers of classes on all of its example models.

    python benchmarks/long/storm_lumping.py          (needs stormpy)

Every chain and MDP among Storm's examples (programs and explicit files) is lumped by each of its propositions and by
all of them together. Storm identifies actions of an MDP that lead to the same distributions, whatever their names;
`lump` distinguishes them. To make the names visible to Storm, every action becomes a separate state, labeled by its
name, with the action's distribution over successors. The exit code is 1 if any number of classes differs.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import stormpy
import stormpy.examples.files

import diffbisim as db
from diffbisim.processes.mdp import MDP
from diffbisim.processes.recognize import recognize

FILES = Path(stormpy.examples.files.testfile_dir)
CONSTANTS = {
    "brp.pm": "N=16,MAX=2", "brp.jani": "N=16,MAX=2", "coin2.nm": "K=2", "firewire.nm": "delay=3,fast=0.5",
    "wlan0_collide.nm": "COL=2,TRANS_TIME_MAX=10",
}  # fmt: skip
INFINITE, MAX_STATES = ("infinite.pm",), 100_000  # states


def built(path):
    """Return the model that Storm builds from a program, or from an explicit file and its labels."""
    if path.suffix == ".tra":
        near = path.with_suffix(".lab")
        return stormpy.build_model_from_explicit(path, near if near.exists() else FILES / "lab" / near.name)
    program = stormpy.parse_jani_model(path)[0] if path.suffix == ".jani" else stormpy.parse_prism_program(path)
    if path.name in CONSTANTS:
        program, _ = stormpy.instantiate_constants(program, CONSTANTS[path.name])
    options = stormpy.BuilderOptions()
    options.set_build_all_labels(
        True
    )  # and no more, since quotients would distinguish the commands that steps come from
    return stormpy.build_model(program, options=options)


def quotient(model, names):
    """Return Storm's quotient for these propositions, passed twice because a single formula is handled differently."""
    best = "max" if type(model).__name__ == "SparseMdp" else ""
    asked = ";".join(f'P{best}=? [F "{name}"]' for name in [*names] * 2)
    return stormpy.transformations.perform_bisimulation(model, stormpy.parse_properties(asked))


def storm_classes(folder, kernels, looks):
    """Return the size of Storm's quotient of an MDP with A sparse kernels (n, n) and observations (n,) of states."""
    n, kinds = kernels[0].shape[0], np.unique(looks, return_inverse=True)[1].ravel()
    lines = ["mdp"]
    for s in range(n):
        lines += [f"{s} {a} {n + a * n + s} 1" for a in range(len(kernels))]
    for a, P in enumerate(kernels):
        P = sp.csr_array(P)
        rows = np.repeat(np.arange(n), np.diff(P.indptr)) + n + a * n
        lines += [f"{s} 0 {t} {float(p)!r}" for s, t, p in zip(rows, P.indices, P.data, strict=True) if p]
    held = [f"{s} looks{kinds[s]}{' init' * (s == 0)}" for s in range(n)]
    held += [f"{n + a * n + s} action{a}" for a in range(len(kernels)) for s in range(n)]
    names = [*(f"looks{k}" for k in range(kinds.max() + 1)), *(f"action{a}" for a in range(len(kernels)))]
    (folder / "q.tra").write_text("\n".join(lines) + "\n", encoding="utf-8")
    head = ["#DECLARATION", " ".join(["init", *names]), "#END"]
    (folder / "q.lab").write_text("\n".join([*head, *held]) + "\n", encoding="utf-8")
    small = quotient(stormpy.build_model_from_explicit(folder / "q.tra", folder / "q.lab"), names)
    return len(set().union(*(small.labeling.get_states(name) for name in names if name.startswith("looks"))))


def compared(model, names):
    """Return (our number of classes, Storm's) for these propositions."""
    explicit = recognize(model)
    looks = np.stack([np.isin(np.arange(explicit.n_states), explicit.propositions[name]) for name in names], axis=1)
    key = np.unique(looks, axis=0, return_inverse=True)[1].ravel()
    process = db.as_chain(explicit, rewards=key.astype(float), unseen="repeat")
    if not isinstance(process, MDP):
        return db.lump(process).n_states, quotient(model, names).nr_states
    with tempfile.TemporaryDirectory() as folder:
        return db.lump(process).n_states, storm_classes(Path(folder), process.transition, key)


def main() -> None:
    files = sorted(p for kind in ("dtmc", "mdp", "tra") for p in (FILES / kind).iterdir()
                   if p.suffix in (".pm", ".nm", ".jani", ".tra"))  # fmt: skip
    models = count = different = 0
    for path in files:
        name, began = f"{path.parent.name}/{path.name}", time.process_time()
        if path.name in INFINITE:
            print(f"{name:44s} left out: infinitely many states")
            continue
        try:
            model = built(path)
            if model.nr_states > MAX_STATES:
                raise ValueError(f"{model.nr_states} states")
            held = sorted(set(model.labeling.get_labels()) - {"init", "deadlock"})
            asked = [[label] for label in held] + [held] * (len(held) > 1)
            found = [compared(model, names) for names in asked]
        except Exception as error:  # Storm's tests also contain unreadable files
            print(f"{name:44s} left out: {' '.join(str(error).split())[:70]}")
            continue
        models, count = models + bool(found), count + len(found)
        different += sum(ours != storms for ours, storms in found)
        classes = ", ".join(f"{ours}" if ours == storms else f"{ours} (Storm: {storms})" for ours, storms in found)
        seconds = time.process_time() - began
        print(f"{name:44s}{model.nr_states:7d} states in {classes or 'nothing to see'} ({seconds:.1f} s)", flush=True)
    print(f"{models} models, {count} quotients, {different} of another size than Storm's")
    sys.exit(bool(different) or not models)


if __name__ == "__main__":
    main()
