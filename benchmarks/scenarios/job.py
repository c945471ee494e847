"""What a generated job is: its shape and work, its noise, its legitimate imbalance, its interruptions and its faults.

Values only. Seconds are those of a healthy rank; noise figures are relative to its compute and were measured on
production logs (reference figures: 0.4 % a step inside a stage, 0.25 % between ranks, 0.7 % for all ranks together).
"""

from dataclasses import dataclass, field
from math import prod

from lockstep.contracts.domains import parse_degrees

COMPONENTS = ("compute", "data", "host", "gc")
PHASES = {"forward": 0.3, "backward": 0.6, "optimizer": 0.1}
"""Phases of compute and their shares of it; where a scenario has them, each has noise of its own."""
SIGMAS = {"data": 0.1, "host": 0.05, "gc": 0.1}
"""Standard deviations of the other components, ratios of themselves."""
LINK = "link"
HANG = "hang"
"""Cause of a fault whose ranks have not arrived: they lack the records from row `begin` on, and at `end` all stop."""
LIE_ROW = 50


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations as ratios of compute; rates per rank and step, hiccups per step."""

    step: float = 0.004
    spread: float = 0.0025
    common: float = 0.007
    common_memory: float = 0.5
    jitter: float = 0.03  # of transfers
    stall_rate: float = 1e-5
    stall_memory: float = 0.0  # probability that a stalled step is followed by another one
    stall_ratio: float = 0.0  # how long each stall is; 0 draws them, from 0.3 up to 3
    hiccup_rate: float = 1 / 400  # the whole job stumbles for a step
    wander: float = 0.0  # slow walk of each rank by itself
    wander_memory: float = 0.9
    contention: float = 0.0  # share of its wait by which a waiting rank's own work looks longer
    later_step: float | None = None  # noise of a step from row `later_row` on
    later_row: int = 80


NOISY = Noise(step=0.01, wander=0.005, stall_rate=1e-4, stall_memory=0.3, contention=0.3)
"""Everything at once: 2.5 times the noise of real jobs, wander, stalls that may last, and contention."""


@dataclass(frozen=True, kw_only=True)
class Imbalance:
    """Differences between ranks that are no fault; sigmas and shares are ratios of compute."""

    last_stage: float = 0.0  # the last pipeline stage does so much more
    sequence_sigma: float = 0.0  # work of a replica's batch, again each step, the same seconds in all its stages
    sequence_rest: float = 0.011  # what is left of it inside the replica
    expert_sigma: float = 0.0  # tokens of an expert's ranks, drifting; half of the work follows them
    routing_sigma: float = 0.0  # the same of each rank by itself: a router that sends other tokens in each replica
    accumulation: float = 0.0  # every second replica does so much more, and has as many more tokens
    ramp_steps: tuple[int, ...] = ()  # from each of these on, all ranks have ...
    ramp_ratio: float = 0.25  # ... so many more tokens and so much more work
    ramp_rows: int = 0  # the batch doubles bit by bit over so many rows, from row 40 on
    window_steps: tuple[int, ...] = ()  # from each of these on, attention windows are wider: as many tokens, ...
    window_ratio: float = 0.08  # ... and so many more FLOPs and so much more work
    loader_ratio: float = 0.0  # of own work: what the first rank of each group reads for all of them longer, ...
    loader_of: str = "tp"  # ... in groups of this kind; of a pipeline, all ranks of the first stage
    loader_sigma: float = 0.1  # of that
    tokens_known: bool = True  # without, a log has no column of them
    bytes_known: bool = True  # the same; and transfers of activations grow with the batch
    flops_known: bool = False  # with, a log has a column of FLOPs


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A rank stalls, records around it do not arrive in time, and its next recorded step is a little long.

    `count` times in a run, another rank each time; ratios are of a healthy rank's own work. Of its record and those
    that follow, `lost` steps after the first stalled one are lost, or late by `late_seconds` where that is not 0.
    """

    count: int = 12
    ratio: float = 0.75
    steps: int = 1
    lost: tuple[int, ...] = (1,)
    late_seconds: float = 0.0
    after_ratio: float = 0.013
    after_step: int = 2


