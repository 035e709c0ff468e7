"""An instance of the oracles as a problem of the package."""

import numpy as np
import scipy.sparse as sp

from diffbisim.problems.discounted import Discounted
from diffbisim.processes.chain import MarkovChain


def problem_of(case, sparse=False):
    matrix = sp.csr_array if sparse else np.asarray
    X = MarkovChain(matrix(case.P_x), initial=case.nu_x)
    Y = MarkovChain(matrix(case.P_y), initial=case.nu_y)
    return Discounted.make(X, Y, case.cost, case.discount)
