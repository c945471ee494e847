"""Every threshold and every waiting time of the alerts, each with its reason, and what a site may name otherwise.

A rule file holds no number that does not stand here.
"""

from dataclasses import dataclass
from typing import Annotated

from lockstep.contracts.bounds import Range

Ratio = Annotated[float, Range(0, 10)]
Seconds = Annotated[int, Range(0, 604_800)]
"""Up to a week."""
Count = Annotated[int, Range(0, 1_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What differs from one installation to the next.

    `run_labels` is what identifies a run, comma separated: a ruler over several clusters needs "cluster, run".
    The three addresses are placeholders under a reserved name until a site sets its own; `coordinator_url` is where
    people reach the coordinator's pages.
    """

    exporter_job: str = "lockstep-exporter"
    coordinator_job: str = "lockstep-coordinator"
    run_labels: str = "run"
    runbooks_url: str = "https://runbooks.example.invalid/lockstep"
    grafana_url: str = "https://grafana.example.invalid"
    coordinator_url: str = "https://lockstep.example.invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """Thresholds and waiting times. Below five minutes of waiting a reason follows the value."""

    stalled_age_seconds: Seconds = 300
    """No step for this long: a checkpoint or an evaluation of a large model takes minutes, hardly five."""

    stalled_steps: Count = 10
    """And no step for this many healthy ones: the slowest published step is 85 s, for which five minutes prove nothing.
    The coordinator's own rule (blocked after five) decides the state; this one wakes a person, so it waits longer."""

    stalled_for_seconds: Seconds = 0
    """The age in the expression is the waiting time; a second one would only delay the page."""

    crashed_for_seconds: Seconds = 60
    """A launcher that restarts the job by itself has begun another attempt by then."""

    ranks_missing_for_seconds: Seconds = 600
    """An exporter that restarts, or a node that is drained, is back well before that. A run that stops because of it
    has already paged as hung or stalled."""

    slow_ratio: Ratio = 0.10
    """Twice the coordinator's 5 %: below, `lockstep_run_fluctuating` decides, which knows the run's history."""

    slow_for_seconds: Seconds = 600
    """A ticket may wait for ten minutes; shorter slowdowns are not worth a person's time."""

    slow_keep_seconds: Seconds = 600
    """Without it, the alert of a run at the threshold would come and go. A slow device that is gone explains its run
    for the same time."""

    expected_ratio: Ratio = 0.10
    """And above the model's own band: the band of a quiet job is a percent or two, which is worth no ticket."""

    expected_for_seconds: Seconds = 1800
    """Other alerts fire earlier on sudden faults; this one is for slow drift, and may wait."""

    expected_keep_seconds: Seconds = 600
    """Without it, the alert of a run at the edge of the band would come and go. It must not exceed `slow_keep_seconds`,
    or a slowdown that a slow device explains is sent after that device's alert."""

    slow_device_for_seconds: Seconds = 300
    """A ticket: a device that is slow for less time is not worth one. A loss of many devices pages at once."""

    page_devices_lost: Count = 8
    """The devices of one node, lost to slowness or idle in a stopped run: that wakes a person, as a dead node would. A
    rank that is 2.6 % slow among 8 loses 0.2 devices; one that is 20 % slow among 10,000 loses 2,000."""

    devices_lost_for_seconds: Seconds = 0
    """The coordinator has confirmed a suspect over several steps before its series exists, and a run that is slow
    without one has waited as a ticket; waiting again would only cost device time."""

    verdicts_max: Count = 2048
    """32 suspects of 64 runs. Beyond that the labels are wrong, and a flood of alerts helps no one."""

    memory_remaining_seconds: Seconds = 3600
    """An hour, because it is a ticket: time to read it, to save a checkpoint and to stop. The crash itself pages."""

    memory_for_seconds: Seconds = 0
    """The coordinator has seen the growth twice before its series exists."""

    hung_silence_seconds: Seconds = 60
    """A rank that writes a checkpoint for all looks like one that does not arrive. Longer checkpoints are known from
    the run's past or are annotated. Torch itself gives up after ten minutes, which leaves time to act."""

    hung_for_seconds: Seconds = 0
    """The silence in the expression is the waiting time."""

    small_hung_for_seconds: Seconds = 180
    """A ticket after four minutes of silence in all: it comes before the ticket of the stall, which it explains."""

    function_new_seconds: Seconds = 50
    """Three scrapes and evaluations at 15 s: the alert is sent at the first, and ends by itself."""

    page_sent_seconds: Seconds = 80
    """`function_new_seconds` plus the `group_wait` of a page in the example, 30 s: the page contains what is known by
    then."""

    link_slow_for_seconds: Seconds = 300
    link_slow_keep_seconds: Seconds = 300
    """A link is slow only under load, and looks healthy between two large collectives."""

    agent_down_for_seconds: Seconds = 300
    """A rank that restarts gets a new agent."""

    exporter_down_for_seconds: Seconds = 300
    """A ticket: batches wait in the spool, and an exporter that restarts is back within seconds."""

    exporter_absent_for_seconds: Seconds = 600
    """Without any target, someone is changing the scrape configuration; give them time to finish."""

    coordinator_down_for_seconds: Seconds = 300
    """A ticket. A rescheduled pod is back within two or three minutes."""

    coordinator_down_page_seconds: Seconds = 1800
    """After half an hour a coordinator does not come back by itself, and meanwhile faults cost devices unseen."""

    stale_age_seconds: Seconds = 300
    """Three of the slowest published steps; a coordinator evaluates each."""

    stale_for_seconds: Seconds = 300
    """A coordinator that restarts first reads the batches that waited for it."""

    unwatched_for_seconds: Seconds = 600
    """A run that has just begun is unknown to the coordinator until each rank has been announced and has stepped."""

    broker_for_seconds: Seconds = 600
    """Reconnecting backs off to a minute; nothing is lost before the spool is full."""

    spool_fill_ratio: Ratio = 0.5
    """At a constant rate the time left equals the time since the spool began to fill: an hour, at the load that the
    default limit is for."""

    spool_fill_for_seconds: Seconds = 300
    """A coordinator that is back receives all waiting messages in less time."""

    records_lost_ratio: Ratio = 0.01
    """One record in a hundred: medians over a window of steps do not notice less."""

    records_lost_for_seconds: Seconds = 600
    """An exporter that was down for long loses records once, and nothing brings them back."""

    training_delay_ratio: Ratio = 0.025
    """Share of the time: detectors find a rank that is slower by that much."""

    training_delay_for_seconds: Seconds = 600
    """The exporter reads the traces of one capture in a minute, within the budget of its settings."""

    reload_failed_for_seconds: Seconds = 600
    """The caller of the reload got the error at once; this alert is for unattended changes."""

    recording_dropped_for_seconds: Seconds = 600
    """A disk that was slow for a while leaves a gap that nothing can fill; a full disk goes on dropping records."""

    watchdog_for_seconds: Seconds = 0
    """It must always fire."""


def duration(seconds: int) -> str:
    """Return a duration as Prometheus writes it, in the largest unit that holds it exactly."""
    if seconds and seconds % 60 == 0:
        return f"{seconds // 60}m"
    return f"{seconds}s"
