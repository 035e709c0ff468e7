"""``diffbisim info``: describe the contents of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffbisim.cli import common as cli

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.processes.chain import MarkovChain
    from diffbisim.processes.mdp import MDP


@cli.app.command(epilog="Example: diffbisim info chain.tra --unseen self-loop")
@cli.reports_errors
def info(
    file: cli.File,
    rewards: cli.Rewards = None,
    unseen: cli.Unseen = "error",
    constants: cli.Const = None,
    initial: cli.Initial = None,
    as_json: cli.Json = False,
    output: cli.JsonOutput = None,
) -> None:
    """Describe a file: size, initial states, rewards, propositions, structure, and how far it can be lumped."""
    from diffbisim.common.errors import quietly
    from diffbisim.io.chains import describe_model

    cli.check_output(output, ".json")
    known = describe_model(file, constants)
    names = known.pop("reward_names", [])
    first = Path(names[0]) if rewards is None and len(names) > 1 else rewards
    with quietly():  # the report lists what is not used
        read: Any = {"unseen": unseen, "initial": initial, "rewards": first, "const": constants}
        process = cli.read_chain_file(file, any_kind=cli.is_model(file), **read)
    report = _report(process, file, _start_source(file, initial)) | known
    report["rewards_of"] = str(first) if first is not None else names[0] if names else None
    cli.emit(report, _table(report), as_json=as_json, output=output)


def _start_source(path: Path, initial: str | None) -> str:
    """Return where the initial state of the chain in a file comes from."""
    from diffbisim.io.files import extension
    from diffbisim.io.prism import read_prism_labels

    if initial is not None:
        return "--initial"
    if extension(path) in (".csv", ".tsv"):
        return "the first row; set another with --initial" if cli.start_is_a_guess(path, None) else "starts of episodes"
    if cli.suffix(path) == ".tra":
        file = path.with_suffix(".lab")
        known = file.exists() and len(read_prism_labels(file).get("init", ())) > 0
        return f"init in {file.name}" if known else "no state is labeled init; set another with --initial"
    return "starts of episodes" if extension(path) == ".xes" else "stored in the file"


def _report(process: Any, file: Path, start_from: str) -> cli.Report:
    import numpy as np

    from diffbisim.common.errors import quietly
    from diffbisim.processes.lumping import lump
    from diffbisim.processes.mdp import MDP

    with quietly():  # without rewards, that all states look the same is a fact like the others
        lumping, r = lump(process), process.rewards
    start = process.initial.nonzero()[0]
    report = {
        "file": str(file),
        "n_states": process.n_states,
        "n_transitions": process.n_transitions,
        "sparse": process.is_sparse,
        "start": {"n_states": start.size, "states": cli.state_names(process, start), "from": start_from},
        "rewards": None if r is None else {"least": r.min(), "most": r.max(), "distinct": len(np.unique(r, axis=0))},
        "names": None if process.names is None else cli.state_names(process, range(process.n_states)),
        "lumps_to": {"n_classes": lumping.n_states, "residual": lumping.residual},
    }
    return report | (_of_mdp(process) if isinstance(process, MDP) else _of_chain(process))


def _of_mdp(mdp: MDP) -> cli.Report:
    return {"n_actions": mdp.n_actions, "actions": None if mdp.actions is None else [str(name) for name in mdp.actions]}


def _of_chain(chain: MarkovChain) -> cli.Report:
    absorbing = chain.absorbing_states
    return {
        "absorbing": {"n_states": absorbing.size, "states": cli.state_names(chain, absorbing)},
        "reachable_from_start": chain.reachable_states.size,
        "communicating_classes": {
            "total": len(chain.communicating_classes),
            "closed": len(chain.recurrent_classes),
            "periods": sorted(set(chain.periods)),
        },
        **({} if chain.lag is None else {"lag": chain.lag}),
        **({"hidden": True} if chain.hidden else {}),
    }


def _table(report: cli.Report) -> Table:
    n, start, lumps = report["n_states"], report["start"], report["lumps_to"]
    per_state = f"{report['n_transitions'] / n:.3g} per state"
    bare = "" if report["rewards"] is not None else " (without rewards all states look the same)"
    hidden = " (hidden states of an HMM, without its emissions)" if "hidden" in report else ""
    return cli.sheet({
        "file": report["file"],
        "states": f"{n:,}{hidden}",
        "transitions": f"{report['n_transitions']:,} ({per_state}), {'sparse' if report['sparse'] else 'dense'}",
        **_action_line(report),
        **({"lag": f"{report['lag']:g}"} if "lag" in report else {}),
        "start": f"{cli.listed(start['states'], start['n_states'])} ({start['from']})",
        "rewards": _rewards_line(report),
        "names": "none" if report["names"] is None else cli.listed(report["names"], n),
        **_companion_lines(report),
        **_structure_lines(report),
        "lumps to": f"{lumps['n_classes']:,} of {n:,} states{bare}",
    })  # fmt: skip


def _rewards_line(report: cli.Report) -> str:
    """Return the range of the rewards, and which ones they are if there are several."""
    r, of, several = report["rewards"], report["rewards_of"], len(report.get("reward_structures", ())) > 1
    if r is None:
        return "none"
    line = f"{r['least']:g} to {r['most']:g}, {r['distinct']:,} distinct"
    if r["least"] == r["most"]:
        line = f"{r['least']:g} in every state, so they do not tell any states apart"
    return f"{line} ({of}; choose others with --rewards)" if several else line


def _action_line(report: cli.Report) -> dict[str, str]:
    if "n_actions" not in report:
        return {}
    names = report["actions"]
    shown = "without names" if names is None else cli.listed(names[: cli.SHOWN], len(names))
    return {"actions": f"{report['n_actions']:,}: {shown}"}


def _structure_lines(report: cli.Report) -> dict[str, str]:
    """Return the lines about the structure of a chain."""
    if "communicating_classes" not in report:
        return {}
    classes, absorbing = report["communicating_classes"], report["absorbing"]
    return {
        "reachable": f"{report['reachable_from_start']:,} states",
        "absorbing": cli.listed(absorbing["states"], absorbing["n_states"]) or "none",
        "classes": f"{classes['total']:,} communicating, {classes['closed']:,} closed, of period "
        + cli.listed(classes["periods"]),
    }


def _companion_lines(report: cli.Report) -> dict[str, str]:
    """Return the lines about the propositions, variables and reward structures of a model."""
    propositions = [f"{name} ({count:,})" for name, count in report.get("propositions", {}).items()]
    found = {
        "propositions": cli.listed(propositions) + " states" if propositions else "",
        "variables": cli.listed(report.get("variables", [])),
        "reward structures": cli.listed(report.get("reward_structures", [])),
    }
    return {name: text for name, text in found.items() if text}
