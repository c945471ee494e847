"""All-gather and reduce-scatter between the processes of one node, over shared memory; numpy and standard library only.

`Group` is the entry point. `csc` publishes once, synchronises once and reads (SW-IntraCC); `ring` is its comparison.
`mesh` is the only synchronisation, and explains why two slots suffice and no word is polled; `meeting` is how
ranks find each other; `shared` is the memory. What it costs, and where it is of use: docs/intracard.md.
"""

from benchmarks.intracard_collectives.errors import GroupClosedError, MismatchError, PeerLostError, PeerSilentError
from benchmarks.intracard_collectives.group import ALGORITHMS, CSC, RING, Group

__all__ = [
    "ALGORITHMS",
    "CSC",
    "RING",
    "Group",
    "GroupClosedError",
    "MismatchError",
    "PeerLostError",
    "PeerSilentError",
]
