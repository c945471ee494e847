"""Every threshold and waiting time of the alerts, each with its reason, and the names that a site may set.

Rule files contain no number that is not defined here.
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
    """Settings that differ between installations.

    `run_labels` identify a run, separated by commas: a ruler over several clusters needs "cluster, run". The three
    addresses are placeholders under a reserved name until a site sets its own; `coordinator_url` is the address at
    which people reach the coordinator's pages.
    """

    exporter_job: str = "lockstep-exporter"
    coordinator_job: str = "lockstep-coordinator"
    run_labels: str = "run"
    runbooks_url: str = "https://runbooks.example.invalid/lockstep"
    grafana_url: str = "https://grafana.example.invalid"
    coordinator_url: str = "https://lockstep.example.invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPolicy:
    """Thresholds and waiting times, each with its reason."""

    stalled_age_seconds: Annotated[
        Seconds, "No step for this long: a checkpoint or an evaluation of a large model takes minutes, hardly five."
    ] = 300

    stalled_steps: Annotated[
        Count,
        "And no step for this many healthy ones: the slowest published step is 85 s, for which five minutes prove "
        "nothing. The coordinator's own rule (blocked after five) decides the state; this one wakes a person, so "
        "it waits longer.",
    ] = 10

    stalled_for_seconds: Annotated[
        Seconds, "The age in the expression is the waiting time; a second one would only delay the page."
    ] = 0

    crashed_for_seconds: Annotated[
        Seconds, "A launcher that restarts the job by itself has begun another attempt by then."
    ] = 60

    ranks_missing_for_seconds: Annotated[
        Seconds,
        "An exporter that restarts, or a node that is drained, is back well before that. A run that stops because "
        "of it has already paged as hung or stalled.",
    ] = 600

    slow_ratio: Annotated[
        Ratio, "Twice the coordinator's 5 %: below, `lockstep_run_fluctuating` decides, which knows the run's history."
    ] = 0.10

    slow_for_seconds: Annotated[
        Seconds, "A ticket may wait for ten minutes; shorter slowdowns are not worth a person's time."
    ] = 600

    slow_keep_seconds: Annotated[
        Seconds,
        "Without it, the alert of a run at the threshold would come and go. A slow device that is gone explains "
        "its run for the same time.",
    ] = 600

    expected_ratio: Annotated[
        Ratio, "And above the model's own band: the band of a quiet job is a percent or two, which is worth no ticket."
    ] = 0.10

    expected_for_seconds: Annotated[
        Seconds, "Other alerts fire earlier on sudden faults; this one is for slow drift, and may wait."
    ] = 1800

    expected_keep_seconds: Annotated[
        Seconds,
        "Without it, the alert of a run at the edge of the band would come and go. It must not exceed "
        "`slow_keep_seconds`, or a slowdown that a slow device explains is sent after that device's alert.",
    ] = 600

    slow_device_for_seconds: Annotated[
        Seconds, "A ticket: a device that is slow for less time is not worth one. A loss of many devices pages at once."
    ] = 300

    page_devices_lost: Annotated[
        Count,
        "The devices of one node, lost to slowness or idle in a stopped run: that wakes a person, as a dead node "
        "would. A rank that is 2.6 % slow among 8 loses 0.2 devices; one that is 20 % slow among 10,000 loses "
        "2,000.",
    ] = 8

    devices_lost_for_seconds: Annotated[
        Seconds,
        "The coordinator has confirmed a suspect over several steps before its series exists, and a run that is "
        "slow without one has waited as a ticket; waiting again would only cost device time.",
    ] = 0

    verdicts_max: Annotated[
        Count, "32 suspects of 64 runs. Beyond that the labels are wrong, and a flood of alerts helps no one."
    ] = 2048

    memory_remaining_seconds: Annotated[
        Seconds,
        "An hour, because it is a ticket: time to read it, to save a checkpoint and to stop. The crash itself pages.",
    ] = 3600

    memory_for_seconds: Annotated[Seconds, "The coordinator has seen the growth twice before its series exists."] = 0

    hung_silence_seconds: Annotated[
        Seconds,
        "A rank that writes a checkpoint for all looks like one that does not arrive. Longer checkpoints are known "
        "from the run's past or are annotated. Torch itself gives up after ten minutes, which leaves time to act.",
    ] = 60

    hung_for_seconds: Annotated[Seconds, "The silence in the expression is the waiting time."] = 0

    small_hung_for_seconds: Annotated[
        Seconds,
        "A ticket after four minutes of silence in all: it comes before the ticket of the stall, which it explains.",
    ] = 180

    function_new_seconds: Annotated[
        Seconds, "Three scrapes and evaluations at 15 s: the alert is sent at the first, and ends by itself."
    ] = 50

    page_sent_seconds: Annotated[
        Seconds,
        "`function_new_seconds` plus the `group_wait` of a page in the example, 30 s: the page contains what is "
        "known by then.",
    ] = 80

    link_slow_for_seconds: Annotated[
        Seconds, "A ticket may wait for five minutes; shorter disturbances of a network end by themselves."
    ] = 300

    link_slow_keep_seconds: Annotated[
        Seconds,
        "Without it, the alert would come and go: a link is slow only under load, and looks healthy between two large "
        "collectives.",
    ] = 300

    agent_down_for_seconds: Annotated[Seconds, "A rank that restarts gets a new agent."] = 300

    exporter_down_for_seconds: Annotated[
        Seconds, "A ticket: batches wait in the spool, and an exporter that restarts is back within seconds."
    ] = 300

    exporter_absent_for_seconds: Annotated[
        Seconds, "Without any target, someone is changing the scrape configuration; give them time to finish."
    ] = 600

    coordinator_down_for_seconds: Annotated[
        Seconds, "A ticket. A rescheduled pod is back within two or three minutes."
    ] = 300

    coordinator_down_page_seconds: Annotated[
        Seconds,
        "After half an hour a coordinator does not come back by itself, and meanwhile faults cost devices unseen.",
    ] = 1800

    stale_age_seconds: Annotated[Seconds, "Three of the slowest published steps; a coordinator evaluates each."] = 300

    stale_for_seconds: Annotated[Seconds, "A coordinator that restarts first reads the batches that waited for it."] = (
        300
    )

    unwatched_for_seconds: Annotated[
        Seconds,
        "A run that has just begun is unknown to the coordinator until each rank has been announced and has stepped.",
    ] = 600

    broker_for_seconds: Annotated[
        Seconds, "Reconnecting backs off to a minute; nothing is lost before the spool is full."
    ] = 600

    spool_fill_ratio: Annotated[
        Ratio,
        "At a constant rate the time left equals the time since the spool began to fill: an hour, at the load that "
        "the default limit is for.",
    ] = 0.5

    spool_fill_for_seconds: Annotated[
        Seconds, "A coordinator that is back receives all waiting messages in less time."
    ] = 300

    records_lost_ratio: Annotated[
        Ratio, "One record in a hundred: medians over a window of steps do not notice less."
    ] = 0.01

    records_lost_for_seconds: Annotated[
        Seconds, "An exporter that was down for long loses records once, and nothing brings them back."
    ] = 600

    training_delay_ratio: Annotated[Ratio, "Share of the time: detectors find a rank that is slower by that much."] = (
        0.025
    )

    training_delay_for_seconds: Annotated[
        Seconds, "The exporter reads the traces of one capture in a minute, within the budget of its settings."
    ] = 600

    reload_failed_for_seconds: Annotated[
        Seconds, "The caller of the reload got the error at once; this alert is for unattended changes."
    ] = 600

    recording_dropped_for_seconds: Annotated[
        Seconds,
        "A disk that was slow for a while leaves a gap that nothing can fill; a full disk goes on dropping records.",
    ] = 600

    watchdog_for_seconds: Annotated[Seconds, "It must always fire."] = 0


def duration(seconds: int) -> str:
    """Return a duration in Prometheus' format, in the largest unit that represents it exactly."""
    if seconds and seconds % 60 == 0:
        return f"{seconds // 60}m"
    return f"{seconds}s"
