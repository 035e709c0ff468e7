"""Pictures. Each function takes what it draws and, if you have one, ``ax``; each returns the ``Axes`` it drew on.

    history            value and certified bounds over the iterations of any run
    encoder, decoder   which state stands for which, as a heat map
    coupling           how often pairs of states are visited, or the plan of one pair
    contributions      which rows and starts cause a distance
    implicit_reward    the reward of every transition, blue is good
    chain              a Markov chain as a graph
    timescales         how slow a compression is, beside its target
    elbow              distance over the number of states
    distances          a matrix of distances, sorted by a dendrogram
    embedding          the same as points in the plane

Colors are Okabe and Ito's and sequential maps that keep their order in gray; nothing is told by color alone. Without
``ax`` a figure of its own is made, without a window and without global state: ``ax.figure.savefig("picture.png")``.
"""

from diffbisim.plot.graph import chain
from diffbisim.plot.matrix import distances, elbow, embedding
from diffbisim.plot.results import contributions, coupling, decoder, encoder, history, implicit_reward, timescales

__all__ = [
    "chain", "contributions", "coupling", "decoder", "distances", "elbow", "embedding", "encoder", "history",
    "implicit_reward", "timescales",
]  # fmt: skip
