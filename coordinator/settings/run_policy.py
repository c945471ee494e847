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
            "evaluated steps without an anomaly before an incident closes, after the detector's own 5",
            "steps",
            1,
            10000,
        ),
    ] = 5
    pending_seconds: Annotated[
        float,
        Setting(
            "a shorter anomaly opens no incident: on shared hosts, other processes take a core for hundreds of "
            "milliseconds; an anomaly that noise may explain must last 30 times as long",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 1.0
    restart_steps: int = 10  # more of them after a restart of the run: a fault that is still there is found by then
    join_steps: int = 10  # within which ranks that turn slow by the same cause share an incident: alarms of one fault
    # follow its onset by 3 to 9 steps
    cause_steps: int = 5  # evaluated steps that another cause must hold before an incident changes it
    unsure_factor: float = 30.0  # times `pending_seconds` for what noise may explain: shared hosts are busy for seconds
    unsure_steps: int = 20  # every minute; and so many steps, where steps are long
    lost_seconds: Annotated[
        float,
        Setting(
            "a run without a step for this long, or for 10 usual steps if that is longer, is lost",
            "seconds",
            1.0,
            DAY_SECONDS,
        ),
    ] = 60.0
    lost_steps: float = 10.0
    lost_keep_seconds: Annotated[
        float, Setting("a lost run may come back within this time; then it is forgotten", "seconds", 0.0, WEEK_SECONDS)
    ] = 3600.0
    keep_seconds: Annotated[
        float,
        Setting(
            "an ended run stays visible for this long: several scrapes, and time for an operator to look",
            "seconds",
            1.0,
            WEEK_SECONDS,
        ),
    ] = 900.0
    crash_seconds: Annotated[
        float,
        Setting(
            "once a rank has ended, the others end within this time, or they wait for it in vain",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 10.0
    stop_seconds: Annotated[
        float,
        Setting(
            "the same for a rank that was asked to end: ranks save a checkpoint in the grace period",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 60.0
    store_steps: int = 50  # evaluated steps between two writes of an incident's running figures
    hang_steps: Annotated[
        float,
        Setting("PerfTracker: a run without a step for this many usual steps is blocked", "steps", 1.0, 100_000.0),
    ] = 5.0
    hang_seconds: Annotated[
        float,
        Setting(
            "and for at least this long: records travel in batches, and hosts stall for longer than a short step",
            "seconds",
            0.0,
            WEEK_SECONDS,
        ),
    ] = 5.0
    hang_pause_factor: float = 1.5  # times the longest step so far: an unforeseeable checkpoint or evaluation
    false_page_steps: float = 500_000.0  # of the whole run: `Policy` gives every section those of `BudgetPolicy`
    hang_store_seconds: float = 10.0  # between two writes of a hang's running figures
    hang_stacks: Annotated[
        bool, Setting("request stacks from the ranks of a run that hangs; each takes a millisecond")
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePolicy:
    """When and what to profile (`state.py`)."""

    enabled: Annotated[bool, Setting("the operator's switch; off forbids every capture")] = True
    steps: Annotated[
        int,
        Setting(
            "enough for a median, short enough that the trace is written in a second", "steps", 1, PROFILE_STEPS_MAX
        ),
    ] = 3
    lead_seconds: float = 1.5  # request to rank: broker, control block and one step; both ranks begin together
    lead_steps: int = 2
    cooldown_seconds: Annotated[
        float,
        Setting("time between two requests; captures stall the ranks that write them", "seconds", 0.0, DAY_SECONDS),
    ] = 120.0
    larger_factor: float = 2.0  # times what the last capture's incident costs: no cool-down for a larger one
    per_day: Annotated[
        int,
        Setting(
            "captures of a run in 24 hours; each stalls the ranks that write it for a second", "captures", 0, 10_000
        ),
    ] = 8
    per_run: Annotated[
        int, Setting("captures of a run in all: four days of a fault that no one repairs", "captures", 0, 10_000)
    ] = 32
    shapes: Annotated[
        bool,
        Setting(
            "record the shapes of operators' inputs for slow ranks and links too. They triple the time that "
            "stopping the profiler takes from training. Rooflines, changing shapes and small messages of host "
            "backends need them"
        ),
    ] = False
    suspects: Annotated[
        int,
        Setting("suspects profiled for an incident: the eight ranks of one slow host show the same", "ranks", 1, 10**9),
    ] = 2
    peers: Annotated[
        int,
        Setting(
            "healthy ranks profiled with them: a median needs more than one, and each stalls another rank",
            "ranks",
            0,
            10**9,
        ),
    ] = 2
    job_ranks: Annotated[
        int,
        Setting(
            "ranks profiled when the whole job is slower: enough to separate what all ranks do from what one does",
            "ranks",
            1,
            10**9,
        ),
    ] = 4
    peer_wait_seconds: float = 10.0  # once the suspect's summary is there; a comparison that comes later amends
    own_load_ratio: float = 0.35  # a node's summaries take a quarter of a core at most (summarise_burst_ratio of its
    # exporter): a rank next to them is slower by a third, and what is slower by more is none of their doing
    expire_seconds: Annotated[
        float,
        Setting(
            "time after the requested steps for writing and summarising a trace; then nodes give up, too",
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
            "a rank leaks by itself if it grows this many times as fast as its peers: caches fill up unevenly",
            "factor",
            0.01,
            100.0,
        ),
    ] = 2.0
    peers_sigmas: float = 5.0  # of the peers' scatter: the largest of 10,000 Gaussian values lies 3.7 sigma high
    forecast_windows: float = 10.0  # of a job's growth: a line is not believed further ahead than so many times itself
    quiet_seconds: float = 6 * 10.0  # without growth close an incident: heartbeats of a node come every 10 s
    store_seconds: float = 30.0  # between two updates of an incident that only grows


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorPolicy:
    """Which detectors report (`scope.py`). One that is off goes on learning: switched on, it needs no warm-up."""

    slow_rank: Annotated[bool, Setting("ranks, nodes, replicas and stages whose own work is longer")] = True
    slow_link: Annotated[bool, Setting("groups, network cards and the network")] = True
    fluctuation: Annotated[bool, Setting("the run against its own history")] = True
    unsynchronised_gc: Annotated[bool, Setting("garbage collections that are not in the same steps on all ranks")] = (
        True
    )
    hang: Annotated[bool, Setting("a run that makes no more steps")] = True
    crash: Annotated[bool, Setting("a rank that ended the run")] = True
    memory_growth: Annotated[bool, Setting("memory that grows with every step")] = True
    imbalance: Annotated[bool, Setting("the cost of legitimate differences between ranks, as a metric")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePolicy:
    """What is watched (`scope.py`)."""

    runs: Annotated[
        tuple[str, ...],
        Setting(
            "shell patterns of run names; other runs are evaluated, but nothing about them is reported or exported"
        ),
    ] = ("*",)
    domain_kinds: Annotated[
        tuple[str, ...], Setting("kinds of domains whose links are reported; slow ranks are always reported")
    ] = DOMAIN_KINDS
