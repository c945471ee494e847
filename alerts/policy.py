"""Every threshold and every waiting time of the alerts, each with its reason, and what a site may name otherwise.

A rule file holds no number that does not stand here.
"""

from dataclasses import dataclass


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

    stalled_age_seconds: int = 300
    """No step for this long: a checkpoint or an evaluation of a large model takes minutes, hardly five."""

    stalled_steps: int = 10
    """And no step for this many healthy ones: the slowest published step is 85 s, where five minutes say nothing. The
    coordinator's own rule (blocked after five) decides the state; this is what wakes a person, so it waits longer."""

    stalled_for_seconds: int = 0
    """The age in the expression is the waiting time; a second one would only delay the page."""

    crashed_for_seconds: int = 60
    """A launcher that restarts the job by itself has begun another attempt by then."""

    ranks_missing_for_seconds: int = 600
    """An exporter that restarts, or a node that is drained, is back well before, and a run that has stopped because of
    it has paged as hung or stalled."""

    slow_ratio: float = 0.10
    """Twice the coordinator's 5 %: below, `lockstep_run_fluctuating` decides, which knows the run's history."""

    slow_for_seconds: int = 600
    """A ticket may wait for ten minutes; shorter slowdowns are not worth a person."""

    slow_keep_seconds: int = 600
    """A run at the edge of the threshold would come and go. For as long a slow device that is gone explains its run."""

    expected_ratio: float = 0.10
    """And above the model's own band: a quiet job's band is a percent or two, which is no ticket."""

    expected_for_seconds: int = 1800
    """Faults that begin at once have alerts that know earlier; this one is for what creeps, and may wait."""

    expected_keep_seconds: int = 600
    """A run at the edge of the band would come and go. No longer than `slow_keep_seconds`, or what a slow device has
    explained is sent after it."""

    slow_device_for_seconds: int = 300
    """A ticket: a device that is slow for less is not worth one. What costs many devices pages at once."""

    page_devices_lost: int = 8
    """A node's worth of devices, lost to slowness or idle in a run that has stopped: that wakes a person, as a node
    that died would. A rank that is 2.6 % slow among 8 loses 0.2 of them, one that is 20 % slow among 10,000 loses
    2,000."""

    devices_lost_for_seconds: int = 0
    """The coordinator has confirmed a suspect over several steps before its series exists, and a run that is slow
    without one has waited as a ticket; waiting again would only cost device time."""

    verdicts_max: int = 2048
    """32 suspects of 64 runs. Beyond it something is wrong with the labels, and a flood helps no one."""

    memory_remaining_seconds: int = 3600
    """A ticket, so an hour: time to read it, to save a checkpoint and to stop. The crash itself pages."""

    memory_for_seconds: int = 0
    """The coordinator has seen the growth twice before its series exists."""

    hung_silence_seconds: int = 60
    """A rank that writes a checkpoint for all looks like one that does not arrive. Longer ones are known from the run's
    past or say what they are, and torch itself gives up after ten minutes: there is time to act in."""

    hung_for_seconds: int = 0
    """The silence in the expression is the waiting time."""

    small_hung_for_seconds: int = 180
    """A ticket, and four minutes of silence in all: it comes before that of the stall, which it explains."""

    function_new_seconds: int = 50
    """Three scrapes and evaluations at 15 s: it is sent at the first, and ends by itself."""

    page_sent_seconds: int = 80
    """`function_new_seconds` and the wait of a page's group in the example, 30 s: what is known by then is in the
    page."""

    link_slow_for_seconds: int = 300
    link_slow_keep_seconds: int = 300
    """A link is slow under load and looks well between two large collectives."""

    agent_down_for_seconds: int = 300
    """A rank that restarts gets a new agent."""

    exporter_down_for_seconds: int = 300
    exporter_absent_for_seconds: int = 600
    """No target at all is a change of the scrape configuration; give its author time to finish."""

    coordinator_down_for_seconds: int = 300
    """A ticket. A rescheduled pod is back within two or three minutes."""

    coordinator_down_page_seconds: int = 1800
    """What is down for half an hour does not come back by itself, and a fault costs devices unseen meanwhile."""

    stale_age_seconds: int = 300
    """Three of the slowest published steps; a coordinator judges each."""

    stale_for_seconds: int = 300

    unwatched_for_seconds: int = 600
    """A run that has just begun is unknown to the coordinator until each rank has been announced and has stepped."""

    broker_for_seconds: int = 600
    """Reconnecting backs off to a minute; nothing is lost before the spool is full."""

    spool_fill_ratio: float = 0.5
    """At a constant rate as much time is left as has gone by: an hour, at the load that the default limit is for."""

    spool_fill_for_seconds: int = 300
    """A coordinator that is back takes what waited in less."""

    records_lost_ratio: float = 0.01
    """One record in a hundred: medians over a window of steps do not notice less."""

    records_lost_for_seconds: int = 600
    """An exporter that was away for long loses records once, and no person can bring them back."""

    training_delay_ratio: float = 0.025
    """Of the time: a rank that is slower by so much is one that detectors find."""

    training_delay_for_seconds: int = 600
    """Traces of one capture are read in a minute, within the budget that the exporter's settings give them."""

    reload_failed_for_seconds: int = 600
    """The caller of the reload got the error at once; this is for a change that no one watches."""

    recording_dropped_for_seconds: int = 600
    """A disk that was slow for a while has left its hole, which no person can fill; a full one goes on dropping."""

    watchdog_for_seconds: int = 0
    """It must fire always; that is what it says."""


def threshold_range(name: str) -> tuple[float, float]:
    """Return the least and the largest value of a threshold: ratios to 10, times to a week, counts to a million."""
    if name.endswith("_ratio"):
        return 0, 10
    return (0, 604_800) if name.endswith("_seconds") else (0, 1_000_000)


def duration(seconds: int) -> str:
    """Return a duration as Prometheus writes it, in the largest unit that holds it exactly."""
    if seconds and seconds % 60 == 0:
        return f"{seconds // 60}m"
    return f"{seconds}s"
