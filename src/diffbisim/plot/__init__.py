"""Plots. Each function optionally takes ``ax`` and returns the ``Axes``.

    history            value and certified bounds over the iterations of a run
    encoder, decoder   which state stands for which, as a heat map
    coupling           occupancy of the pairs of states, or the plan of one pair
    contributions      the rows and initial distributions that cause a distance
    implicit_reward    the reward of every transition
    chain              a Markov chain as a graph
    timescales         implied timescales of a compression and its target
    elbow              distance over the number of states
    distances          a matrix of distances, sorted by a dendrogram
    embedding          distances as points in the plane

Colors are those of Okabe and Ito and sequential color maps that remain ordered in grayscale, and no information is
conveyed by color alone. Without ``ax`` a new figure is created, without a window and without pyplot's global state;
save it with ``ax.figure.savefig("plot.png")``.
"""

from diffbisim.plot.graph import chain
from diffbisim.plot.matrix import distances, elbow, embedding
from diffbisim.plot.results import contributions, coupling, decoder, encoder, history, implicit_reward, timescales

__all__ = [
    "chain", "contributions", "coupling", "decoder", "distances", "elbow", "embedding", "encoder", "history",
    "implicit_reward", "timescales",
]  # fmt: skip
