"""Other tabular methods for imitation from observations, all called as ``method(offline, expert, discount)``.

=========================  ==================================================  ====================  ==============
method                     what it matches                                     dynamics              solved by
=========================  ==================================================  ====================  ==============
`maximum_likelihood`       likelihood of the observed (s, s'), state by state  estimated or known    Newton, exact
`behavioral_cloning`       actions inferred from (s, s')                       inverse, by counts    closed form
`state_matching`           state occupancies, optimal transport                estimated or known    HiGHS (LP)
`pw_dice`                  state occupancies, entropic optimal transport       estimated or known    cvxpy (cones)
`smodice`                  state occupancies, KL                               estimated or known    cvxpy (cones)
`lobs_dice`                state-transition occupancies, KL                    estimated or known    cvxpy (cones)
`iostom_style`             state-transition occupancies, soft Q-learning       only the data         fixed point
=========================  ==================================================  ====================  ==============

`offline` is `OfflineData`, transitions with actions, by default of a *uniformly random* policy (the paper does not
say which data its baselines use), or a `diffbisim.MDP`, which stands for infinitely many of them and makes the dynamics
known. `expert` is a chain, (s, s') pairs or an occupancy table. Each method returns a `BaselineResult`. All of them
require that the expert's states are the learner's own.
"""

from diffbisim.learning.imitate.baselines.counting import behavioral_cloning, iostom_style
from diffbisim.learning.imitate.baselines.data import BaselineResult, OfflineData
from diffbisim.learning.imitate.baselines.likelihood import maximum_likelihood
from diffbisim.learning.imitate.baselines.programs import lobs_dice, pw_dice, smodice, state_matching

__all__ = [
    "BaselineResult",
    "OfflineData",
    "behavioral_cloning",
    "iostom_style",
    "lobs_dice",
    "maximum_likelihood",
    "pw_dice",
    "smodice",
    "state_matching",
]
