"""Alerts about the monitor itself: what makes Lockstep blind, and the watchdog that proves the path to the pager."""

from alerts.expressions import is_in_state, last_step_age, rank_step_age, unfinished
from alerts.policy import AlertPolicy, Site
from alerts.recording import LONG_WINDOW
from alerts.rule import Alert, RuleGroup


def group(site: Site, policy: AlertPolicy) -> RuleGroup:
    """Return the alerts about Lockstep itself."""
    return RuleGroup(
        name="lockstep.monitor",
        rules=(
            _exporter_down(site, policy),
            _exporter_absent(site, policy),
            _coordinator_stays_down(site, policy),
            _coordinator_down(site, policy),
            _coordinator_replica_down(site, policy),
            _coordinator_stale(site, policy),
            _run_unwatched(site, policy),
            _broker_unreachable(policy),
            _spool_filling(policy),
            _records_lost(policy),
            _training_delayed(policy),
            _reload_failed(policy),
            _recording_incomplete(policy),
            _watchdog(policy),
        ),
    )


def _exporter_down(site: Site, policy: AlertPolicy) -> Alert:
    down = f'up{{job="{site.exporter_job}"}} == 0'
    return Alert(
        name="LockstepExporterDown",
        severity="warning",
        # Counted: a failing switch affects a hundred nodes, and is one problem.
        expr=f"count by (job) ({down})",
        for_seconds=policy.exporter_down_for_seconds,
        resolves="every exporter can be scraped again, or discovery removes the target",
        summary="Exporters cannot be scraped.",
        description="Exporters of job {{ $labels.job }} that cannot be scraped: {{ $value }}, among them"
        f"{{{{ range query `topk(5, {down})` | sortByLabel `instance` }}}} {{{{ .Labels.instance }}}}{{{{ end }}}}.",
        per_run=False,
    )


def _exporter_absent(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepExporterAbsent",
        severity="warning",
        expr=f'absent(up{{job="{site.exporter_job}"}})',
        for_seconds=policy.exporter_absent_for_seconds,
        resolves="Prometheus has a target of the exporters' job",
        summary="Prometheus has no exporter to scrape.",
        description="No target has the job {{ $labels.job }}: no rank is measured, and no alert on ranks can fire.",
        per_run=False,
    )


def _coordinator_down(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepCoordinatorDown",
        severity="warning",
        expr=_without_coordinator(site),
        for_seconds=policy.coordinator_down_for_seconds,
        resolves="a coordinator can be scraped",
        summary="No coordinator can be scraped: no run is evaluated.",
        description="No coordinator (job {{ $labels.job }}) can be scraped. Training is not affected; a slow or "
        "stalled run raises no alert until a coordinator is back. Exporters keep their records meanwhile.",
        per_run=False,
    )


def _coordinator_stays_down(site: Site, policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepCoordinatorStaysDown",
        severity="critical",
        expr=_without_coordinator(site),
        for_seconds=policy.coordinator_down_page_seconds,
        resolves="a coordinator can be scraped",
        summary="The coordinator stays down: no run is evaluated.",
        description="No coordinator (job {{ $labels.job }}) could be scraped for "
        f"{policy.coordinator_down_page_seconds} seconds. Training is not affected; a slow or stalled run raises no "
        "alert until a coordinator is back, and exporters drop their oldest records when their spools are full.",
        per_run=False,
    )


def _without_coordinator(site: Site) -> str:
    """Return the job whose targets are all down; a single one of a pair has LockstepCoordinatorReplicaDown."""
    coordinator = f'up{{job="{site.coordinator_job}"}}'
    return f"""
count by (job) ({coordinator} == 0) unless on (job) count by (job) ({coordinator} == 1)
or
absent({coordinator})"""


