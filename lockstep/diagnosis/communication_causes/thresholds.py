"""Limits of the communication rules as data."""

from lockstep.diagnosis.threshold import Threshold

_ADVISOR = "msprof-analyze advisor"
MEGABYTE = 1_000_000
"""Vendors' tools count decimal megabytes."""

WAIT_RATIO = Threshold(
    0.1,
    "ratio",
    "own: Hermes does not print its threshold, but 0.3 is above it (section 5.1.3). Alone it names no one: 4 healthy "
    "ranks on two shared cores have 0.45 and wait for each in turn, a recording with a slow rank has 0.26",
)
"""R_wait (equation 2) above which synchronisation is the cause."""

BLAME_SHARE = Threshold(
    0.6,
    "ratio",
    "own: of two ranks each is to blame for half of what is chance; recordings of 4 ranks have at most 0.39 where all "
    "are healthy, and 0.9 and more with a slow one",
)
"""Share of all waiting that one rank must have caused to be named."""

COLLECTIVES = Threshold(3, "count", "own: fewer do not show who is usually last")

REPEATED_STEPS = Threshold(3, "count of steps", "own: fewer steps do not show what comes back")

CHANCE = Threshold(
    0.1,
    "probability",
    "own: of 4 ranks that take turns at random one is last in 2 of 3 steps in 6 of 10 captures, in all 3 in 1 of 16",
)
"""Above it a rank that is not the last in every step is not named: healthy ranks on shared cores take turns."""

WORST_STEP = Threshold(
    0.7, "ratio of the rank's waiting", "own: faults of 3 recorded sets have at most 0.5 of 3 steps in the worst one"
)

SPREADS = Threshold(
    2.5,
    "spreads of the others",
    "own: of 120 healthy jobs of 4 ranks, on 4 cores that up to 14 busy processes shared, none has more than 2.2 in "
    "all of 3 steps where its ranks wait for 10 % of them; of 60 jobs with a fault none has less than 3.0",
)
"""By so much a rank must be later than the latest other, in the median step that it is blamed for."""

WORTH_RATIO = Threshold(0.01, "ratio", "msprof-analyze, fusible sequences: what holds less of a step is left out")

BANDWIDTH_RATIO = Threshold(0.8, "ratio", f"{_ADVISOR}: 0.8 of the link's bandwidth")

RETRANSMISSION_NS = Threshold(4e9, "ns", f"Hermes, section 4.2.2, and {_ADVISOR}: one RDMA operation of 4 s and more")

SMALL_SHARE = Threshold(0.2, "ratio", f"{_ADVISOR}: more than 20 % of the packets by count")

SMALL_BYTES = {
    "RDMA": Threshold(1 * MEGABYTE, "bytes", f"{_ADVISOR}"),
    "SDMA": Threshold(16 * MEGABYTE, "bytes", f"{_ADVISOR}"),
    "HCCS": Threshold(32 * MEGABYTE, "bytes", "Hermes, section 5.1.3: 12.81 MB packets reach 53 % of the link"),
}
"""Packets below have not reached their link's bandwidth."""

SMALL_MESSAGE_BYTES = Threshold(
    1 * MEGABYTE,
    "bytes",
    "own: 4 gloo ranks on loopback reach half of their best at 0.6 to 1 MB; the vendor's limit for RDMA is the same",
)
"""For collectives of backends that do not report packets."""

SMALL_FOR_ONE = Threshold(
    10,
    "count",
    "own: a healthy recording with buckets of 0.1 MB has 5 a step where one would do, and gains little by it",
)

SMALL_LOST_RATIO = Threshold(
    0.05, "ratio", "PerfTracker, section 4.1: 5 % is a fluctuation; less is not worth another bucket size"
)

ALIGNMENT_BYTES = Threshold(512, "bytes", f"Hermes, section 4.2.2, and {_ADVISOR}: HCCS wants multiples of 512 bytes")

CONTENTION_OVERLAP = Threshold(0.5, "ratio", "own: most of the transmission must overlap computation")
ALONE_OVERLAP = Threshold(0.1, "ratio", "own: what is hardly overlapped shows what the link does alone")

LINK_BYTES_PER_SECOND = {
    "RDMA": Threshold(12.5e9, "bytes per second", "MindStudio Insight: 100 Gbit/s"),
    "HCCS": Threshold(18e9, "bytes per second", "MindStudio Insight"),
    "SDMA": Threshold(18e9, "bytes per second", f"{_ADVISOR}"),
    "PCIE": Threshold(20e9, "bytes per second", "MindStudio Insight"),
}
"""What the vendor expects of a link that is used well."""
