"""Is the run well? Its state, its step time and its throughput."""

from dashboards.builders import DashboardRow, PanelLine, coloured, query, stat, states, timeseries
from dashboards.postprocess import COUNT
from dashboards.queries import RUN, STATE_COLOURS, coordinator_rate
from lockstep.contracts.metrics import RUN_STATES

_STATE_COLOURS = tuple(coloured(state, STATE_COLOURS[state]) for state in RUN_STATES)
_GOOD_BAD = ((None, "green"), (1, "red"))

_STATE = f"max by (state) (lockstep_run_state{{{RUN}}} == 1)"
_RECENT = f"max(lockstep_run_recent_step_duration_seconds{{{RUN}}})"
_BASELINE = f"max(lockstep_run_baseline_step_duration_seconds{{{RUN}}})"

HEALTH = DashboardRow(
    title="Is the run well?",
    lines=(
        PanelLine(
            height=4,
            panels=(
                stat(
                    "State",
                    "State of the run according to the coordinator. Diagnosed: a slow rank and the cause are known.",
                    "none",
                    query(_STATE, "{{state}}", instant=True),
                    overrides=_STATE_COLOURS,
                    name=True,
                ),
                stat(
                    "Since the last step",
                    "Time since the last step that all ranks completed. It grows while the run makes no "
                    "steps or has ended.",
                    "s",
                    query(f"time() - max(lockstep_run_last_step_timestamp_seconds{{{RUN}}} > 0)", instant=True),
                ),
                stat(
                    "Step time",
                    "Median of the last steps, without checkpoints and profiled steps.",
                    "s",
                    query(_RECENT, instant=True),
                ),
                stat(
                    "Slower than healthy",
                    "Recent step time over that of the healthy run, minus 1. No data until the run has a baseline.",
                    "percentunit",
                    query(f"{_RECENT} / ({_BASELINE} > 0) - 1", instant=True),
                    steps=((None, "green"), (0.05, "yellow"), (0.1, "red")),
                ),
                stat(
                    "Ranks not reporting",
                    "World size minus the ranks that reported one of the last steps.",
                    COUNT,
                    query(
                        f"max(lockstep_run_ranks{{{RUN}}}) - max(lockstep_run_ranks_reporting{{{RUN}}})", instant=True
                    ),
                    steps=_GOOD_BAD,
                ),
                stat(
                    "Slow ranks",
                    "Ranks that slow their communication domains.",
                    COUNT,
                    query(f"max(lockstep_run_slow_ranks{{{RUN}}})", instant=True),
                    steps=_GOOD_BAD,
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Step time",
                    "Recent median and that of the healthy run; mean and 99th percentile include every "
                    "step. The gap between recent and baseline is the cost of slow ranks. Expected needs a"
                    " specification. Earlier attempts are those with the same work per step: of the run's "
                    "name, otherwise of its workload.",
                    "s",
                    query(_RECENT, "recent median"),
                    query(_BASELINE, "healthy"),
                    query(f"max(lockstep_run_expected_step_seconds{{{RUN}}})", "expected by the model"),
                    query(
                        f"max by (match) (lockstep_run_earlier_step_duration_seconds{{{RUN}}})",
                        "earlier attempts of this {{match}}",
                    ),
                    query(
                        f"max(rate(lockstep_run_step_duration_seconds_sum{{{RUN}}}[$__rate_interval]) / "
                        f"rate(lockstep_run_step_duration_seconds_count{{{RUN}}}[$__rate_interval]))",
                        "mean",
                    ),
                    query(
                        "histogram_quantile(0.99, "
                        f"{coordinator_rate('lockstep_run_step_duration_seconds_bucket', 'le')})",
                        "99th percentile",
                    ),
                ),
                states(
                    "State over time",
                    "One band per state, drawn while the run is in it. A gap is time without a coordinator.",
                    query(_STATE, "{{state}}"),
                    overrides=_STATE_COLOURS,
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Steps",
                    "Steps per second of the run.",
                    "suffix: steps/s",
                    query(f"max(rate(lockstep_steps_total{{{RUN}}}[$__rate_interval]))", "steps"),
                ),
                timeseries(
                    "Samples",
                    "Samples per second fetched by all ranks. Ranks that share a batch each count it.",
                    "suffix: samples/s",
                    query(f"max(run:lockstep_samples:rate1m{{{RUN}}})", "samples"),
                ),
                timeseries(
                    "Tokens",
                    "Tokens per second fetched by all ranks. Ranks that share a batch each count it. No "
                    "data if batches contain no tokens.",
                    "suffix: tokens/s",
                    query(f"max(run:lockstep_tokens:rate1m{{{RUN}}})", "tokens"),
                ),
                timeseries(
                    "MFU",
                    "Model FLOPs utilisation: FLOPs that the model needs, relative to the devices' peak in"
                    " the same time. No data if the FLOPs of a step or the peak of the device are unknown.",
                    "percentunit",
                    query(f"max(run:lockstep_model_flops_per_peak_flops:ratio_rate1m{{{RUN}}})", "MFU"),
                ),
            ),
        ),
    ),
)
