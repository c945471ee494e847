"""The Rank dashboard: what one rank does in its run, on its host and on its device."""

from dashboards import external_metrics
from dashboards.builders import (
    DashboardRow,
    DashboardSpec,
    PanelLine,
    dashed,
    datasource_variable,
    flag,
    query,
    run_variables,
    stat,
    timeseries,
    variable,
)
from dashboards.levels import OF_NODE
from dashboards.panels import AT_RUN, Column, coordinator_variable, grid
from dashboards.postprocess import COUNT
from dashboards.queries import RANK, RUN, rate
from dashboards.shared import MARKS
from lockstep.contracts.metrics import BY_NAME

_ON_NODE = ", average of its node"
_STEPS = f"sum(rate(lockstep_steps_total{{{RANK}}}[$__rate_interval]))"


def _per_step(metric: str, by: str = "") -> str:
    """Return a counter's growth per step of the rank."""
    return f"{rate(metric, by, RANK)} / on () group_left () {_STEPS}"


def _per_step_of_node(metric: str, by: str = "") -> str:
    """Return the same for the average rank of its node, if the exporter has one series for all of them."""
    grouping = f" by ({by})" if by else ""
    here = f"and on (job, instance) lockstep_rank_info{{{RANK}}}"
    together = f"rate({metric}{{{RUN},{OF_NODE}}}[$__rate_interval])"
    steps = f"sum(rate(lockstep_steps_total{{{RUN}}}[$__rate_interval]) {here})"
    return f"sum{grouping} ({together} {here}) / on () group_left () {steps}"


_OWN_WORK = rate("lockstep_phase_time_seconds_total", matchers=RANK)
_CPU = rate("lockstep_cpu_time_seconds_total", matchers=RANK)
_WAITING = rate("lockstep_phase_time_seconds_total", matchers=f'{RANK},phase="data"')


def _own(title: str, description: str, unit: str, *metrics: tuple[str, str]) -> object:
    """Return lines of the rank, or of the average rank of its node for families that are exported by node only."""
    lines = [query(_per_step(metric), legend) for metric, legend in metrics]
    summed = [(metric, legend) for metric, legend in metrics if BY_NAME[metric].below == "sum"]
    lines += [query(_per_step_of_node(metric), f"{legend}{_ON_NODE}") for metric, legend in summed]
    return timeseries(title, description, unit, *lines, overrides=[dashed(f"{_ON_NODE}$")] if summed else [])


_WHERE = DashboardRow(
    title="Which rank is it, and where?",
    lines=(
        PanelLine(
            height=5,
            widths=(12, 4, 4, 4),
            panels=(
                grid(
                    "Rank",
                    "Where the rank runs and what it computes on. The number format is empty until a "
                    "matrix product was observed, the UUID if the framework does not report it.",
                    ("rank", "hostname", "local_rank", "device", "dtype", "device_uuid"),
                    (Column(heading="cores", unit=COUNT, expr=f"max by (rank) (lockstep_rank_cores{{{RANK}}})"),),
                    names=(
                        "max by (rank, hostname, local_rank, device, dtype, device_uuid) "
                        f"(lockstep_rank_info{{{RANK}}})"
                    ),
                ),
                stat(
                    "Since its last step",
                    "Time since the rank completed a step.",
                    "s",
                    query(f"time() - max(lockstep_last_step_timestamp_seconds{{{RANK}}} > 0)", instant=True),
                ),
                stat(
                    "Slower than its peers",
                    "Own work over that of the peers, minus 1, while it is a suspect; otherwise no data.",
                    "percentunit",
                    query(f"max(lockstep_suspect_slowdown_ratio{{{RANK}}})", instant=True),
                    steps=((None, "yellow"), (0.1, "red")),
                ),
                flag(
                    "Agent",
                    "Whether it works in the rank's process, or has disabled itself; training continues in both cases.",
                    query(f"min(lockstep_agent_up{{{RANK}}})", instant=True),
                    well="works",
                    ill="disabled itself",
                ),
            ),
        ),
    ),
)

