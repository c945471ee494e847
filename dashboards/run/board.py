"""The Run dashboard, top to bottom in the order of questions: is the run well, who slows it, where does its time go."""

from dashboards.builders import DashboardSpec, datasource_variable, run_variables, variable
from dashboards.panels import AT_RUN, coordinator_variable
from dashboards.queries import RUN
from dashboards.run.culprits import CULPRITS
from dashboards.run.health import HEALTH
from dashboards.run.step_breakdown import BANDWIDTH_AND_DEVICE, BREAKDOWN
from dashboards.run.watching import WATCHING
from dashboards.shared import MARKS

BOARD = DashboardSpec(
    uid="lockstep-run",
    title="Lockstep / Run",
    description="One synchronous training run: is it well, which ranks slow it, and where does its time go.",
    variables=(
        datasource_variable(),
        *run_variables(),
        variable("hostname", "Host", f"label_values(lockstep_rank_info{{{RUN}}}, hostname)", multi=True),
        coordinator_variable(),
    ),
    annotations=MARKS,
    at_coordinator=AT_RUN,
    rows=(HEALTH, CULPRITS, BREAKDOWN, BANDWIDTH_AND_DEVICE, WATCHING),
)
