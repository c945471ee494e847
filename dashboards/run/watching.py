"""What does monitoring cost, and does it work? The agents, the captures, and the delivery of records."""

from dashboards.builders import DashboardRow, PanelLine, query, timeseries
from dashboards.postprocess import COUNT
from dashboards.queries import RUN, rate
from dashboards.shared import PROFILES

WATCHING = DashboardRow(
    title="What does monitoring cost, and does it work?",
    folded=True,
    lines=(
        PanelLine(
            panels=(
                timeseries(
                    "Agent's share of the step",
                    "Time that Lockstep took from the training threads, relative to the step time.",
                    "percentunit",
                    query(f"max(run:lockstep_agent_time_per_step_time:ratio_rate1m{{{RUN}}})", "agent"),
                ),
                PROFILES,
                timeseries(
                    "Ranks measured",
                    "Ranks with a working agent, ranks that reported a step to the coordinator, those of "
                    "them whose waits are measured so that they can be evaluated, and the world size. All "
                    "lines should coincide.",
                    COUNT,
                    query(f"sum(lockstep_agent_up{{{RUN}}})", "agents up"),
                    query(f"max(lockstep_run_ranks_reporting{{{RUN}}})", "reporting"),
                    query(
                        f"max(lockstep_run_ranks_reporting{{{RUN}}}) - max(lockstep_run_ranks_blind{{{RUN}}})",
                        "evaluated",
                    ),
                    query(f"max(lockstep_run_ranks{{{RUN}}})", "world size"),
                ),
                timeseries(
                    "Records lost",
                    "Step records lost per second, by reason, and those that the recording of a "
                    "coordinator lacks; over all runs of all nodes.",
                    "suffix: records/s",
                    query(rate("lockstep_exporter_records_lost_total", "reason", ""), "{{reason}}"),
                    query(
                        rate("lockstep_coordinator_records_recorded_total", matchers='state="dropped"'), "not recorded"
                    ),
                ),
            ),
        ),
    ),
)
