"""The exporter's state of a run and its ranks: `rings.py` writes it, `silence.py` its `progress_watch`; others read."""

from dataclasses import dataclass, field
from pathlib import Path

from exporter.reading.announce import SlotUse, merge_groups
from exporter.reading.attempt_steps import AttemptSteps
from exporter.reading.read_offsets import ReadOffset
from exporter.reading.ring_file import RingFile
from exporter.reading.totals import FlaggedSteps, NodeStepHistogram, StepTotals
from lockstep.contracts import ring
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.limits import RANKS_PER_NODE_MAX
from lockstep.contracts.messages import (
    FAILED,
    FINISHED,
    GONE,
    RUNNING,
    UNWATCHED,
    GroupInfo,
    RankEnding,
    RankInfo,
    RankProgress,
)

ENDED = frozenset((FINISHED, FAILED, GONE))
"""States of a rank whose process has ended."""


@dataclass(slots=True)
class RankState:
    """One rank of a run over all its attempts; `ring` is None while it has no file.

    `is_superseded`: its process has ended, and a younger rank of the run has its place on this node. `alive_ns` is when
    it was last known to be alive (`heartbeats.py`). `ending` is how its process ended, unless it ended successfully.
    """

    header: ring.RingHeader
    ring: RingFile | None
    steps: AttemptSteps
    state: str = RUNNING
    ending: RankEnding | None = None
    is_superseded: bool = False
    heartbeat_ns: int = 0
    alive_ns: int = 0
    groups: tuple[GroupInfo, ...] = ()
    slots: tuple[SlotUse, ...] = ()
    facts: RankFacts | None = None
    totals: StepTotals = field(default_factory=StepTotals)
    failures: int = 0
    """The agent's failures over all attempts that were read (`ring.WORD_FAILURES`)."""
    failures_read: int = 0
    """The failures among them of the attempt that is read now."""
    left_at: ReadOffset | None = None
    """How far its last file was read; an agent whose file was removed continues in a new one."""

    @property
    def rank(self) -> int:
        """Index in the job."""
        return self.header.rank

    def offset(self, ring_file: RingFile) -> ReadOffset:
        """Return how far its current file was read."""
        return self.steps.offset(self.header.attempt, ring_file.answer_generation)

    def note_failures(self, failures: int) -> None:
        """Update from the failure count of this attempt's agent, which only grows."""
        self.failures += max(0, failures - self.failures_read)
        self.failures_read = failures

    def is_fresh(self, now_ns: int, stale_ns: int) -> bool:
        """Whether there is a recent sign of life; one in the future dates from before a reboot."""
        return abs(now_ns - self.heartbeat_ns) <= stale_ns

    def info(self, progress: RankProgress | None = None) -> RankInfo:
        """Return what is announced of this rank."""
        return RankInfo(
            rank=self.rank,
            local_rank=self.header.local_rank,
            world_size=self.header.world_size,
            hostname=self.header.hostname,
            attempt=self.header.attempt,
            state=self.state,
            heartbeat_unix_ns=self.heartbeat_ns + self.header.clock_offset_ns,
            facts=self.facts,
            progress=progress,
            ending=self.ending,
        )


@dataclass(slots=True)
class ProgressWatch:
    """When a run last made progress.

    `progress` counts its records and possible ends of steps, because ranks without step numbers train too.
    `progress_ns` is when it last grew. None until the run was first checked. `is_announced`: announcements include
    where its ranks stand.
    """

    progress: tuple[int, int] | None = None
    progress_ns: int = 0
    is_announced: bool = False


@dataclass(slots=True)
class RunState:
    """One run on this node."""

    name: str
    directory: Path
    ranks: dict[int, RankState] = field(default_factory=dict)
    histogram: NodeStepHistogram = field(default_factory=NodeStepHistogram)
    flagged: FlaggedSteps = field(default_factory=FlaggedSteps)
    departed: StepTotals = field(default_factory=StepTotals)
    """Totals of ranks that were forgotten, so that the node's sums never fall."""
    refused: dict[int, int] = field(default_factory=dict)
    """Rank named by a refused file -> inode of the file, so that each is counted and logged once."""
    progress_watch: ProgressWatch = field(default_factory=ProgressWatch)
    is_empty: bool = False
    """Whether the directory held no ring at the last scan and the run never had one."""
    omitted: int = 0
    """Rings beyond the limit of a node."""
    quarantined: int = 0
    """Rings that are ignored until their file is replaced."""
    revision: int = 0
    """Grows whenever an announcement would differ from the last one."""

    def totals(self) -> StepTotals:
        """Return the totals of all ranks that the run has had on this node."""
        totals = StepTotals()
        for part in (self.departed, *(rank_state.totals for rank_state in self.ranks.values())):
            totals.merge(part)
        return totals

    def forget_departed(self) -> None:
        """Forget the ranks that have no file."""
        for rank in [rank for rank, rank_state in self.ranks.items() if rank_state.ring is None]:
            self.departed.merge(self.ranks.pop(rank).totals)

    def shown(self, now_ns: int, stale_ns: int) -> list[RankState]:
        """Return the ranks whose series exist: they have a file, have not finished, and have been silent only briefly.

        A rank whose agent disabled itself is naturally silent: it is shown while another rank of the run lives.
        """
        open_ranks = [rank_state for rank_state in self.ranks.values() if rank_state.ring is not None]
        fresh = [t for t in open_ranks if t.state not in ENDED and t.is_fresh(now_ns, stale_ns)]
        lives = any(rank_state.state == RUNNING for rank_state in fresh)
        return [t for t in open_ranks if t in fresh or (lives and t.state == UNWATCHED)]

    def announced(self) -> list[RankState]:
        """Return the ranks to announce, ascending: those with a file, and those that ended before theirs was removed.

        Ranks whose place another rank has taken are left out, as after an elastic restart. If there are too many, as in
        a job that restarted often, those that ended first are left out.
        """
        states = [t for t in self.ranks.values() if (t.ring is not None or t.state in ENDED) and not t.is_superseded]
        if len(states) > RANKS_PER_NODE_MAX:
            states.sort(key=lambda rank_state: (rank_state.ring is None, -rank_state.header.attempt))
        return sorted(states[:RANKS_PER_NODE_MAX], key=lambda rank_state: rank_state.rank)

    def groups(self) -> list[GroupInfo]:
        """Return the groups of all announced ranks, each once."""
        return merge_groups(rank_state.groups for rank_state in self.announced() if rank_state.ring is not None)
