"""What a hold-out case is: values only. Seconds are those of the first stage's healthy rank, ratios are of its work."""

from dataclasses import dataclass, field

import numpy as np

from lockstep.contracts.domains import Topology, from_degrees, parse_degrees

RANKS_PER_NODE = 8
RANK, GROUP, NODE, JOB, HANG = "rank", "group", "node", "job", "hang"
COMPUTE, DATA, HOST, GC, LINK = "compute", "data", "host", "gc", "link"


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is wrong with `ranks` from step row `begin` to before `end`, and what must be named: `scope`.

    `ratio` is of own work (of transfers for a link); `rise_rows` reach it slowly; `period` (on, off) rows repeat it.
    """

    scope: str
    ranks: tuple[int, ...]
    cause: str
    ratio: float
    begin: int
    end: int | None = None
    kinds: tuple[str, ...] = ()
    rise_rows: int = 0
    period: tuple[int, int] | None = None

    def strength(self, row: int) -> float:
        """Return the ratio in force at a row."""
        since = row - self.begin
        if since < 0 or (self.end is not None and row >= self.end):
            return 0.0
        if self.period is not None and since % sum(self.period) >= self.period[0]:
            return 0.0
        return self.ratio * min(1.0, (since + 1) / self.rise_rows) if self.rise_rows else self.ratio


@dataclass(frozen=True, kw_only=True)
class Nature:
    """How the ranks' work differs without any fault. Sigmas and shares are ratios of compute."""

    noise: float = 0.004
    spread: float = 0.0025
    common: float = 0.007
    stall_rate: float = 1e-5
    stall_again: float = 0.0
    wander: float = 0.0
    contention: float = 0.0
    jitter: float = 0.03
    documents: float = 0.0  # share of compute that grows with the squares of document lengths
    experts: float = 0.0  # share of compute that follows routed tokens
    expert_heat: float = 300.0  # concentration of the routing in one step: lower is more uneven
    accumulation: tuple[int, ...] = (8,)  # micro-batches, replica by replica in turn
    loading: float = 0.0  # share of compute: what one rank of each tensor group reads for its group
    ramp_rows: int = 0  # the batch doubles gradually over so many rows, from row 40 on
    gc_every: int = 0  # on all ranks in the same step
    gc_seconds: float = 0.15


@dataclass(frozen=True, kw_only=True)
class Disorder:
    """What happens to the run and to its records on their way."""

    checkpoint_every: int = 60
    checkpoint_seconds: float = 2.5
    writers: str = "all"  # all, or first: one replica writes and the others wait
    flagged: bool = False
    evaluation_every: int = 0  # so often training stops for rows of a forward pass each, which nothing flags
    evaluation_rows: int = 10
    moves: bool = False  # after a restart the ranks run on other devices
    restarts: tuple[int, ...] = ()
    rollback: int = 7
    missing: float = 0.001
    missing_bursts: int = 0  # so often some ranks' records are lost for 3 to 12 rows
    late: float = 0.005
    late_seconds: float = 0.0  # that late records are late besides the 1 to 4 steps
    late_nodes: int = 0  # so often a whole node's records come 2 to 4 steps late
    skew_seconds: float = 0.01
    leaves: int = 0  # so many ranks, the last ones, are gone after the first restart
    joins: int = 0  # ... or are there only from then on
    frozen_rank: int | None = None  # repeats one step index from row 50 on
    mad_clock_rank: int | None = None  # its clock is three years ahead from row 50 on


@dataclass(frozen=True, kw_only=True)
class Case:
    """One labelled run."""

    name: str
    degrees: str
    seed: int
    rows: int = 200
    seconds: float = 0.35
    nature: Nature = Nature()
    disorder: Disorder = Disorder()
    truths: tuple[Truth, ...] = ()
    absent: tuple[str, ...] = ()  # columns that the log lacks, by their end: tokens, work, transfer_ns, bytes, ...
    has_world: bool = True  # everybody ends a step together; without, ranks run apart by what they can

    @property
    def evaluated_W(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":  # noqa: N802
        """Which rows are steps of an evaluation, array of shape (n_rows,)."""
        every, rows = self.disorder.evaluation_every, np.arange(self.rows)
        return (rows >= every) & (rows % every < self.disorder.evaluation_rows) if every else rows < 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        parsed = parse_degrees(self.degrees, where="case")
        return int(np.prod([size for kind, size in parsed.items() if kind != "ep"]))


@dataclass(frozen=True)
class Layout:
    """Who is where. `groups` by kind: integer array of shape (n_groups, n_members)."""

    topology: Topology
    groups: "dict[str, np.ndarray[tuple[int, ...], np.dtype[np.intp]]]" = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case) -> "Layout":
        """Return the layout of a case."""
        topology = from_degrees(parse_degrees(case.degrees, where="case"), case.world_size)
        kinds = dict.fromkeys(domain.kind for domain in topology.domains)
        return cls(
            topology,
            {kind: np.array([d.ranks for d in topology.domains if d.kind == kind], dtype=np.intp) for kind in kinds},
        )

    def place(self, kind: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.intp]]":
        """Return each rank's position in its group of a kind, 0 where there is none, array of shape (n_ranks,)."""
        place = np.zeros(self.topology.world_size, dtype=np.intp)
        if kind in self.groups:
            place[self.groups[kind]] = np.arange(self.groups[kind].shape[1])
        return place
