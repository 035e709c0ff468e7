"""From results to what is printed: a table for people or JSON for machines, and progress while they wait."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from diffbisim import __version__
from diffbisim.chain import MarkovChain
from diffbisim.cli.structure import structure
from diffbisim.distance import distance, make_solver
from diffbisim.errors import quietly
from diffbisim.estimate import Estimate
from diffbisim.experiments import Finished
from diffbisim.io.prism import describe
from diffbisim.lumping import Lumping, lump
from diffbisim.results import DistanceResult

SHOWN = 8  # states or classes listed before "and 5 more"

Report = dict[str, Any]
Chains = tuple[MarkovChain, MarkovChain]


def emit(report: Report, *parts: str | Table, as_json: bool) -> None:
    """On standard output: the report for machines, or its parts for people."""
    if as_json:
        print(as_text(report))
        return
    for part in parts:
        _console().print(part, soft_wrap=isinstance(part, str))


def as_text(report: Report) -> str:
    return json.dumps(report, indent=2, allow_nan=False)


def note(message: str) -> None:
    print(f"diffbisim: note: {message}", file=sys.stderr)


def bar() -> bool:
    """Whether somebody is there to watch a bar."""
    return sys.stderr.isatty()


def solve_with_progress(
    chains: Chains,
    cost: Any,
    discount: float,
    solver: str,
    tol: float | None,
    lump: bool,
    options: Mapping[str, Any],
) -> DistanceResult:
    """The distance, with iteration and certified gap on standard error as it goes."""
    chosen = make_solver(solver, tol)
    chosen = replace(chosen, **{name: value for name, value in options.items() if value is not None})
    rows: list[Mapping[str, float]] = []
    console = Console(stderr=True)
    with console.status("solving", spinner="line") as line, quietly():  # the status is printed anyway

        def callback(row: Mapping[str, float]) -> None:
            rows.append(row)
            line.update(f"iteration {len(rows)}, certified gap {row['upper'] - row['lower']:.1e}")

        try:
            return distance(*chains, cost, discount, chosen, lump=lump, callback=callback)
        except KeyboardInterrupt:
            known = f": {rows[-1]['lower']:.9g} <= d <= {rows[-1]['upper']:.9g} is certified" if rows else ""
            raise KeyboardInterrupt(f"interrupted after {len(rows)} iterations{known}") from None


def distance_report(result: DistanceResult, files: Iterable[Path], cost: str, seconds: float) -> Report:
    chains = (result.problem.x, result.problem.y)
    return {
        "value": result.value,
        "lower": result.lower,
        "upper": result.upper,
        "gap": result.gap,
        "converged": result.converged,
        "outcome": result.outcome.name.lower(),
        "status": result.status,
        "iterations": result.iterations,
        "solver": result.solver,
        "cost": cost,
        "discount": result.discount,
        "chains": [
            {
                "file": str(file),
                "n_states": chain.n_states,
                "n_transitions": chain.n_transitions,
                "start": start_names(chain),
            }
            for file, chain in zip(files, chains, strict=True)
        ],
        "work": dict(result.work),
        "seconds": round(seconds, 6),
        "version": __version__,
    }


def distance_table(report: Report) -> Table:
    steps = report["iterations"]
    lines = {
        "distance": f"{report['value']:.10g}",
        "certified": f"{report['lower']:.10g} ≤ d ≤ {report['upper']:.10g}",
        "gap": f"{report['gap']:.1e}",
        "status": report["status"],
        "solver": f"{report['solver']}, {steps} iteration{'s' * (steps != 1)}, {report['seconds']:.3g} s with loading",
        "cost, discount": f"{report['cost']}, {report['discount']:g}",
    }
    for name, chain in zip("AB", report["chains"], strict=True):
        counts = f"{chain['n_states']:,} states, {chain['n_transitions']:,} transitions"
        lines[name] = f"{chain['file']}: {counts}, start {_listed(chain['start'], len(chain['start']))}"
    return _sheet(lines)


def estimate_report(found: Estimate, files: Iterable[Path], cost: str, seed: int, seconds: float) -> Report:
    chains = (found.distance.problem.x, found.distance.problem.y)
    return {
        "value": found.value,
        "lower": found.lower,
        "upper": found.upper,
        "confidence": found.confidence,
        "corrected": found.corrected,
        "bias": found.bias,
        "standard_error": found.standard_error,
        "p_value": found.p_value,
        "conclusion": found.conclusion,
        "replicates": found.replicates.size,
        "cost": cost,
        "discount": found.distance.discount,
        "seed": seed,
        "chains": [
            {
                "file": str(file),
                "n_states": chain.n_states,
                "n_transitions": chain.n_transitions,
                "start": start_names(chain),
            }
            for file, chain in zip(files, chains, strict=True)
        ],
        "seconds": round(seconds, 6),
        "version": __version__,
    }


def estimate_table(report: Report) -> Table:
    lines = {
        "distance": f"{report['value']:.6g} between the empirical chains",
        "interval": f"{report['lower']:.6g} to {report['upper']:.6g}, confidence {report['confidence']:g}",
        "bias": f"{report['bias']:.3g}; corrected {report['corrected']:.6g}",
        "equal?": f"p = {report['p_value']:.3g}: {report['conclusion']}",
        "bootstrap": f"{report['replicates']} replicates, seed {report['seed']}, {report['seconds']:.3g} s",
        "cost, discount": f"{report['cost']}, {report['discount']:g}",
    }
    for name, chain in zip("AB", report["chains"], strict=True):
        counts = f"{chain['n_states']:,} states, {chain['n_transitions']:,} different transitions"
        lines[name] = f"{chain['file']}: {counts}, start {_listed(chain['start'], len(chain['start']))}"
    return _sheet(lines)


def model_report(result: Any, seconds: float, **more: Any) -> Report:
    """Of a compression, a fit or an imitation: all carry a certified distance."""
    d = result.distance
    if hasattr(result, "used"):  # a compression: how many of its states are worth having
        more["used"] = result.used
    return {
        **more,
        "distance": d.value,
        "lower": d.lower,
        "upper": d.upper,
        "discount": d.discount,
        "status": getattr(result, "status", d.status),
        "iterations": len(result.history),
        "seconds": round(seconds, 6),
        "version": __version__,
    }


def model_table(report: Report) -> Table:
    lines = {
        "distance": f"{report['distance']:.6g}",
        "certified": f"{report['lower']:.10g} ≤ d ≤ {report['upper']:.10g}",
        "status": report["status"],
        "took": f"{report['iterations']} steps, {report['seconds']:.3g} s",
    }
    known = {"lower", "upper", "version", "seconds", "iterations", *lines}
    lines |= {name.replace("_", " "): _short(value) for name, value in report.items() if name not in known}
    return _sheet(lines)


def _short(value: Any) -> str:
    """A number or a name as it is, a long list by its beginning."""
    if not isinstance(value, list):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = ", ".join(_short(entry) for entry in value[: 2 * SHOWN])
    return text if len(value) <= 2 * SHOWN else f"{text} and {len(value) - 2 * SHOWN:,} more"


def info_report(chain: MarkovChain, file: Path, start_from: str) -> Report:
    shape, lumping = structure(chain), lump(chain)
    start, r = np.flatnonzero(chain.initial), chain.rewards
    return {
        "file": str(file),
        "n_states": chain.n_states,
        "n_transitions": chain.n_transitions,
        "sparse": chain.is_sparse,
        "start": {"n_states": start.size, "states": _names(chain, start), "from": start_from},
        "rewards": None if r is None else {"least": r.min(), "most": r.max(), "distinct": np.unique(r).size},
        "labels": None if chain.labels is None else _names(chain, range(chain.n_states)),
        **(describe(file) if file.suffix.lower() == ".tra" else {}),
        "absorbing": {"n_states": shape.absorbing.size, "states": _names(chain, shape.absorbing)},
        "reachable_from_start": shape.reachable,
        "communicating_classes": {
            "total": shape.n_classes,
            "closed": shape.periods.size,
            "periods": np.unique(shape.periods).tolist(),
        },
        "lumps_to": {"n_classes": lumping.n_states, "residual": lumping.residual},
        "version": __version__,
    }


def info_table(report: Report) -> Table:
    n, r, classes = report["n_states"], report["rewards"], report["communicating_classes"]
    start, absorbing, lumps = report["start"], report["absorbing"], report["lumps_to"]
    per_state = f"{report['n_transitions'] / n:.3g} per state"
    periods = ", ".join(map(str, classes["periods"]))
    bare = "" if r is not None else " (without rewards all states look alike)"
    lines = {
        "file": report["file"],
        "states": f"{n:,}",
        "transitions": f"{report['n_transitions']:,} ({per_state}), {'sparse' if report['sparse'] else 'dense'}",
        "start": f"{_listed(start['states'], start['n_states'])} ({start['from']})",
        "reachable": f"{report['reachable_from_start']:,} states from the start",
        "rewards": "none" if r is None else f"{r['least']:g} to {r['most']:g}, {r['distinct']:,} distinct",
        "labels": "none" if report["labels"] is None else _listed(report["labels"], n),
        **_beside(report),
        "absorbing": _listed(absorbing["states"], absorbing["n_states"]) if absorbing["n_states"] else "none",
        "classes": f"{classes['total']:,} communicating, {classes['closed']:,} closed, of period {periods}",
        "lumps to": f"{lumps['n_classes']:,} of {n:,} states{bare}",
    }
    return _sheet(lines)


def _beside(report: Report) -> dict[str, str]:
    """What stands beside a .tra file: propositions, variables, reward structures."""
    held = [f"{name} ({count:,})" for name, count in report.get("propositions", {}).items()]
    found = {
        "propositions": ", ".join(held) + " states" if held else "",
        "variables": ", ".join(report.get("variables", ())),
        "reward files": ", ".join(report.get("reward_structures", ())),
    }
    return {name: text for name, text in found.items() if text}


def lump_report(chain: MarkovChain, lumping: Lumping, file: Path) -> Report:
    return {
        "file": str(file),
        "n_states": chain.n_states,
        "n_classes": lumping.n_states,
        "labels": lumping.labels.tolist(),
        "residual": lumping.residual,
        "reward_residual": lumping.reward_residual,
        "version": __version__,
    }


def lump_title(lumping: Lumping, file: Path) -> str:
    n = lumping.n_states
    return f"{file}: {lumping.labels.size:,} states in {n:,} class{'es' * (n != 1)}, exact to {lumping.residual:.1g}"


def lump_table(chain: MarkovChain, lumping: Lumping) -> Table:
    table = Table("class", "states", "reward", "members", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for k in range(min(lumping.n_states, 2 * SHOWN)):
        members, r = lumping.members(k), lumping.chain.rewards
        names = _listed(_names(chain, members), members.size)
        table.add_row(str(k), f"{members.size:,}", "" if r is None else f"{r[k]:g}", names)
    if (more := lumping.n_states - 2 * SHOWN) > 0:
        table.add_row("…", "", "", f"and {more:,} more classes")
    return table


def show_experiment(finished: Finished) -> None:
    """A table of what was measured, and where the files are."""
    table = Table(*finished.header, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in finished.rows:
        table.add_row(*row)
    console = _console()
    console.print(finished.title, style="bold")
    console.print(table)
    for sentence in finished.findings:
        console.print(f"  {sentence}", soft_wrap=True)
    if finished.claim:
        console.print(f"  the paper: {finished.claim}", soft_wrap=True)
    console.print(f"  verdict: {finished.verdict}. {finished.why}", soft_wrap=True)
    made = f"{finished.seconds:.1f} s" if finished.new else "made by an earlier run; --fresh to run it again"
    console.print(f"  files: {', '.join(map(str, finished.files))} ({made})\n", soft_wrap=True)


def _console() -> Console:
    """Standard output; labels and file names are printed as they are, whatever they look like."""
    return Console(markup=False, emoji=False, highlight=False)


def _sheet(lines: Mapping[str, str]) -> Table:
    """Two columns, name and value; long values fold."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(name, value)
    return table


def _names(chain: MarkovChain, states: Iterable[int]) -> list[Any]:
    """The first few labels, as JSON can hold them."""
    return [_plain(chain.label(int(k))) for k, _ in zip(states, range(SHOWN), strict=False)]


def start_names(chain: MarkovChain) -> list[Any]:
    """Where a chain starts, by the first few labels."""
    return _names(chain, np.flatnonzero(chain.initial))


def _plain(label: Hashable) -> Any:
    return label if isinstance(label, (str, int)) else repr(label)


def _listed(names: list[Any], total: int) -> str:
    more = f" and {total - len(names):,} more" if total > len(names) else ""
    return ", ".join(map(str, names)) + more
