"""Size limits for files, which protect against exhausting memory.

Files are not trusted: a few bytes can claim to be a petabyte. Every reader checks these limits before it allocates
memory. To read larger files, raise a limit for the process, such as ``diffbisim.io.limits.BYTES = 2**36``.
"""

BYTES = 2**32  # size of an .npz or .npy file, and of an unpacked archive
INFLATED = 2**28  # number of bytes by which an archive may grow when unpacked
TEXT = 2**30  # size of a text file in bytes
JSON = 2**25  # size of a JSON text (names, history) in an archive, in bytes
DEPTH = 100  # nesting depth of JSON and XML
DIGITS = 1_000  # number of digits of a number
ARRAYS = 10_000  # number of arrays in an archive
STATES = 10**7  # number of states and of names
CHOICES = 1_000  # number of choices of a state of an MDP
UNSEEN = 10**6  # number of states (or choices) that a file counts but does not describe
