"""Limits of the communication rules as data."""

from lockstep.diagnosis.threshold import Threshold

_ADVISOR = "msprof-analyze advisor"
MEGABYTE = 1_000_000
"""Vendors' tools count decimal megabytes."""

WAIT_RATIO = Threshold(
    0.1,
    "ratio",
    "own: Hermes does not state its threshold, but 0.3 is above it (section 5.1.3). The ratio alone names no rank: 4 "
    "healthy ranks on two shared cores have 0.45 and wait for each other in turn, a recording with a slow rank has "
    "0.26",
)
"""R_wait (equation 2) above which synchronisation is the cause."""

BLAME_SHARE = Threshold(
    0.6,
    "ratio",
    "own: by chance, each of two ranks causes half of the waiting; in recordings of 4 ranks the largest share is at "
    "most 0.39 if all are healthy, and at least 0.9 with a slow one",
)
"""Share of all waiting that one rank must have caused to be named."""

COLLECTIVES = Threshold(3, "count", "own: fewer do not show which rank is usually last")

REPEATED_STEPS = Threshold(3, "count of steps", "own: fewer steps do not show what repeats")

CHANCE = Threshold(
    0.1,
    "probability",
    "own: if 4 ranks take turns at random, one is last in 2 of 3 steps in 6 of 10 captures, and in all 3 in 1 of 16",
)
"""Above it a rank that is not the last in every step is not named: healthy ranks on shared cores take turns."""

WORST_STEP = Threshold(
    0.7,
    "ratio of the rank's waiting",
    "own: in 3 recorded sets of 3 steps, the worst step has at most 0.5 of the waiting for a fault",
)

SPREADS = Threshold(
    2.5,
    "spreads of the others",
    "own: of 120 healthy jobs of 4 ranks, on 4 cores shared with up to 14 busy processes, none exceeds 2.2 in all of 3 "
    "steps in which its ranks wait for 10 %; of 60 jobs with a fault none is below 3.0",
)
"""How much later than the latest other rank a rank must be, in the median step for which it is blamed."""

WORTH_RATIO = Threshold(0.01, "ratio", "msprof-analyze, fusible sequences: smaller shares of a step are left out")

BANDWIDTH_RATIO = Threshold(0.8, "ratio", f"{_ADVISOR}: 0.8 of the link's bandwidth")

RETRANSMISSION_NS = Threshold(4e9, "ns", f"Hermes, section 4.2.2, and {_ADVISOR}: one RDMA operation of at least 4 s")

SMALL_SHARE = Threshold(0.2, "ratio", f"{_ADVISOR}: more than 20 % of the packets by count")

SMALL_BYTES = {
    "RDMA": Threshold(1 * MEGABYTE, "bytes", f"{_ADVISOR}"),
    "SDMA": Threshold(16 * MEGABYTE, "bytes", f"{_ADVISOR}"),
    "HCCS": Threshold(32 * MEGABYTE, "bytes", "Hermes, section 5.1.3: 12.81 MB packets reach 53 % of the link"),
}
"""Smaller packets do not reach their link's bandwidth."""

SMALL_MESSAGE_BYTES = Threshold(
    1 * MEGABYTE,
    "bytes",
    "own: 4 gloo ranks on loopback reach half of their best rate at 0.6 to 1 MB; the vendor's limit for RDMA is the "
    "same",
)
"""For collectives of backends that do not report packets."""

SMALL_FOR_ONE = Threshold(
    10,
    "count",
    "own: a healthy recording with buckets of 0.1 MB has 5 per step where one would be enough, and fusing gains little",
)

SMALL_LOST_RATIO = Threshold(
    0.05, "ratio", "PerfTracker, section 4.1: 5 % is a fluctuation; a smaller loss is not worth another bucket size"
)

ALIGNMENT_BYTES = Threshold(512, "bytes", f"Hermes, section 4.2.2, and {_ADVISOR}: HCCS needs multiples of 512 bytes")

CONTENTION_OVERLAP = Threshold(0.5, "ratio", "own: most of the transmission must overlap computation")
ALONE_OVERLAP = Threshold(0.1, "ratio", "own: transfers with less overlap show the link's rate without compute")

LINK_BYTES_PER_SECOND = {
    "RDMA": Threshold(12.5e9, "bytes per second", "MindStudio Insight: 100 Gbit/s"),
    "HCCS": Threshold(18e9, "bytes per second", "MindStudio Insight"),
    "SDMA": Threshold(18e9, "bytes per second", f"{_ADVISOR}"),
    "PCIE": Threshold(20e9, "bytes per second", "MindStudio Insight"),
}
"""The rate that the vendor expects of a well used link."""
