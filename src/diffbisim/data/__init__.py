"""Getting data in and out: observed transitions, files, and example systems with known answers."""

from diffbisim.data import examples
from diffbisim.data.files import read_chain, read_mdp, read_transitions, write_chain
from diffbisim.data.streams import Stream
from diffbisim.data.transitions import Transitions

__all__ = ["Stream", "Transitions", "examples", "read_chain", "read_mdp", "read_transitions", "write_chain"]
