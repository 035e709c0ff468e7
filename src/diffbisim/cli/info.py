"""``diffbisim info``: describe the contents of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from diffbisim.cli import common as cli

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.chain import MarkovChain


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
    """Describe a file: size, initial states, rewards, structure, and how far the chain can be lumped."""
    cli.check_output(output, ".json")
    chain = cli.read_chain_file(file, unseen=unseen, initial=initial, rewards=rewards, const=constants)
    report = _report(chain, file, _start_source(file, initial))
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
        labels = path.with_suffix(".lab")
        labeled = labels.exists() and len(read_prism_labels(labels).get("init", ())) > 0
        return f"init in {labels.name}" if labeled else "no state is labeled init; set another with --initial"
    return "starts of episodes" if extension(path) == ".xes" else "stored in the file"


def _report(chain: MarkovChain, file: Path, start_from: str) -> cli.Report:
    import numpy as np

    from diffbisim.io.prism import describe
    from diffbisim.lumping import lump

    lumping, r = lump(chain), chain.rewards
    start, absorbing = chain.initial.nonzero()[0], chain.absorbing_states
    return {
        "file": str(file),
        "n_states": chain.n_states,
        "n_transitions": chain.n_transitions,
        "sparse": chain.is_sparse,
        "start": {"n_states": start.size, "states": cli.state_names(chain, start), "from": start_from},
        "rewards": None if r is None else {"least": r.min(), "most": r.max(), "distinct": len(np.unique(r, axis=0))},
        "labels": None if chain.labels is None else cli.state_names(chain, range(chain.n_states)),
        **(describe(file) if cli.suffix(file) == ".tra" else {}),
        "absorbing": {"n_states": absorbing.size, "states": cli.state_names(chain, absorbing)},
        "reachable_from_start": chain.reachable_states.size,
        "communicating_classes": {
            "total": len(chain.communicating_classes),
            "closed": len(chain.recurrent_classes),
            "periods": sorted(set(chain.periods)),
        },
        "lumps_to": {"n_classes": lumping.n_states, "residual": lumping.residual},
    }


def _table(report: cli.Report) -> Table:
    n, r, classes = report["n_states"], report["rewards"], report["communicating_classes"]
    start, absorbing, lumps = report["start"], report["absorbing"], report["lumps_to"]
    per_state = f"{report['n_transitions'] / n:.3g} per state"
    bare = "" if r is not None else " (without rewards all states look the same)"
    return cli.sheet({
        "file": report["file"],
        "states": f"{n:,}",
        "transitions": f"{report['n_transitions']:,} ({per_state}), {'sparse' if report['sparse'] else 'dense'}",
        "start": f"{cli.listed(start['states'], start['n_states'])} ({start['from']})",
        "reachable": f"{report['reachable_from_start']:,} states",
        "rewards": "none" if r is None else f"{r['least']:g} to {r['most']:g}, {r['distinct']:,} distinct",
        "labels": "none" if report["labels"] is None else cli.listed(report["labels"], n),
        **_companion_lines(report),
        "absorbing": cli.listed(absorbing["states"], absorbing["n_states"]) or "none",
        "classes": f"{classes['total']:,} communicating, {classes['closed']:,} closed, of period "
        + cli.listed(classes["periods"]),
        "lumps to": f"{lumps['n_classes']:,} of {n:,} states{bare}",
    })  # fmt: skip


def _companion_lines(report: cli.Report) -> dict[str, str]:
    """Return the lines about the companions of a .tra file: propositions, variables, reward structures."""
    propositions = [f"{name} ({count:,})" for name, count in report.get("propositions", {}).items()]
    found = {
        "propositions": cli.listed(propositions) + " states" if propositions else "",
        "variables": cli.listed(report.get("variables", [])),
        "reward files": cli.listed(report.get("reward_structures", [])),
    }
    return {name: text for name, text in found.items() if text}
