"""Limits on all input from outside, checked before anything is allocated.

The name of each constant has its unit; its reason is next to it.
"""

RING_FILE_MAX_BYTES = 4 << 20  # twice the ring that this version writes
RANKS_PER_NODE_MAX = 64  # reference: the largest nodes sold carry 16 devices; 4 times that
RUNS_PER_NODE_MAX = 16  # a job on each device of the largest nodes sold
WORLD_SIZE_MAX = 1 << 20  # ten times the largest synchronous job published
MESSAGE_MAX_BYTES = 8 << 20  # a node's batch of 64 ranks, 10 steps/s, 60 s is 6 MB in columns
BATCH_RECORDS_MAX = 65_536  # records in one message
GROUPS_PER_NODE_MAX = 4_096  # process groups announced by one node
SPANS_PER_GROUP_MAX = 4_096  # ranges of ranks of one group; groups of real jobs are a handful of strides
SPANS_PER_NODE_MAX = 32_768  # of all groups of an announcement; 3 MB as lists
MEMBERS_PER_NODE_MAX = 1 << 20  # of all groups of an announcement: ten groups of all ranks in the largest published job
ANNOUNCEMENT_MAX_BYTES = 2 << 20  # all of the limits above at once; 8 ranks with 20 groups are 2 KB
STATE_MESSAGE_MAX_BYTES = 8 << 10  # an acknowledgement, a coordinator's heartbeat: 300 bytes
HEARTBEAT_MAX_BYTES = 1 << 20  # a node's, 16 runs of 64 ranks of 600 bytes at most; 8 ranks on devices are 4 KB
REQUEST_MAX_BYTES = 64 << 10  # a request or a rank's answer, whose region in the ring is 4 KB
PROFILE_RANKS_MAX = 64  # ranks of one profile request: suspects and their healthy peers
PROFILE_STEPS_MAX = 100  # a longer capture is a trace of a job, not of a step
PROFILE_DEADLINE_SECONDS_MAX = 86_400  # of a request: a hundred steps of ten minutes
PROFILE_SECONDS_MAX = 120  # three steps of the slowest published jobs; a capture that lasts longer has another problem
PROFILE_EVENTS_MAX = 2_000_000  # of one rank: 30 s of its training thread at the 15 us of the most expensive event
TRACE_MAX_BYTES = 512 << 20  # one rank's raw trace; refused by the reader above it
SUMMARY_NODES_MAX = 512  # call-tree nodes of one rank's summary
PATTERN_DEPTH_MAX = 256  # callers of a behaviour pattern; real stacks are 20 to 120 deep
SUMMARY_WIRE_MAX_BYTES = 10 << 10  # one rank's summary on the wire; 10,240 ranks are 100 MB at the coordinator
SUMMARY_ENTRIES_MAX = 4096  # of a list in a summary, whose size in bytes is the narrower limit
SUMMARY_MAX_BYTES = 64 << 10  # the same unpacked: real ones are 15 to 30 KB
STACKS_MAX_BYTES = 10 << 10  # of one rank's stacks on the wire; 10,240 ranks are 100 MB, 1,024 are requested
ISSUED_MAX = 24  # collectives of a rank that are sent with its stacks, of all its groups
STACK_FRAMES_MAX = 100  # of a thread: what faulthandler writes
STACK_THREADS_MAX = 100  # of a process: the same
STACK_FILE_MAX_CHARS = 160  # of a source file's path, of which the end is kept
STACK_FUNCTION_MAX_CHARS = 96
NAME_MAX_BYTES = 128  # a run, node or label value; Prometheus refuses label values over 200 in our PodMonitor
SUSPECTS_MAX = 32  # slow ranks exported one by one; the rest are counted
HOST_COMMANDS_MAX = 8  # other processes named with a capture; three are sent
HOST_CORES_MAX = 8192  # the kernel's own limit
NODES_MAX = 1 << 17  # nodes that a coordinator follows: of WORLD_SIZE_MAX ranks, eight to a node
ANNOUNCED_RANKS_MAX = WORLD_SIZE_MAX  # of all nodes and runs at a coordinator: 0.7 GB
RUNS_OF_NODE_MAX = 4 * RUNS_PER_NODE_MAX  # runs of one node at a coordinator, which keeps ended ones for a while
HEARTBEAT_SECONDS_MAX = 10.0  # longest period of a node's heartbeats; three missed ones free its ranks
ANNOUNCE_REFRESH_SECONDS = 300.0  # then an unchanged announcement is sent again, for coordinators that dropped it
TERM_AHEAD_SECONDS_MAX = (
    3600  # lead of a leader's term, which is a unix time, over the clock of a coordinator that reads it
)
TERM_AHEAD_OF_NODE_SECONDS_MAX = (
    7200  # lead over a node's clock: above any term that lying nodes can make a leader adopt
)
UNIX_NS_MAX = 1 << 62  # the year 2116: two such times add up within an int64
MONOTONIC_NS_MAX = 1 << 61  # 73 years of uptime; plus a clock offset of as much, it is still a unix time in range