_STEP = DashboardRow(
    title="Where does its step go?",
    lines=(
        PanelLine(
            panels=(
                timeseries(
                    "Own work and the average rank's",
                    "Seconds of a step in each phase of its own work; dashed, the average over all ranks "
                    "of the run. A difference is due to this rank.",
                    "s",
                    query(_per_step("lockstep_phase_time_seconds_total", "phase"), "{{phase}}"),
                    query(
                        f"max by (phase) (run_phase:lockstep_phase_time_seconds_per_step:ratio_rate1m{{{RUN}}})",
                        "{{phase}}, average rank",
                    ),
                    overrides=[dashed(", average rank$")],
                ),
                timeseries(
                    "Waits and the average rank's",
                    "Seconds of a step in which it is blocked in collectives; dashed, the average over all"
                    " ranks. The others wait for the rank that waits least.",
                    "s",
                    query(_per_step("lockstep_collective_wait_seconds_total", "domain_kind"), "{{domain_kind}}"),
                    query(
                        "max by (domain_kind) "
                        f"(run_domain_kind:lockstep_collective_wait_seconds_per_step:ratio_rate1m{{{RUN}}})",
                        "{{domain_kind}}, average rank",
                    ),
                    overrides=[dashed(", average rank$")],
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Phases of compute",
                    "Seconds of a step in forward, backward and optimizer, without waits and collections: they sum to "
                    "compute.",
                    "s",
                    query(_per_step("lockstep_compute_time_seconds_total", "phase"), "{{phase}}"),
                    query(
                        _per_step_of_node("lockstep_compute_time_seconds_total", "phase"), f"{{{{phase}}}}{_ON_NODE}"
                    ),
                    overrides=[dashed(f"{_ON_NODE}$")],
                ),
                timeseries(
                    "Off the CPU",
                    "Seconds of a step of own work in which the training thread was asleep, blocked (a "
                    "loader, I/O, a lock) or descheduled; a lower bound, because waits that spin hide some"
                    " of it. Dashed, the part that waited for data. With a device this means little, "
                    "because the thread also waits for the device.",
                    "s",
                    query(f"clamp_min({_OWN_WORK} - {_CPU}, 0) / {_STEPS}", "off the CPU"),
                    query(f"{_WAITING} / {_STEPS}", "waiting for data"),
                    overrides=[dashed("^waiting for data$")],
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Bus bandwidth of its collectives",
                    "What a ring algorithm moves over the slowest link per second with a collective in flight.",
                    "Bps",
                    query(
                        f"{rate('lockstep_collective_bus_bytes_total', 'domain_kind', RANK)} / "
                        f"({rate('lockstep_collective_time_seconds_total', 'domain_kind', RANK)} > 0)",
                        "{{domain_kind}}",
                    ),
                ),
                timeseries(
                    "Bus bandwidth by communicator",
                    "By the device's clock, for collectives that the NCCL Inspector times; dashed, the "
                    "average rank's. A late rank's is higher, because it waits for no other; all ranks of "
                    "a slow link have a lower one. No data without the Inspector.",
                    "Bps",
                    query(
                        f"{rate('lockstep_nccl_operation_bus_bytes_total', 'communicator, operation', RANK)} / "
                        f"({rate('lockstep_nccl_operation_time_seconds_total', 'communicator, operation', RANK)} > 0)",
                        "{{communicator}} {{operation}}",
                    ),
                    query(
                        "max by (communicator, operation) (run_communicator_operation:"
                        f"lockstep_nccl_operation_bus_bytes_per_operation_time:ratio_rate1m{{{RUN}}}) "
                        "and on (communicator, operation) "
                        f"rate(lockstep_nccl_operation_time_seconds_total{{{RANK}}}[$__rate_interval])",
                        "{{communicator}} {{operation}}, average rank",
                    ),
                    overrides=[dashed(", average rank$")],
                ),
            ),
        ),
        PanelLine(
            panels=(
                _own(
                    "Garbage collections",
                    "Collections per step; those of the oldest generation take long.",
                    "short",
                    ("lockstep_gc_collections_total", "all"),
                    ("lockstep_gc_full_collections_total", "oldest generation"),
                ),
                _own(
                    "Recompilations",
                    "Graphs compiled per step. If above 0 long after the start, shapes or types vary.",
                    "short",
                    ("lockstep_recompilations_total", "recompilations"),
                ),
                _own(
                    "Device by its own clock",
                    "Seconds of a step on the device: the step, the part with a collective in flight, and "
                    "the lead of the host. No data without a device.",
                    "s",
                    ("lockstep_device_step_time_seconds_total", "step"),
                    ("lockstep_device_collective_time_seconds_total", "collective in flight"),
                    ("lockstep_host_lead_seconds_total", "host lead"),
                ),
            ),
        ),
    ),
)

