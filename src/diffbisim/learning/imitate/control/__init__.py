"""Imitation in environments with continuous observations, from states alone.

learning     rounds of acting and planning, with every step counted; `Control`, `ControlResult`
walks        acting and recording: numbered actions, episodes, demonstrations, features
dynamics     the forward model used for planning
tracking     follow the expert's own paths: a coupling in which the learner carries its node
cells        follow the expert's chain on cells: tabular imitation, for 2-3 dimensions
"""

from diffbisim.learning.imitate.control.learning import Control, ControlResult

__all__ = ["Control", "ControlResult"]