@dataclass(frozen=True, kw_only=True)
class Interruptions:
    """What happens to every long run, and on the way of its records; `flagged` pauses carry the record's flag."""

    checkpoint_every: int = 100
    checkpoint_seconds: float = 3.0
    evaluation_every: int = 150
    evaluation_seconds: float = 5.0
    flagged: bool = False
    warm_up_ratio: float = 1.0  # the first step of an attempt takes so much longer, ...
    warm_up_fade_steps: float = 3.0  # ... which fades by a factor of e in so many
    warm_up_scales: bool = False  # each rank's compute by that ratio, rather than all ranks' by the same seconds
    restart_at: int | None = None  # row at which another attempt begins ...
    second_restart_at: int | None = None  # ... and a third one, each ...
    restart_every: int = 0  # rows; from one such row to the next, in place of these two, each attempt begins ...
    rollback_steps: int = 10  # ... so many steps back, ...
    restart_seconds: float = 180.0  # ... so much later
    leaving_ranks: int = 0  # so many of the last ranks are gone from the first restart on ...
    joining_ranks: int = 0  # ... or come with it
    collection_every: int = 0  # all ranks collect garbage in the same step: what one should do
    collection_seconds: float = 0.12
    writer_every: int = 0  # rank 0 alone writes a checkpoint that no one flags, ...
    writer_ratio: float = 0.5  # ... so many times its own work long
    profiled_every: int = 0  # a capture of two ranks, flagged
    missing: float = 0.001
    missing_bursts: int = 0  # so often a sixteenth of the ranks lose their records of 8 rows in a row
    unsent_steps: int = 0  # at a restart each node loses its records of up to so many last steps
    late: float = 0.005
    skew_seconds: float = 0.01  # largest difference of a node's clock
    stall: "Stall | None" = None
    frozen_rank: int | None = None  # reports the same step index from LIE_ROW on
    mad_clock_rank: int | None = None  # its clock is years ahead from LIE_ROW on


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong, from row `begin` to before `end`, and what a detector must name for it.

    `cause` is a component or `link`. Own work grows by `ratio` of a healthy rank's own work, a link's transfers by
    `ratio` of themselves. A link fault slows the groups of `kinds` that `ranks` belong to. `wanted` is rank, group,
    node or job, or empty: then no rank may be named, and the job may. With `drift_steps` the ratio is reached
    gradually, with `on_steps` it comes and goes.
    """

    cause: str
    ranks: tuple[int, ...]
    ratio: float
    wanted: str = "rank"
    kinds: tuple[str, ...] = ()
    begin: int = 80
    end: int | None = None
    drift_steps: int = 0
    on_steps: int = 0
    off_steps: int = 0
    scatter_rate: float = 0.0  # asynchronous: each rank is hit on its own in this share of steps, not all at once
    every_steps: int = 0  # the same in one of so many steps, as many ranks in each
    share: float = 0.0  # of the steps, in which all ranks are hit at once, ...
    in_turn: bool = False  # ... or one in each
    jitters: bool = False  # each rank and step draws its own: the ratio times the size of a Gaussian


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One labelled run. `degrees` as in Megatron's order; ep divides dp. `has_phases`: records hold compute's."""

    name: str
    degrees: str
    seed: int
    steps: int = 200
    compute: float = 0.4
    data: float = 0.01
    host: float = 0.02
    gc: float = 0.002
    has_phases: bool = False
    noise: Noise = Noise()
    imbalance: Imbalance = Imbalance()
    interruptions: Interruptions = Interruptions()
    faults: tuple[Fault, ...] = ()
    transfers: dict[str, float] = field(
        default_factory=lambda: {"tp": 0.04, "cp": 0.02, "ep": 0.03, "pp": 0.01, "dp": 0.04, "world": 0.001}
    )

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        sizes = parse_degrees(self.degrees, where="scenario")
        return prod(size for kind, size in sizes.items() if kind != "ep")

    @property
    def restarts(self) -> tuple[int, ...]:
        """Rows at which another attempt begins."""
        plan = self.interruptions
        if plan.restart_every:
            return tuple(range(plan.restart_every, self.steps, plan.restart_every))
        return tuple(row for row in (plan.restart_at, plan.second_restart_at) if row is not None)

    def rolled_back(self, row: int) -> int:
        """Return by how many steps the index of a row is behind the row's number."""
        return self.interruptions.rollback_steps * sum(begin <= row for begin in self.restarts)

    @property
    def own_seconds(self) -> float:
        """Own work of a healthy rank in a step."""
        return self.compute + self.data + self.host + self.gc
