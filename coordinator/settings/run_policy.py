"""Settings and constants of incidents, captures, growing memory, and of what is watched at all.

As in `policy.py`: a field that is `Annotated` is a setting, the others are constants.
"""

from dataclasses import dataclass
from typing import Annotated

from coordinator.settings.setting import DAY_SECONDS, WEEK_SECONDS, Setting
from lockstep.contracts.limits import PROFILE_STEPS_MAX
from lockstep.contracts.records import DOMAIN_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """When a run's state changes (`state.py`)."""

    recover_steps: Annotated[
        int,
        Setting(
            "evaluated steps without a finding, after the detector's own 5, before an incident closes",
            "steps",
            1,
            10000,
        ),
    ] = 5
    pending_seconds: Annotated[
        float,
        Setting(
            "a finding that has lasted less opens no incident: on shared hosts others take a core for hundreds of "
            "milliseconds; what noise may explain must last 30 times as long",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 1.0
    restart_steps: int = 10  # more of them after a restart of the run: a fault that is still there is found by then
    join_steps: Annotated[
        int, Setting("ranks that turn slow by the same cause within these steps share an incident", "steps", 1, 100_000)
    ] = 10
    cause_steps: int = 5  # evaluated steps that another cause must hold before an incident changes it
    unsure_factor: float = 30.0  # times `pending_seconds` for what noise may explain: shared hosts are busy for seconds
    unsure_steps: int = 20  # every minute; and so many steps, where steps are long
    lost_seconds: Annotated[
        float,
        Setting(
            "no step for so long (or 10 steps, whichever is longer) and the run is lost", "seconds", 1.0, DAY_SECONDS
        ),
    ] = 60.0
    lost_steps: float = 10.0
    lost_keep_seconds: Annotated[
        float, Setting("a lost run may come back; after that it is history", "seconds", 0.0, WEEK_SECONDS)
    ] = 3600.0
    keep_seconds: Annotated[
        float,
        Setting("a run that ended stays visible: several scrapes and an operator's look", "seconds", 1.0, WEEK_SECONDS),
    ] = 900.0
    crash_seconds: Annotated[
        float,
        Setting(
            "once a rank has ended, others end with it in so long, or they wait in vain for it",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 10.0
    stop_seconds: Annotated[
        float,
        Setting(
            "the same where it was asked to end: ranks save a checkpoint in the grace period",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 60.0
    store_steps: int = 50  # evaluated steps between two writes of an incident's running figures
    hang_steps: Annotated[
        float, Setting("PerfTracker: no step for so many usual ones is a run that is blocked", "steps", 1.0, 100_000.0)
    ] = 5.0
    hang_seconds: Annotated[
        float,
        Setting(
            "if it is so long: records travel in batches, and hosts of short steps stall", "seconds", 0.0, WEEK_SECONDS
        ),
    ] = 5.0
    hang_pause_factor: float = 1.5  # times the longest step so far: an unforeseeable checkpoint or evaluation
    false_page_steps: float = 500_000.0  # of the whole run: `Policy` gives every section those of `BudgetPolicy`
    hang_store_seconds: float = 10.0  # between two writes of a hang's running figures
    hang_stacks: Annotated[
        bool, Setting("ask the ranks of a run that hangs for their stacks: a millisecond of each")
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePolicy:
    """When and what to profile (`state.py`)."""

    enabled: Annotated[bool, Setting("the operator's switch; off forbids every request")] = True
    steps: Annotated[
        int,
        Setting(
            "enough for a median, short enough that the trace is written in a second", "steps", 1, PROFILE_STEPS_MAX
        ),
    ] = 3
    lead_seconds: float = 1.5  # request to rank: broker, control block and one step; both ranks begin together
    lead_steps: int = 2
    cooldown_seconds: Annotated[
        float, Setting("after a request; captures stall the ranks that write them", "seconds", 0.0, DAY_SECONDS)
    ] = 120.0
    larger_factor: float = 2.0  # times what the last capture's incident costs: no cool-down for a larger one
    per_day: Annotated[
        int, Setting("of a run in 24 hours: each stalls the ranks that write it for a second", "captures", 0, 10_000)
    ] = 8
    per_run: Annotated[
        int, Setting("of a run in all: four days of a fault that no one repairs", "captures", 0, 10_000)
    ] = 32
    shapes: Annotated[
        bool,
        Setting(
            "record operators' inputs for slow ranks and links too: they triple what stopping the profiler takes from "
            "training; without them rooflines, changing shapes and small messages of host backends are not shown"
        ),
    ] = False
    suspects: Annotated[
        int, Setting("of an incident: one slow host's eight ranks show the same", "ranks", 1, 10**9)
    ] = 2
    peers: Annotated[
        int,
        Setting(
            "healthy ranks with them: a median needs more than one, each more stalls another rank", "ranks", 0, 10**9
        ),
    ] = 2
    job_ranks: Annotated[
        int,
        Setting(
            "of a job that is slower as a whole: enough to separate what all do from what one does", "ranks", 1, 10**9
        ),
    ] = 4
    peer_wait_seconds: float = 10.0  # once the suspect's summary is there; a comparison that comes later amends
    own_load_ratio: float = 0.35  # a node's summaries take a quarter of a core at most (summarise_burst_ratio of its
    # exporter): a rank next to them is slower by a third, and what is slower by more is none of their doing
    expire_seconds: Annotated[
        float,
        Setting(
            "beyond the asked steps: writing and summarising a trace; nodes give up then, too",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """When memory that grows is reported (`detect/memory_growth.py`); what is steady growth, nodes have decided."""

    known_share: float = 0.5  # of the ranks with a window of the same length, before they are compared
    common_share: float = 0.5  # of them, beyond which growth is the job's and no rank's own
    peers_factor: Annotated[
        float,
        Setting(
            "times the peers' growth: caches fill up unevenly, a leak in one rank is its own", "factor", 0.01, 100.0
        ),
    ] = 2.0
    peers_sigmas: float = 5.0  # of the peers' scatter: the largest of 10,000 Gaussian values lies 3.7 sigma high
    forecast_windows: Annotated[
        float,
        Setting(
            "of a job's growth: a line is not believed further ahead than so many times itself",
            "windows",
            0.0,
            1000000000.0,
        ),
    ] = 10.0
    quiet_seconds: Annotated[
        float, Setting("without growth close an incident: six heartbeats of a node", "seconds", 0.0, WEEK_SECONDS)
    ] = 60.0
    store_seconds: float = 30.0  # between two updates of an incident that only grows


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorPolicy:
    """Which detectors report (`scope.py`). One that is off goes on learning: switched on, it needs no warm-up."""

    slow_rank: Annotated[bool, Setting("ranks, nodes, replicas and stages whose own work is longer")] = True
    slow_link: Annotated[bool, Setting("groups, cards and the network")] = True
    fluctuation: Annotated[bool, Setting("the run against its own history")] = True
    unsynchronised_gc: Annotated[bool, Setting("collections of garbage out of step")] = True
    hang: Annotated[bool, Setting("no step is made any more")] = True
    crash: Annotated[bool, Setting("a rank that ended the run")] = True
    memory_growth: Annotated[bool, Setting("memory that grows with every step")] = True
    imbalance: Annotated[bool, Setting("what legitimate differences cost, as a metric")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePolicy:
    """What is watched (`scope.py`)."""

    runs: Annotated[
        tuple[str, ...],
        Setting("shell patterns; the others are evaluated, but nothing of them is reported or exported"),
    ] = ("*",)
    domain_kinds: Annotated[tuple[str, ...], Setting("whose links are reported; a slow rank always is")] = DOMAIN_KINDS
