"""Imitation in environments with continuous observations, from states alone.

learning     rounds in the environment, every step counted; `Control`, `ControlResult`
walks        acting and being watched: actions by number, episodes, demonstrations, features
dynamics     the forward model that all plan in
tracking     against the expert's own paths: a coupling in which the learner carries its node
cells        against the expert's chain on cells: the tabular imitation, for 2-3 dimensions
"""

from diffbisim.imitate.control.learning import Control, ControlResult

__all__ = ["Control", "ControlResult"]