def _coordinator_replica_down(site: Site, policy: AlertPolicy) -> Alert:
    coordinator = f'up{{job="{site.coordinator_job}"}}'
    down = f"{coordinator} == 0"
    return Alert(
        name="LockstepCoordinatorReplicaDown",
        severity="warning",
        expr=f"count by (job) ({down}) and on (job) count by (job) ({coordinator} == 1)",
        for_seconds=policy.coordinator_down_for_seconds,
        resolves="every coordinator can be scraped, or none (LockstepCoordinatorDown)",
        summary="One coordinator of a pair cannot be scraped.",
        description="Coordinators of job {{ $labels.job }} that cannot be scraped: {{ $value }}, among them"
        f"{{{{ range query `topk(5, {down})` | sortByLabel `instance` }}}} {{{{ .Labels.instance }}}}{{{{ end }}}}. "
        "The other one evaluates all runs; if it fails too, no run is evaluated.",
        per_run=False,
    )


def _coordinator_stale(site: Site, policy: AlertPolicy) -> Alert:
    age_s = policy.stale_age_seconds
    return Alert(
        name="LockstepCoordinatorStale",
        severity="warning",
        expr=f"""
(time() - max by (job) (lockstep_coordinator_last_detection_timestamp_seconds)) > {age_s}
and on ()
(
  ({rank_step_age(site)}) < {age_s}
  unless on ({site.run_labels})
  {is_in_state("warming|finished", site)}
)""",
        for_seconds=policy.stale_for_seconds,
        resolves="the coordinator evaluates a step, or no rank makes steps",
        summary="Ranks make steps, but the coordinator evaluates none of them.",
        description="The coordinator has evaluated no step for {{ $value | humanizeDuration }} while ranks make steps."
        "{{ with query `lockstep_coordinator_mqtt_connected == 0` }} It is not connected to the broker.{{ end }}",
        per_run=False,
    )


def _run_unwatched(site: Site, policy: AlertPolicy) -> Alert:
    age_s = policy.stale_age_seconds
    unwatched = f"({rank_step_age(site)}) < {age_s}\nunless on ({site.run_labels})\n({last_step_age(site)}) < {age_s}"
    return Alert(
        name="LockstepRunUnwatched",
        severity="warning",
        expr=unfinished(unwatched, site),
        for_seconds=policy.unwatched_for_seconds,
        resolves="the coordinator sees a step completed, the ranks stop, or the run is over",
        summary="Ranks of a run make steps that the coordinator does not see completed.",
        description="Ranks of run {{ $labels.run }} make steps, and the coordinator knows of no step that all of them "
        "have completed in the last minutes: some ranks are not measured, or their records do not arrive.",
    )


def _broker_unreachable(policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepBrokerUnreachable",
        severity="warning",
        expr="count by (job) (lockstep_exporter_mqtt_connected == 0 or lockstep_coordinator_mqtt_connected == 0)",
        for_seconds=policy.broker_for_seconds,
        resolves="every service is connected to the broker",
        summary="Exporters or the coordinator have lost the MQTT broker.",
        description="Targets of job {{ $labels.job }} that are not connected to the broker: {{ $value }}. Exporters "
        "keep records on disk until their spool is full.",
        per_run=False,
    )


def _spool_filling(policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepSpoolFilling",
        severity="warning",
        expr=f"count by (job) (lockstep_exporter_spool_fill_ratio > {policy.spool_fill_ratio:g})",
        for_seconds=policy.spool_fill_for_seconds,
        resolves="every spool is below the limit",
        summary="Exporters will soon drop step records that no coordinator has committed.",
        description="Exporters of job {{ $labels.job }} whose spool is more than "
        f"{policy.spool_fill_ratio:.0%} full: {{{{ $value }}}}. The fullest:"
        "{{ range query `sort_desc(topk(5, max by (instance) (lockstep_exporter_spool_fill_ratio)))` }}"
        " {{ .Labels.instance }} ({{ .Value | humanizePercentage }}){{ end }}. "
        "What they hold waits for a coordinator to commit it; when a spool is full, its oldest messages are dropped.",
        per_run=False,
    )


