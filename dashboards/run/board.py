"""The Run dashboard, from top to bottom as one asks: is the run well, who holds it back, where does its time go."""

from dashboards.house import Board, annotation, datasource_variable, variable
from dashboards.queries import RUN
from dashboards.run.breakdown import BREAKDOWN
from dashboards.run.culprits import CULPRITS
from dashboards.run.health import HEALTH
from dashboards.run.watching import WATCHING

BOARD = Board(
    uid="lockstep-run",
    title="Lockstep / Run",
    description="One synchronous training run: is it well, who holds it back, where does its time go.",
    variables=(
        datasource_variable(),
        variable("run", "Run", "label_values(lockstep_run_ranks, run)"),
        variable("hostname", "Host", f"label_values(lockstep_rank_info{{{RUN}}}, hostname)", multi=True),
    ),
    annotations=(
        annotation(
            "Incidents",
            f"max by (incident, rank, cause) (lockstep_incident_info{{{RUN}}})",
            "Incident {{incident}}",
            "rank {{rank}}: {{cause}}",
            "red",
        ),
        annotation(
            "Alerts",
            f'max by (alertname, severity) (ALERTS{{alertstate="firing",{RUN}}})',
            "{{alertname}}",
            "{{severity}}",
            "orange",
        ),
    ),
    rows=(HEALTH, CULPRITS, BREAKDOWN, WATCHING),
)
