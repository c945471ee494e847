"""A ticket for memory that grows until the kernel or the device's allocator ends the run, while one can still act."""

from alerts import links
from alerts.expressions import by_run, unfinished
from alerts.policy import AlertPolicy, Site
from alerts.rule import Alert

_INCIDENTS = 'printf `lockstep_incident_info{run="%s",cause=~".+_memory"}` $labels.run'
"""The query of a run's incidents of growing memory."""


def alert(site: Site, policy: AlertPolicy) -> Alert:
    """Return the alert."""
    remaining = by_run("min", "lockstep_run_memory_remaining_seconds", site)
    rank = f'{{{{ with {_INCIDENTS} | query | sortByLabel "rank" }}}}{{{{ with . | first }}}}'
    named = f"{rank}{{{{ if .Labels.rank }}}} of rank {{{{ .Labels.rank }}}}{{{{ end }}}}{{{{ end }}}}{{{{ end }}}}"
    function = (
        f"{rank}{{{{ if .Labels.function }}}} It is allocated in {{{{ .Labels.function }}}}.{{{{ end }}}}"
        "{{ end }}{{ end }}"
    )
    return Alert(
        name="LockstepMemoryRunsOut",
        severity="warning",
        expr=unfinished(f"{remaining} < {policy.memory_remaining_seconds}", site),
        for_seconds=policy.memory_for_seconds,
        incidents=_INCIDENTS,
        dashboard=links.dashboard_of(site, _INCIDENTS),
        resolves="memory no longer grows, another attempt begins, or the run is over",
        summary="Memory of a training run grows with its steps and will soon reach its limit.",
        headline=f"Run {{{{ $labels.run }}}}: memory{named} reaches its limit in {{{{ $value | humanizeDuration }}}}.",
        description=f"Memory{named} in run {{{{ $labels.run }}}} grows with every step; at this rate it reaches its "
        f"limit in {{{{ $value | humanizeDuration }}}}, and the process is killed.{function}",
    )
