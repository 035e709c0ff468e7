"""Models of Storm: .drn files, and programs that stormpy builds.

    @type: MDP                    DTMC or MDP
    @reward_models
    steps heads                   names of the reward structures
    @nr_states
    2
    @model
    state 0 [1, 0] init           a state, its rewards, and the propositions that hold in it
    //[x=0 & !up]                 optional: its variables, which become its name (0, False)
        action go [0, 0.5]        a choice with its action (or __NOLABEL__) and its rewards
            0 : 0.25              a successor and its probability: 0.25, 1/4, or a placeholder
            1 : 0.75

States may have different choices (see `explicit`). Programs in PRISM's language (.pm, .nm, .prism) and JANI models
(.jani) are built by stormpy, with all rewards, propositions, actions and variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diffbisim.common.errors import InvalidData, MissingExtra
from diffbisim.io import limits
from diffbisim.io.files import broken, extension, open_text
from diffbisim.io.tables import ROUNDED_TEXT
from diffbisim.processes.explicit import ExplicitModel, variables
from diffbisim.processes.recognize import recognize

PROGRAMS = (".pm", ".nm", ".prism", ".jani")
MODELS = (".drn", *PROGRAMS)
STATE = re.compile(r"state (\d{1,18})(?:\s*\{\d+\})?(?:\s*\[([^\]]*)\])?(?:\s+(.*))?")
ACTION = re.compile(r"action (\S+)(?:\s*\[([^\]]*)\])?")
SUCCESSOR = re.compile(r"(\d{1,18})\s*:\s*(\S+)")
UNNAMED = "__NOLABEL__"


def read_storm(path: str | Path, constants: Any = None) -> ExplicitModel:
    """Read a .drn file, or build a program with stormpy, using the given constants ("N=16,p=0.5")."""
    path = Path(path)
    if extension(path) in PROGRAMS:
        return _built(path, constants)
    if constants is not None:
        raise InvalidData(f"{path}: constants are for programs ({', '.join(PROGRAMS)}); a .drn file has none")
    return _Drn(path).read()


def _built(path: Path, constants: Any) -> ExplicitModel:
    try:
        import stormpy
    except ImportError:
        raise MissingExtra(f'{path}: programs need stormpy; pip install "diffbisim[storm]"') from None
    with path.open("rb"):  # raises Python's own error if there is no such file
        pass
    try:
        jani = extension(path) == ".jani"
        program: Any = stormpy.parse_jani_model(path)[0] if jani else stormpy.parse_prism_program(path)
        given = ",".join(f"{k}={v}" for k, v in constants.items()) if isinstance(constants, Mapping) else constants
        if given:
            program, _ = stormpy.instantiate_constants(program, given)
        model = stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))
    except Exception as error:  # stormpy raises many kinds of errors
        reason = " ".join(str(error).split())[:300]
        raise InvalidData(f'{path}: Storm cannot build it ({reason}); pass constants as constants="N=16"') from None
    found = recognize(model)
    if not isinstance(found, ExplicitModel):
        raise InvalidData(f"{path}: Storm builds a {type(model).__name__}, which is not a DTMC or MDP")
    return ExplicitModel(**{**found.__dict__, "name": str(path)})


@dataclass
class _Drn:
    """A .drn file while it is being read."""

    path: Path
    number: int = 0  # current line number
    text: str = ""  # current line
    names: list[str] = field(default_factory=list)  # reward structures
    values: dict[str, float] = field(default_factory=dict)  # values of placeholders
    n_states: int = -1
    owner: list[int] = field(default_factory=list)
    kind: str = ""  # "DTMC" or "MDP"; "" if the header does not say
    lines: list[int] = field(default_factory=list)  # line numbers of choices
    actions: list[str] = field(default_factory=list)
    paid: list[list[float]] = field(default_factory=list)  # rewards of choices
    own: list[float] = field(default_factory=list)  # rewards of the current state
    row: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    probability: list[float] = field(default_factory=list)
    propositions: dict[str, list[int]] = field(default_factory=dict)
    valuations: list[str] = field(default_factory=list)  # variables of the states

    def read(self) -> ExplicitModel:
        with open_text(self.path) as file:
            lines = self._lines(file)
            self._header(lines)
            state = -1
            for text in lines:
                if text.startswith("state"):
                    state += 1
                    self._state(text, state)
                elif text.startswith("//["):
                    self.valuations.append(text[2:])
                elif text.startswith("//"):
                    continue
                elif text.startswith("action"):
                    self._action(text, state)
                else:
                    self._successor(text)
        if state + 1 != self.n_states:
            raise self._broken(
                f"the header announces {self.n_states} states, but {state + 1} follow; is the file complete?"
            )
        return self._model()

    def _lines(self, file: Any) -> Iterator[str]:
        for self.number, line in enumerate(file, start=1):
            self.text = line.strip()
            if self.text:
                yield self.text

    def _broken(self, why: str) -> InvalidData:
        return broken(self.path, self.number, self.text, why)

    def _header(self, lines: Iterator[str]) -> None:
        section = ""
        for text in lines:
            if text.startswith("//"):
                continue
            if text.startswith("@type:"):
                self.kind = text[6:].strip().upper()
                if self.kind not in ("DTMC", "MDP"):
                    raise self._broken("only DTMC and MDP are supported")
            if text == "@model":
                break
            if text.startswith("@"):
                section = text
            elif section == "@reward_models":
                self.names = text.split()
            elif section == "@parameters":
                raise self._broken("the model has parameters; instantiate them first")
            elif section == "@placeholders":
                name, _, value = text.partition(":")
                self.values[name.strip()] = self._number(value.strip())
            elif section == "@nr_states":
                self.n_states = int(text) if text.isdecimal() and len(text) <= 18 else -1
        if not 0 < self.n_states <= limits.STATES:
            raise self._broken(f"@nr_states must be a number from 1 to {limits.STATES:,} (diffbisim.io.limits.STATES)")
        if self.text != "@model":
            raise self._broken("there is no @model; is the file complete?")

    def _state(self, text: str, k: int) -> None:
        found = STATE.fullmatch(text)
        if found is None:
            raise self._broken('expected "state number [rewards] propositions", such as state 3 [1, 0] goal')
        if int(found[1]) != k or k >= self.n_states:
            raise self._broken(f"expected state {k} of {self.n_states}; states must be listed in order, without gaps")
        self.own = self._rewards(found[2])
        for name in (found[3] or "").split():
            self.propositions.setdefault(name.strip('"'), []).append(k)

    def _action(self, text: str, state: int) -> None:
        found = ACTION.fullmatch(text)
        if found is None or state < 0:
            raise self._broken('expected "action name [rewards]" below a state')
        if self.kind == "DTMC" and self.owner and self.owner[-1] == state:
            raise self._broken(f"state {state} has a second choice, but the header says DTMC; is it an MDP?")
        own = self._rewards(found[2])
        self.owner.append(state)
        self.lines.append(self.number)
        self.actions.append("" if found[1] == UNNAMED else found[1])
        width = max(len(own), len(self.own))
        self.paid.append([sum(r[k] for r in (own, self.own) if k < len(r)) for k in range(width)])

    def _successor(self, text: str) -> None:
        found = SUCCESSOR.fullmatch(text)
        if found is None or not self.owner:
            raise self._broken('expected "state", "action", or "successor : probability" below an action')
        if int(found[1]) >= self.n_states:
            raise self._broken(f"the successor must be a state from 0 to {self.n_states - 1}")
        value = self._number(found[2])
        if value < 0:
            raise self._broken("a probability must be non-negative")
        self.row.append(len(self.owner) - 1)
        self.target.append(int(found[1]))
        self.probability.append(value)

    def _rewards(self, text: str | None) -> list[float]:
        values = [self._number(word.strip()) for word in text.split(",")] if text and text.strip() else []
        if len(values) > max(1, len(self.names)):
            raise self._broken(f"{len(values)} rewards for {len(self.names)} reward structures in the header")
        return values

    def _number(self, text: str) -> float:
        if text in self.values:
            return self.values[text]
        top, slash, bottom = text.partition("/")
        try:
            value = float(top) / (float(bottom) if slash else 1.0)
        except (ValueError, ZeroDivisionError):
            raise self._broken(f"{text[:40]!r} is not a number; instantiate parameters, resolve intervals") from None
        if not np.isfinite(value):
            raise self._broken(f"{text[:40]!r} is not finite")
        return value

    def _model(self) -> ExplicitModel:
        row, probability = np.array(self.row, dtype=np.int64), np.array(self.probability)
        sums = np.bincount(row, probability, minlength=len(self.owner))
        if (bad := np.abs(sums - 1.0) > ROUNDED_TEXT).any():
            c = int(bad.argmax())
            why = f"the probabilities of this choice sum to {sums[c]:.10g}; they must sum to one"
            raise broken(self.path, self.lines[c], "", why)
        target = np.array(self.target, dtype=np.int64)
        if np.unique(row * self.n_states + target).size < row.size:
            raise InvalidData(f"{self.path}: a choice lists a successor twice; add the probabilities")
        names = self.names or (["default"] if any(self.paid) else [])
        return ExplicitModel(
            name=str(self.path),
            n_states=self.n_states,
            owner=np.array(self.owner, dtype=np.int64),
            row=row,
            target=target,
            probability=probability / sums[row],
            actions=self.actions,
            rewards={name: np.array([r[k] if k < len(r) else 0.0 for r in self.paid]) for k, name in enumerate(names)},
            propositions={name: np.array(states, dtype=np.int64) for name, states in self.propositions.items()},
            names=variables(self.valuations) if len(self.valuations) == self.n_states else None,
        )
