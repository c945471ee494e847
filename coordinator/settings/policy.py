"""Every setting and constant of detection, with the reason next to its value.

A field that is `Annotated` is a setting (`setting.py`), the others are constants of the method. Limits follow from the
steps between false pages (`detect/error_budget.py`). Only numbers live here: `detect/`, `timeline.py`
and `state.py` apply them. Figures marked "reference" were measured on production logs and generated runs of 8 to
102,400 ranks; figures marked "shared cores" on four training processes sharing two cores, the noisiest healthy job that
must stay silent.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

from coordinator.settings.run_policy import DetectorPolicy, MemoryPolicy, ProfilePolicy, RunPolicy, ScopePolicy
from coordinator.settings.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePolicy:
    """How long a step waits for its records, and how many steps are held."""

    window_cells: Annotated[
        int, Setting("pending steps x ranks: 56 MB with 19 values each", "cells", 1, 10**9, is_live=False)
    ] = 1 << 18
    window_steps_min: int = 32  # two nodes whose batches leave 3 s apart at 10 steps a second
    window_steps_max: int = 1024  # as many as a ring holds: nothing more can arrive at once
    grace_seconds: Annotated[
        float,
        Setting(
            "several batch intervals; after this, a step is evaluated without the ranks that have not reported it",
            "seconds",
            0.1,
            3600.0,
        ),
    ] = 5.0
    rejoin_seconds: float = 1.5 * 30.0  # after this, so is a node that is not connected: the longest pause between two
    # attempts of an exporter to connect, and half of it for its jitter and the connection itself
    part_max_seconds: float = 86_400.0  # a step of a day is no step; keeps sums of nanoseconds inside 64 bits
    sum_tolerance_ratio: float = 0.001  # the account is exact by contract; what rounding may add
    flag_share_max: float = 0.5  # a rank that flags more of its steps than this no longer excuses the others
    flag_share_rate: float = 1 / 32  # memory of that share: a capture of a few steps stays far below it


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPolicy:
    """How often a run may page for nothing: what all limits of all tests follow from (`detect/error_budget.py`)."""

    false_page_steps: Annotated[
        float,
        Setting(
            "expected steps between false pages of a whole run, over all of its tests; two months at 10 s a step",
            "steps",
            1000.0,
            1e9,
        ),
    ] = 500_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcessPolicy:
    """When the excess of a series over its reference is an alarm (`detect/ranks/series_cusum.py`)."""

    warm_up_steps: Annotated[
        int,
        Setting(
            "undisturbed steps from which noise is learnt before any rank is named; a quiet job needs fewer",
            "steps",
            8,
            10_000,
        ),
    ] = 20
    early_sigma: float = 0.02  # noise of a quiet job, in which fewer steps do: 5 times that of reference jobs, ...
    early_samples: int = 24  # ... once so many differences show it: 3 steps of 8 ranks, one of more
    settle_steps: int = 5  # of these, the first ones feed no noise either: allocation and caches
    static_sigma: float = 0.003  # of devices, as expected before any has been seen; reference: 0.24 to 0.30 %
    static_level_sigmas: float = 4.0  # that a series' level takes: one device of 30,000 is beyond (Gaussian)
    baseline_rate: float = 1 / 64  # slow enough not to learn a fault before its alarm at step 3
    noise_rate: float = 1 / 64  # memory of the noise figures, in steps
    difference_to_sigma: float = 0.886  # Gaussian: E|a - b| = 1.128 sigma
    clip_sigmas: float = 6.0  # reference: with slack 2 a step adds at most 4, so two stalled steps never alarm
    burst_factor: float = 30.0  # differences beyond the clip that are 3 % of all double it, a few in a thousand do not
    zero_share_usual: float = 0.1  # of series that do not move from step to step: Gaussian noise has 0.06 of them
    zero_share_caution: float = 6.0  # in replicas of two a quarter stands still, and noise reads as half of what it is
    slack_sigmas: float = 2.0
    stalled_steps: float = 2.75  # clear steps of an alarm: two stalls and a third step of 5 sigma stay below
    false_page_steps: float = 500_000.0  # of the whole run: `Policy` gives every section those of `BudgetPolicy`
    floor_ratio: Annotated[
        float,
        Setting(
            "reference: smallest effect reported; +3 % is found, +2 % is static device variation", "ratio", 0.001, 10.0
        ),
    ] = 0.025
    tail_factor: float = (
        1.45  # times a limit's sigmas where noise groups are noisy: shared cores have longer tails than
    )
    # Gaussian noise
    walk_prior_ratio: float = 0.004  # slow walk of a rank taken for granted until long means have been compared
    median_share: float = 0.7  # reference: share of the limit that the last steps' middle must reach, besides the mean
    gross_ratio: float = 0.75  # where ranks share cores, the median of three steps that is an effect
    noisy_sigma: float = 0.05  # more than 10 times the noise of reference jobs: ranks share cores, and one of them
    # descheduled for 7 steps reads as +56 %. There the short median must reach the gross ratio, ...
    noisy_long_factor: float = 2.0  # ... and the long mean twice its limit. Learnt noise is too young to know the tail:
    noisy_short_sigmas: float = 8.0  # shared cores, a stranger on one of them for 4 s: 6.8 sigma for three steps, ...
    noisy_long_sigmas: float = 4.5  # ... and 3.9 sigma for the mean of sixteen
    clear_factor: float = 2.0  # times the sum of an alarm: six clear steps and more, or twenty small ones, ...
    clear_floor_share: float = 0.8  # ... of which so much of the floor is enough: drifts, reported at 2 to 3 %
    static_share: float = 0.6  # share of the floor below which a lasting excess is static device variation, and learnt
    static_sigmas: float = 0.5  # and what noise adds to a long mean: more than that is no static device variation
    # (without it a slow rank of a recorded job on shared cores is found three steps later)
    least_share: float = 0.33  # share of limit and median that the least of three must reach: two stalls are no fault
    clear_steps: int = 5  # reference: quiet steps that end an alarm
    clear_share: float = 0.5  # share of the limit below which a step is quiet

    @property
    def baseline_max_ratio(self) -> float:
        """How much lasting excess is learnt as a series' own level."""
        return self.static_level_sigmas * self.static_sigma

    def sum_of(self, clear_steps: float) -> float:
        """Return what so many steps beyond the clip add to a sum."""
        return clear_steps * (self.clip_sigmas - self.slack_sigmas)

    @property
    def alarm_sigmas(self) -> float:
        """The sum that alarms."""
        return self.sum_of(self.stalled_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPolicy:
    """How much of a rank's compute is attributed to its work (`detect/ranks/work.py`)."""

    rate: float = 1 / 32  # memory of the slope, in steps: experts change their load over hundreds
    spread_min: float = 0.002  # work that differs less between ranks cannot explain a reportable effect
    spread_max: float = 4.0  # no rank has five times the work of its peers; a figure that claims so is no work figure
    slope_max: float = 1.2  # compute that grows faster than the work is something else
    longer_max: float = 1.0  # compute beyond twice the stage's is a stall, which teaches nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPolicy:
    """What ranks are compared with (`detect/ranks/slow_rank.py`)."""

    stage_stalled_steps: float = 3.75  # whole stages are held up together, by a stall in one of their ranks
    past_rate: float = 1 / 64  # memory of how long a stage's work is among the stages
    past_step_max: float = 0.05  # and what one step may differ from it to be taken in: jobs wander by less
    pause_ratio: float = 0.35  # work of all stages longer than lately by so much is a checkpoint or evaluation ...
    pause_steps: int = 2  # ... for so many steps; what lasts longer is how the job is now
    pause_sigma: float = 0.02  # only in quiet jobs: on shared cores half the steps look like that
    idle_ratio: float = 0.25  # share of its stage's work below which a rank's figure is no work at all
    whole_max: int = 8  # a replica of so few ranks is unknown in a step in which one is missing, ...
    absent_steps: int = 3  # ... unless it has been missing for longer: a frozen counter must not silence its peers
    # (`slow, frozen counter` with the slow rank next to the frozen one)


@dataclass(frozen=True, slots=True, kw_only=True)
class FluctuationPolicy:
    """When a run is slower than its own history (`detect/runs/fluctuation.py`)."""

    floor_ratio: Annotated[
        float,
        Setting(
            "smallest change of the step time that is reported; a drift is reported before it reaches 3.5 %",
            "ratio",
            0.0,
            10.0,
        ),
    ] = 0.025
    short_floor_factor: float = 1.2  # reference: 3 %, where three steps alone decide
    warm_up_steps: Annotated[
        int, Setting("the median of the last of them is the run's first level", "steps", 8, 10_000)
    ] = 20
    young_steps: int = 10  # after the last flagged step of a start: caches and allocators take longer than agents flag
    settle_steps: int = (
        15  # steps without which a first level is learnt: a warm-up that fades with 3 steps is below 1 % by then
    )
    noise_samples: int = 16  # steps compared with the one 16 before, from which noise is known
    noise_hold_steps: int = 48  # after which a value is compared with the one 16 before: a fault would be known
    noise_rate: float = 1 / 256  # memory of the noise figures, in steps; they set how long the series remembers
    baseline_rate: float = 1 / 32  # times at most one sigma: the level of a quiet job rises by 2 % in 100 steps at most
    outlier_sigmas: float = 4.0  # reference: clip of the job's test; beyond, a step is an outlier
    row_min_steps: int = 3  # reference: so many outliers in a row alarm where they are rare
    slack_sigmas: float = 1.0  # reference
    alarm_sum: float = 8.0  # reference
    false_page_steps: float = 500_000.0  # of the whole run: `Policy` gives every section those of `BudgetPolicy`
    windows_min: int = 5  # so many windows must have been seen before a mean of so many steps can be called unusual
    clip_sigmas: float = 6.0  # a single step counts no more than this in a mean
    least_share: float = 0.33  # share of the limit that the least of three steps must reach ...
    median_share: float = 0.7  # ... and the middle of all: a few stalls are no slowdown
    noisy_sigma: float = 0.05  # 7 times the noise of reference jobs: ranks share cores, tails have no known end, ...
    tail_factor: float = 1.2  # ... so means must be so many times further out, and a verdict must last
    quiet_sigma: float = 0.009  # reference jobs 0.7 %: up to here a verdict may be reported at once, ...
    sure_factor: float = 1.5  # ... and where the effect is so many times the limit
    pause_ratio: float = 0.35  # reference: a step longer by so much, once or twice, is an unflagged checkpoint
    clear_steps: int = 5  # reference: quiet steps that end an alarm
    clear_share: float = 0.5  # share of the limit below which a step is quiet
    work_change_ratio: float = 0.02  # work whose median of three steps moves further has changed
    work_settle_steps: int = 6  # steps after which the level for a new amount of work is known
    elasticity_max: float = 1.1  # a step grows at most so much more than its work; attention grows faster than tokens
    recent_steps: int = 10  # median shown as the recent step time
    mean_ratio: float = 0.05  # PerfTracker 4.1: mean of the last 50 iterations 5 % above the shortest recent one ...
    mean_sigmas: float = 4.5  # ... and above what noise makes of it: the least of 50 lies 2.25 sigma low; twice that


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPolicy:
    """When a domain's transfer is slow (`detect/links/slow_link.py`)."""

    baseline_rate: float = 1 / 64  # memory of a group's past, in steps: as that of ranks
    warm_up_rate: float = 1 / 8  # the same in the first steps: what they begin with must not outweigh the rest
    effect_ratio: Annotated[
        float, Setting("reference: transfer jitter is 3 %, healthy groups stay within 30 %", "ratio", 0.0, 10.0)
    ] = 0.3
    step_share: Annotated[
        float, Setting("reference: an excess below this share of a step does not matter", "share", 0.0, 1.0)
    ] = 0.004
    peers_ratio: float = 0.5  # slow from the first step: half of half a bandwidth, more than a fabric's paths differ by
    peers_min: int = 2  # groups alike: links are slow one-sidedly, so the faster of two is as it should be
    hidden_share: float = (
        1 / 16
    )  # members missing of a group that is still evaluated: they seldom hide the last arriver
    node_share: float = 0.6  # of a node's groups of a kind: some begin later, their records are missing
    job_share: float = 0.6  # of a kind's groups: more than any single node slows in a job of two pipelines
    hold_steps: int = 3  # groups about to alarm are waited for so long before a cause is named: together they show it


@dataclass(frozen=True, slots=True, kw_only=True)
class GcPolicy:
    """When unsynchronised garbage collection is a fault (`detect/runs/unsynchronised_gc.py`)."""

    window_steps: int = 100  # reference
    event_ratio: float = 0.02  # reference: a shorter collection, as a share of the step, holds no rank up
    events_min: int = 3  # reference: steps with such a collection ...
    ranks_min: int = 3  # ... on so many ranks (of two ranks: on both)
    one_rank_share: float = 0.6  # of what is lost, in steps in which one rank collects; beyond, that rank is slow
    lost_share: float = 0.5 * 3 * (1 / 3) / 100  # of the window: half of three events of a third of a step in 100 steps
    quiet_steps: int = 10  # without a collection end it, ...
    quiet_factor: float = 8.0  # ... or so many times the usual distance between two: chance leaves 5 every 150 events


@dataclass(frozen=True, slots=True, kw_only=True)
class CausePolicy:
    """How the excess is given to a component (`detect/ranks/components.py`)."""

    steps: int = 3  # median over these: the third slow step must already name the cause
    share_min: float = 0.4  # below this share of the excess no single component is the cause: two alike have half each
    off_cpu_share_min: float = 0.7  # of it, the thread did not do more but slept; what it computes on a core that it
    # shares with one more task it is off the CPU for half of (`components.is_asleep`)
    run_share_min: float = 0.25  # reference: own work that explains so much of a slower run goes before waiting
    typical_rate: float = 1 / 8  # memory of what a step of the run usually consists of, in samples ...
    typical_every: int = 8  # ... of one step in so many: it changes slowly and costs as much as the rank test


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All of them. Only `budget` decides over `false_page_steps`, whatever a section holds."""

    timeline: TimelinePolicy = TimelinePolicy()
    budget: BudgetPolicy = BudgetPolicy()
    excess: ExcessPolicy = ExcessPolicy()
    work: WorkPolicy = WorkPolicy()
    rank: RankPolicy = RankPolicy()
    fluctuation: FluctuationPolicy = FluctuationPolicy()
    link: LinkPolicy = LinkPolicy()
    gc: GcPolicy = GcPolicy()
    cause: CausePolicy = CausePolicy()
    run: RunPolicy = field(default_factory=RunPolicy)
    profile: ProfilePolicy = field(default_factory=ProfilePolicy)
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    detectors: DetectorPolicy = field(default_factory=DetectorPolicy)
    scope: ScopePolicy = field(default_factory=ScopePolicy)

    def __post_init__(self) -> None:
        """Give the sections that hold limits the run's budget: a test needs no more than its own section."""
        steps = self.budget.false_page_steps
        for name in ("excess", "fluctuation", "run"):
            object.__setattr__(self, name, replace(getattr(self, name), false_page_steps=steps))
