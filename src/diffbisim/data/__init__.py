"""Sources of processes: sample streams, Gymnasium environments, and examples with known answers."""

from diffbisim.chain import Transitions
from diffbisim.data import examples
from diffbisim.data.streams import Stream
from diffbisim.io import limits
from diffbisim.io.chains import read_chain, read_mdp, read_transitions, write_chain

__all__ = ["Stream", "Transitions", "examples", "limits", "read_chain", "read_mdp", "read_transitions", "write_chain"]
