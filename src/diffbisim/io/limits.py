"""How large a file may be: what goes beyond is refused, quickly, instead of filling the memory.

A file is somebody else's: a few bytes can promise a petabyte. Every reader checks these before it allocates anything.
Who has larger files raises the limit for the process, such as ``diffbisim.io.limits.BYTES = 2**36``.
"""

BYTES = 2**32  # of an .npz or .npy file, and of what an archive unpacks to
INFLATED = 2**28  # by how many bytes an archive may grow when it is unpacked
TEXT = 2**30  # bytes of a text file
JSON = 2**25  # bytes of one JSON text (labels, history) in an archive
DEPTH = 100  # brackets within brackets in JSON
DIGITS = 1_000  # of one number
ARRAYS = 10_000  # in an archive
STATES = 10**7  # of a chain, and as many labels
CHOICES = 1_000  # of a state, in an MDP
UNSEEN = 10**6  # states (or choices of states) that a file counts and says nothing about
