"""What the tests of files share: a file with a text, a chain to write, a refusal to read."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from diffbisim.common.errors import InvalidData
from diffbisim.io.chains import read_chain
from diffbisim.processes.chain import MarkovChain


def file(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def random_chain(seed, n=7, sparse=False, **options):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(n, 0.3), size=n)
    P[P < 0.02] = 0
    P /= P.sum(axis=1, keepdims=True)
    return MarkovChain(sp.csr_array(P) if sparse else P, **options)


def refused(path, *parts, **options):
    """The message of the refusal, which names the file and holds every part."""
    with pytest.raises(InvalidData) as caught:
        read_chain(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    if place := re.match(re.escape(str(path)) + r", line (\d+)", message):
        assert (caught.value.file, caught.value.line) == (path, int(place[1]))
    for part in parts:
        assert part in message
