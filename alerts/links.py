"""Annotation templates for the links of a notification: the incident, the dashboard of its rank and hours, exporters.

The incident's id is looked up when an annotation is rendered rather than being a label: an id that changes, or arrives
a scrape later, would resolve the alert and raise another one.
"""

from alerts.policy import Site

RUN_DASHBOARD, RANK_DASHBOARD, SERVICES_DASHBOARD = "lockstep-run", "lockstep-rank", "lockstep-self-monitoring"
"""The uids of the dashboards of a run, of a rank, and of Lockstep's own services."""
DOMAINS_DASHBOARD = "lockstep-domains"
"""The uid of the dashboard of a run's communication domains."""
HOURS = "from=now-1h&to=now"
"""Prometheus templates do not know when an alert began; Alertmanager's do, and `lockstep.tmpl` inserts it."""
BY_RUN = 'printf `lockstep_incident_info{run="%s"}` $labels.run'
"""The query of a run's incidents, as a template pipeline."""

OF_HANG = 'printf `lockstep_incident_silence_seconds{run="%s"}` $labels.run'
"""The query of a run's hang incidents, one series per rank that has not arrived."""


def by_cause(cause: str) -> str:
    """Return the query of a run's incidents of one cause."""
    return f'printf `lockstep_incident_info{{run="%s",cause="{cause}"}}` $labels.run'


def incident_url(site: Site, query: str) -> str:
    """Return the template of the link to the first incident of `query`, or to the run's page if there is none."""
    return (
        f'{{{{ with {query} | query | sortByLabel "incident" }}}}'
        f"{site.coordinator_url}/incidents/{{{{ . | first | label `incident` }}}}"
        f"{{{{ else }}}}{site.coordinator_url}/runs/{{{{ $labels.run }}}}{{{{ end }}}}"
    )


def run_dashboard(site: Site) -> str:
    """Return the template of the link to the run's dashboard."""
    return f"{site.grafana_url}/d/{RUN_DASHBOARD}?var-run={{{{ $labels.run }}}}&{HOURS}"


def rank_dashboard(site: Site, rank: str) -> str:
    """Return the template of the link to the dashboard of the rank that the expression `rank` gives."""
    return f"{site.grafana_url}/d/{RANK_DASHBOARD}?var-run={{{{ $labels.run }}}}&var-rank={{{{ {rank} }}}}&{HOURS}"


def domains_dashboard(site: Site) -> str:
    """Return the template of the link to the dashboard of the run's communication domains."""
    return f"{site.grafana_url}/d/{DOMAINS_DASHBOARD}?var-run={{{{ $labels.run }}}}&{HOURS}"


def dashboard_of(site: Site, query: str) -> str:
    """Return the template of the link to the first rank that `query`, a run's incidents, names, or else to the run."""
    return (
        f'{{{{ with {query} | query | sortByLabel "rank" }}}}{{{{ with . | first }}}}{{{{ if .Labels.rank }}}}'
        f"{rank_dashboard(site, '.Labels.rank')}{{{{ else }}}}{run_dashboard(site)}{{{{ end }}}}{{{{ end }}}}"
        f"{{{{ else }}}}{run_dashboard(site)}{{{{ end }}}}"
    )


def exporters_out_of_reach(site: Site) -> str:
    """Return the template of a sentence on exporters that cannot be scraped, empty if all can."""
    return (
        f'{{{{ with query `up{{job="{site.exporter_job}"}} == 0` | sortByLabel `instance` }}}}'
        " Exporters that cannot be scraped: {{ len . }}, the first is {{ . | first | label `instance` }}.{{ end }}"
    )


def services_dashboard(site: Site) -> str:
    """Return the link to the dashboard of Lockstep's own services."""
    return f"{site.grafana_url}/d/{SERVICES_DASHBOARD}?{HOURS}"