def _records_lost(policy: AlertPolicy) -> Alert:
    lost = f"sum by (job, instance, reason) (rate(lockstep_exporter_records_lost_total[{LONG_WINDOW}]))"
    steps = f"sum by (job, instance) (rate(lockstep_steps_total[{LONG_WINDOW}]))"
    worst = f"topk(5, sum by (instance, reason) (rate(lockstep_exporter_records_lost_total[{LONG_WINDOW}])) > 0)"
    return Alert(
        name="LockstepRecordsLost",
        severity="warning",
        expr=f"count by (job, reason) (\n  {lost}\n  / on (job, instance) group_left ()\n  {steps}\n"
        f"  > {policy.records_lost_ratio:g}\n)",
        for_seconds=policy.records_lost_for_seconds,
        resolves="the rate of lost records over five minutes is below the limit",
        summary="Step records are lost before they are read or delivered.",
        description=f"Exporters that lose more than {policy.records_lost_ratio:.0%} of their step records "
        "({{ $labels.reason }}): {{ $value }}. The worst:"
        f"{{{{ range query `{worst}` }}}} {{{{ .Labels.instance }}}} ({{{{ .Labels.reason }}}}){{{{ end }}}}.",
        per_run=False,
    )


def _training_delayed(policy: AlertPolicy) -> Alert:
    delay = f"rate(lockstep_exporter_training_delay_seconds_total[{LONG_WINDOW}])"
    return Alert(
        name="LockstepSlowsTraining",
        severity="warning",
        expr=f"count by (job) ({delay} > {policy.training_delay_ratio:g})",
        for_seconds=policy.training_delay_for_seconds,
        resolves="the services take less than that again, over five minutes",
        summary="Lockstep itself takes CPU time that training waits for.",
        description="Exporters of job {{ $labels.job }} that take more of a core from a rank than detectors let it "
        "lose: {{ $value }}. The worst:"
        f"{{{{ range query `topk(5, max by (instance) ({delay}))` }}}} {{{{ .Labels.instance }}}}"
        " ({{ .Value | humanizePercentage }}){{ end }}. No incident of a run names these services.",
        per_run=False,
    )


def _reload_failed(policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepConfigReloadFailed",
        severity="warning",
        expr="min by (job, instance) (lockstep_coordinator_config_last_reload_successful) == 0",
        for_seconds=policy.reload_failed_for_seconds,
        resolves="a reload succeeds",
        summary="A changed configuration of the coordinator is not in force.",
        description="The coordinator {{ $labels.instance }} could not reload its configuration; the previous one is "
        "in force."
        "{{ with printf `time() - lockstep_coordinator_config_last_reload_success_timestamp_seconds"
        '{instance="%s"}` $labels.instance | query }} That was read {{ . | first | value | humanizeDuration }} ago.'
        "{{ end }} It may not start again with the new one.",
        per_run=False,
    )


def _recording_incomplete(policy: AlertPolicy) -> Alert:
    dropped = f'lockstep_coordinator_records_recorded_total{{state="dropped"}}[{LONG_WINDOW}]'
    return Alert(
        name="LockstepRecordingIncomplete",
        severity="warning",
        expr=f"sum by (job, instance) (rate({dropped})) > 0",
        for_seconds=policy.recording_dropped_for_seconds,
        resolves="no record was dropped for five minutes",
        summary="Step records are missing from the coordinator's recording.",
        description="The recording of coordinator {{ $labels.instance }} lacks {{ $value | humanize }} step records a "
        "second: its disk is too slow or full. Verdicts on runs are not affected; a replay will be.",
        per_run=False,
    )


def _watchdog(policy: AlertPolicy) -> Alert:
    return Alert(
        name="LockstepWatchdog",
        severity="none",
        expr="vector(1)",
        for_seconds=policy.watchdog_for_seconds,
        resolves="never",
        summary="This alert always fires, to prove that alerts arrive.",
        description="Route it to a service that complains when it stops: then Prometheus, its rules or Alertmanager "
        "have failed, and no other alert can report that.",
        per_run=False,
    )