_HOST = DashboardRow(
    title="What else runs on its host?",
    lines=(
        PanelLine(
            panels=(
                _own(
                    "Waiting for a CPU",
                    "Seconds of a step in which the training thread was ready to run but got no CPU, and "
                    "in which a control group was throttled.",
                    "s",
                    ("lockstep_cpu_wait_time_seconds_total", "run queue"),
                    ("lockstep_cpu_throttled_time_seconds_total", "throttled"),
                ),
                timeseries(
                    "CPU on its cores",
                    "Cores that are busy with the rank's process and those it started, with its training "
                    "thread, and with processes outside the run.",
                    "short",
                    query(rate("lockstep_process_cpu_time_seconds_total", matchers=RANK), "its process"),
                    query(rate("lockstep_cpu_time_seconds_total", matchers=RANK), "its training thread"),
                    query(rate("lockstep_other_cpu_time_seconds_total", matchers=RANK), "strangers"),
                ),
                timeseries(
                    "Pressure of its node",
                    "Share of the time during which some task of the node was ready to run and waited for a CPU.",
                    "percentunit",
                    query(
                        "max(rate(lockstep_node_cpu_pressure_seconds_total[$__rate_interval]) "
                        f"and on (job, instance) lockstep_rank_info{{{RANK}}})",
                        "pressure",
                    ),
                ),
                timeseries(
                    "Load of its node",
                    "Tasks that run or wait, averaged over a minute.",
                    "short",
                    query(f"max(lockstep_node_load and on (job, instance) lockstep_rank_info{{{RANK}}})", "load"),
                ),
            ),
        ),
        PanelLine(
            panels=(
                timeseries(
                    "Memory",
                    "Resident memory of its process and of those it started, without file pages and shared"
                    " memory. On its device: what the framework's allocator has reserved, and what tensors"
                    " hold and held at peak. Dashed, what may still be allocated below the limit of its "
                    "control group or host.",
                    "decbytes",
                    query(f"max by (kind) (lockstep_memory_bytes{{{RANK}}})", "{{kind}}"),
                    query(f"max(lockstep_memory_available_bytes{{{RANK}}})", "available"),
                    query(f"max(lockstep_memory_limit_bytes{{{RANK}}})", "limit"),
                    overrides=[dashed("^(available|limit)$")],
                ),
                timeseries(
                    "Memory growth",
                    "Steady growth of a part of its memory, in bytes per step. No data without such growth.",
                    "decbytes",
                    query(f"max by (part) (lockstep_memory_growth_bytes_per_step{{{RANK}}})", "{{part}}"),
                ),
                timeseries(
                    "Memory of its host",
                    "Share of memory that is available, from node_exporter. No data if it is not scraped.",
                    "percentunit",
                    query(
                        external_metrics.on_host(
                            "max by (instance) (node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)"
                        ),
                        "available",
                    ),
                ),
                timeseries(
                    "Network of its host",
                    "Bytes per second over all devices of the host except loopback, from node_exporter. No"
                    " data if it is not scraped.",
                    "Bps",
                    *(
                        query(
                            external_metrics.on_host(
                                f"sum by (instance) (rate(node_network_{way}_bytes_total"
                                '{device!="lo"}[$__rate_interval]))'
                            ),
                            way,
                        )
                        for way in ("receive", "transmit")
                    ),
                ),
            ),
        ),
    ),
)


def _device(title: str, description: str, unit: str, gpu: str, npu: str) -> object:
    return timeseries(
        title,
        f"{description} The rank's own device and every device of its host. Its own is found by UUID; where the "
        "rank reports none, the one with the number of its local rank is shown, which is another if a variable such as "
        "CUDA_VISIBLE_DEVICES orders them otherwise. No data where neither DCGM exporter nor npu-exporter is scraped.",
        unit,
        query(external_metrics.own_gpu(gpu), "its own: GPU {{gpu}}"),
        query(external_metrics.gpu_by_place(gpu), "its local rank's: GPU {{gpu}}"),
        query(external_metrics.of_gpus(gpu), "GPU {{gpu}}"),
        query(external_metrics.npu_by_place(npu), "its local rank's: NPU {{id}}"),
        query(external_metrics.of_npus(npu), "NPU {{id}}"),
    )


_DEVICES = DashboardRow(
    title="How are the devices of its host?",
    lines=(
        PanelLine(
            panels=(
                _device(
                    "Clock",
                    "Clock of the compute units: a rank that is slow in compute alone and whose device runs below its "
                    "neighbours is throttled.",
                    "suffix: MHz",
                    "DCGM_FI_DEV_SM_CLOCK",
                    "npu_chip_info_aicore_current_freq",
                ),
                _device(
                    "Temperature",
                    "Near the limit, devices lower their clock.",
                    "celsius",
                    "DCGM_FI_DEV_GPU_TEMP",
                    "npu_chip_info_temperature",
                ),
                _device(
                    "Power",
                    "At the cap, devices lower their clock; a device that waits draws less than its neighbours.",
                    "watt",
                    "DCGM_FI_DEV_POWER_USAGE",
                    "npu_chip_info_power",
                ),
            ),
        ),
    ),
)

BOARD = DashboardSpec(
    uid="lockstep-rank",
    title="Lockstep / Rank",
    description="One rank of one run: its step compared with the average, its host and the devices there.",
    variables=(
        datasource_variable(),
        *run_variables(),
        variable("rank", "Rank", f"label_values(lockstep_steps_total{{{RUN}}}, rank)"),
        coordinator_variable(),
    ),
    annotations=MARKS,
    at_coordinator=AT_RUN,
    rows=(_WHERE, _STEP, _HOST, _DEVICES),
)
