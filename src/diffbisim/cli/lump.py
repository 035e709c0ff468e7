"""``diffbisim lump``: merge states that behave alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffbisim.cli import common as cli
from diffbisim.common.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.table import Table

    from diffbisim.processes.chain import MarkovChain
    from diffbisim.processes.mdp import MDP


@cli.app.command(epilog="Example: diffbisim lump chain.npz --output quotient.npz")
@cli.reports_errors
def lump(
    file: cli.File,
    tol: Annotated[float, typer.Option(help="Tolerance for equal probabilities")] = 1e-12,
    rewards: cli.Rewards = None,
    unseen: cli.Unseen = "error",
    constants: cli.Const = None,
    initial: cli.Initial = None,
    as_json: cli.Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the quotient chain here")] = None,
) -> None:
    """Merge states that have equal rewards and behave alike; the quotient has distance zero to the chain.

    States of an MDP (.tra) must behave alike under every action.
    """
    from diffbisim import lump as merge
    from diffbisim.processes.mdp import MDP

    cli.check_output(output, *cli.CHAIN_FILES)
    chain = cli.read_chain_file(file, unseen=unseen, initial=initial, rewards=rewards, const=constants, any_kind=True)
    if isinstance(chain, MDP) and output is not None:
        raise InvalidArgument(
            f"{file} holds an MDP, whose quotient cannot be written to a file; omit --output and use --json for the "
            "classes"
        )
    if chain.rewards is None:
        cli.note(f"{file} has no rewards, so all states look the same and form one class; give --rewards")
    lumping: Any = merge(chain, tol=tol)
    n, k = chain.n_states, lumping.n_states
    report = {
        "file": str(file),
        "n_states": n,
        "n_classes": k,
        "assignment": lumping.assignment.tolist(),
        "residual": lumping.residual,
        "reward_residual": lumping.reward_residual,
    }
    title = f"{file}: {n:,} states in {k:,} class{'es' * (k != 1)}, exact to {lumping.residual:.1g}"
    cli.emit(report, title, _table(chain, lumping), as_json=as_json)
    if output is not None:
        cli.save_chain(lumping.chain, output)


def _table(chain: MarkovChain | MDP, lumping: Any) -> Table:
    table = cli.columns("class", "states", "reward", "members")
    r = (lumping.chain if hasattr(lumping, "chain") else lumping.mdp).rewards
    for k in range(min(lumping.n_states, 2 * cli.SHOWN)):
        members = lumping.members(k)
        names = cli.listed(cli.state_names(chain, members), members.size)
        table.add_row(str(k), f"{members.size:,}", "" if r is None else _reward(r[k]), names)
    if (more := lumping.n_states - 2 * cli.SHOWN) > 0:
        table.add_row("…", "", "", f"and {more:,} more classes")
    return table


def _reward(reward: Any) -> str:
    """Format the reward of a class, one number or one per action."""
    return f"{reward:g}" if reward.ndim == 0 else ", ".join(f"{r:g}" for r in reward)
