"""Property bounds checked with Storm's model checker: none may be violated on Storm's own models.

    python benchmarks/long/storm_bounds.py          (needs stormpy)

Each model is compared with a modified one, with other constants or with small random changes of all probabilities on
the same support. For every reward structure and proposition, Storm computes on both models the expected discounted
reward, the long-run average and a sum over ten steps; for MDPs, the least and the greatest discounted reward. The
differences must satisfy the bounds that `property_bound` certifies. The exit code is 1 if anything is violated.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
import stormpy
import stormpy.examples.files

import diffbisim as db
from diffbisim.io.storm import read_storm
from diffbisim.processes.mdp import MDP

FILES = Path(stormpy.examples.files.testfile_dir)
γ, T, SLACK = 0.9, 10, 1e-6  # Storm's own precision
CHAINS = [
    ("dtmc/die.pm", None), ("dtmc/brp.pm", "N=2,MAX=1"), ("dtmc/brp.pm", "N=4,MAX=2"), ("dtmc/brp.pm", "N=8,MAX=2"),
    ("dtmc/brp.pm", "N=3,MAX=3"), ("dtmc/brp.pm", "N=6,MAX=4"), ("dtmc/brp.pm", "N=4,MAX=1"),
    ("dtmc/test_conditional.pm", None), ("dtmc/brp.pm", "N=1,MAX=1"), ("dtmc/brp.pm", "N=1,MAX=4"),
    ("dtmc/brp.pm", "N=2,MAX=5"), ("dtmc/brp.pm", "N=5,MAX=1"), ("dtmc/brp.pm", "N=7,MAX=1"),
    ("dtmc/brp.pm", "N=3,MAX=1"),
]  # fmt: skip
MDPS = [
    ("mdp/two_dice.nm", None), ("mdp/tiny_rewards.nm", None), ("mdp/die_c1.nm", None), ("mdp/multiobjective1.nm", None),
    ("mdp/multiobjective2.nm", None), ("mdp/scheduler_generation.nm", None),
    ("mdp/maze_2.nm", None), ("mdp/slipgrid.nm", None), ("mdp/die_selection.nm", None),
]  # fmt: skip


def moved(model, seed):
    """Return the same model with other probabilities on the same support."""
    rng = np.random.default_rng(seed)
    p = model.probability * np.exp(0.1 * rng.standard_normal(model.probability.size))
    return dataclasses.replace(model, probability=p / np.bincount(model.row, p)[model.row])


def written(model, rewards):
    """Return the model that Storm builds from a .drn text, with these choice rewards as its only structure."""
    kind = "DTMC" if model.is_chain else "MDP"
    lines = [f"@type: {kind}", "@parameters", "", "@reward_models", "r", "@nr_states", f"{model.n_states}",
             "@nr_choices", f"{model.owner.size}", "@model"]  # fmt: skip
    start = set(np.asarray((model.propositions or {}).get("init", [0])).tolist())
    begin, c = np.searchsorted(model.row, np.arange(model.owner.size + 1)), 0
    for s in range(model.n_states):
        lines.append(f"state {s} [0]{' init' * (s in start)}")
        while c < model.owner.size and model.owner[c] == s:
            lines.append(f"\taction {c} [{float(rewards[c])!r}]")
            lines += [f"\t\t{model.target[k]} : {float(model.probability[k])!r}" for k in range(begin[c], begin[c + 1])]
            c += 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.drn"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return stormpy.build_model_from_drn(path)


def checked(model, formula):
    """Return Storm's result for the initial state (the mean if there are several)."""
    result = stormpy.model_checking(model, stormpy.parse_properties(formula)[0])
    return float(np.mean([result.get_value(s) for s in model.initial_states]))


def paid(model, name):
    """Return rewards of choices: those of a structure, or one in the states of a proposition."""
    if name in (model.rewards or {}):
        return np.asarray(model.rewards[name], dtype=np.float64)
    return np.isin(model.owner, model.propositions[name]).astype(np.float64)


def compare(file, constants, seed):
    """Return (what, certified, found) for every reward of a model and a modified one."""
    model = read_storm(FILES / file, constants)
    other = moved(model, seed)
    names = [*(model.rewards or {}), *(n for n in model.propositions if n not in ("init", "deadlock"))]
    for name in names[:3]:
        M, N = (written(m, paid(m, name)) for m in (model, other))
        X, Y = (db.as_chain(m, rewards=name, unseen="repeat") for m in (model, other))
        if isinstance(X, MDP):
            result = db.distance(X, Y, discount=γ, actions="lax")
            for least in ("min", "max"):
                found = abs(checked(M, f"R{least}=? [Cdiscount={γ}]") - checked(N, f"R{least}=? [Cdiscount={γ}]"))
                yield f"{name} R{least} discounted", result.property_bound, found
            continue
        asked = {
            f"R=? [Cdiscount={γ}]": {"discount": γ}, "R=? [LRA]": {"criterion": "average"},
            f"R=? [C<={T}]": {"weights": [1.0] * T},
        }  # fmt: skip
        if X.n_states > 50:  # these take a minute each
            del asked["R=? [LRA]"]
        for formula, options in asked.items():
            result = db.distance(X, Y, lump="weights" not in options and "criterion" not in options, **options)
            yield f"{name} {formula}", result.property_bound, abs(checked(M, formula) - checked(N, formula))


def main() -> None:
    models = violated = count = 0
    for k, (file, constants) in enumerate(MDPS + CHAINS):
        try:
            rows = list(compare(file, constants, k))
        except db.DiffbisimError as error:
            print(f"{file:32s}{constants or '':12s} left out: {str(error)[:80]}")
            continue
        models += bool(rows)
        for _, certified, found in rows:
            count += 1
            violated += not found <= certified + SLACK * max(1.0, certified)
        worst = max((found / certified for _, certified, found in rows if certified > 1e-9), default=0.0)
        print(
            f"{file:32s}{constants or '':12s}{len(rows):4d} properties, at most {worst:6.1%} of the bound", flush=True
        )
    print(f"{models} models, {count} properties, {violated} violated")
    sys.exit(bool(violated) or models < 20)


if __name__ == "__main__":
    main()
