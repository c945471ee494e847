"""A synthetic run in OpenMetrics text: one hour of eight ranks on two hosts, the last third with rank 2 at fault.

Every family of the catalogue has series, with the labels a scrape would give it: the exporter of the first host has
level full, that of the second level default. Step time, own work and waits add up as
in a real run: the slow rank works longer and waits less, the others wait for it.
"""

import math
from itertools import groupby
from operator import itemgetter

from lockstep.contracts.metrics import BY_NAME, CATALOGUE, STEP_BUCKETS_SECONDS, Metric

RUN = "train"
RANKS = 8
CLOSED_INCIDENT = "train-0"
SLOW_RANK = 2
UNNAMED_RANK = 3
"""The one whose device reports no UUID."""
SUMMED_RANK = 5
"""One whose exporter has some families for all its ranks together."""
_SUMMED_HOST = "node2"
SPAN_S = 3600
SCRAPE_S = 15
FAULT_S = 2400
HEALTHY_STEP_S, SLOW_STEP_S = 1.0, 1.5
FUNCTION = "model.py:spin"
SLOW_CLOCK_MHZ = 1410

_OWN_S = {"data": 0.05, "compute": 0.7, "host": 0.04, "gc": 0.01}
_COMPUTE_S = {"forward": 0.2, "backward": 0.45, "optimizer": 0.05}
_PER_STEP = {
    "lockstep_steps_total": 1.0,
    "lockstep_gc_collections_total": 0.5,
    "lockstep_samples_total": 4.0,
    "lockstep_tokens_total": 4096.0,
    "lockstep_cpu_time_seconds_total": 0.8,
    "lockstep_agent_time_seconds_total": 2e-5,
    "lockstep_collectives_total": 3.0,
    "lockstep_collective_bytes_total": 1e8,
    "lockstep_collective_bus_bytes_total": 1.75e8,
    "lockstep_nccl_operations_total": 3.0,
    "lockstep_nccl_operation_bus_bytes_total": 1.75e8,
    "lockstep_gc_full_collections_total": 0.01,
    "lockstep_model_flops_total": 4e14,
    "lockstep_peak_flops_total": 989.5e12,
    "lockstep_device_step_time_seconds_total": 1.0,
    "lockstep_device_collective_time_seconds_total": 0.3,
    "lockstep_host_lead_seconds_total": 0.02,
    "process_cpu_seconds_total": 0.02,
}
_LOW_RATE = 0.001


def openmetrics(start_unix_s: int) -> str:
    """Return the text, samples from `start_unix_s` on."""
    lines = []
    for metric in CATALOGUE:
        kind = metric.type
        lines.append(f"# TYPE {metric.name.removesuffix('_total') if kind == 'counter' else metric.name} {kind}\n")
        for name, labels, value in _series(metric, start_unix_s):
            for target in _targets(metric, labels):
                text = ",".join(f'{key}="{item}"' for key, item in {**target, **labels}.items())
                for second in range(0, SPAN_S + 1, SCRAPE_S):
                    number = value(second)
                    if number is not None:
                        lines.append(f"{name}{{{text}}} {number} {start_unix_s + second}\n")
    for name, group in groupby(_external_metrics(), key=itemgetter(0)):
        for place, (_, labels, rate, level) in enumerate(group):
            if place == 0:
                lines.append(f"# TYPE {name.removesuffix('_total')} {'counter' if rate else 'gauge'}\n")
            text = ",".join(f'{key}="{item}"' for key, item in labels.items())
            samples = range(0, SPAN_S + 1, SCRAPE_S)
            lines += [f"{name}{{{text}}} {level + rate * second} {start_unix_s + second}\n" for second in samples]
    return "".join([*lines, "# EOF\n"])


def _external_metrics():
    """Yield (name, labels, growth a second, value) of what others export: all of the slow rank's host, GPUs of both."""
    host = _host(SLOW_RANK)
    node = {"job": "node", "instance": f"{host}:9100"}
    yield "node_uname_info", {**node, "nodename": host}, 0, 1
    yield "node_memory_MemAvailable_bytes", node, 0, 3e11
    yield "node_memory_MemTotal_bytes", node, 0, 1e12
    yield "node_network_receive_bytes_total", {**node, "device": "ib0"}, 1e9, 0
    yield "node_network_transmit_bytes_total", {**node, "device": "ib0"}, 1e9, 0
    for name, value in (("SM_CLOCK", 1980), ("GPU_TEMP", 84), ("POWER_USAGE", 690)):
        for gpu, labels in _gpus():
            is_slow = labels.get("UUID") == uuid_of(SLOW_RANK)
            yield f"DCGM_FI_DEV_{name}", labels, 0, SLOW_CLOCK_MHZ if is_slow and name == "SM_CLOCK" else value + gpu
    for name, value in (("aicore_current_freq", 800), ("temperature", 62), ("power", 310)):
        for place in range(RANKS // 2):
            yield f"npu_chip_info_{name}", {"job": "npu", "instance": f"{host}:8082", "id": place}, 0, value + place


def _gpus():
    """Yield (number, labels) of every GPU; the last stands in a machine of no one's, and its exporter has no UUID."""
    for host in ("node1", "node2"):
        for gpu in range(RANKS // 2):
            own = {"job": "dcgm", "instance": f"{host}:9400", "Hostname": host, "gpu": gpu, "UUID": f"GPU-{host}-{gpu}"}
            yield gpu, own
    yield 9, {"job": "dcgm", "instance": "node3:9400", "Hostname": "node3", "gpu": 9}


def uuid_of(rank):
    """Return the UUID of a rank's device: the devices of a host were handed out from the last to the first."""
    return f"GPU-{_host(rank)}-{RANKS // 2 - 1 - int(rank) % (RANKS // 2)}"


def step_s(second):
    return HEALTHY_STEP_S if second < FAULT_S else SLOW_STEP_S


def steps(second):
    """Return the steps completed in `second` seconds."""
    return min(second, FAULT_S) / HEALTHY_STEP_S + max(0, second - FAULT_S) / SLOW_STEP_S


def excess_s(second):
    """Return what rank 2 worked longer than the others, in all steps until `second`."""
    return (SLOW_STEP_S - HEALTHY_STEP_S) * max(0, second - FAULT_S) / SLOW_STEP_S


def _host(rank):
    return f"node{int(rank) * 2 // RANKS + 1}"


def _targets(metric: Metric, labels):
    """Return the targets that have a series; of what every process exports, one of another process as well."""
    evaluated = {"job": "lockstep-coordinator", "instance": "head:9856"}
    measured = {"job": "lockstep-exporter", "instance": f"{_host(labels.get('rank', 0))}:9855"}
    others = {"job": "node", "instance": "node1:9100"}
    return {"coordinator": [evaluated], "exporter": [measured], "both": [measured, evaluated, others]}[metric.source]


def _series(metric: Metric, start):
    """Yield (sample name, labels, value by second) of a family; a value of None is no sample."""
    if metric.type == "histogram":
        yield from _histogram(metric)
    elif metric.name == "lockstep_suspect_slowdown_ratio":
        labels = {"run": RUN, "rank": SLOW_RANK, "hostname": _host(SLOW_RANK), "domain_kind": "dp", "cause": "compute"}
        yield metric.name, labels, lambda t: 0.6 if t >= FAULT_S else None
    elif metric.name == "lockstep_incident_info":
        labels = {
            "run": RUN,
            "incident": "train-1",
            "rank": SLOW_RANK,
            "hostname": _host(SLOW_RANK),
            "cause": "compute",
        }
        labels |= {"root_cause": "slow_function", "function": FUNCTION}
        yield metric.name, labels, lambda t: 1 if t >= FAULT_S else None
        closed = {**labels, "incident": CLOSED_INCIDENT, "rank": SLOW_RANK + 1, "root_cause": "", "function": ""}
        yield metric.name, closed, lambda t: 1 if FAULT_S / 4 <= t < FAULT_S / 2 else None
    else:
        for labels in _label_sets(metric):
            yield metric.name, labels, _value(metric, labels, start)


def _label_sets(metric: Metric):
    sets = [{}]
    if "run" in metric.labels:
        sets = [{"run": RUN}]
    if "rank" in metric.labels:
        ranks = [rank for rank in range(RANKS) if _host(rank) != _SUMMED_HOST or metric.form("default") == "whole"]
        together = [{**labels, "instance": f"{_SUMMED_HOST}:9855"} for labels in sets]
        sets = [{**labels, "rank": rank} for labels in sets for rank in ranks]
        sets += together if metric.form("default") == "node" else []
    if "incident" in metric.labels:
        sets = [{**labels, "incident": "train-1"} for labels in sets]
    if "communicator" in metric.labels:
        sets = [{**labels, "communicator": "dp", "operation": "AllReduce"} for labels in sets]
    if metric.values:
        sets = [{**labels, metric.labels[-1]: value} for labels in sets for value in metric.values]
    if metric.name == "lockstep_rank_info":
        sets = [{**s, "local_rank": s["rank"] % (RANKS // 2), "hostname": _host(s["rank"])} for s in sets]
        device = {"device": "NVIDIA H100 80GB HBM3", "dtype": "bf16"}
        sets = [{**s, **device, "device_uuid": "" if s["rank"] == UNNAMED_RANK else uuid_of(s["rank"])} for s in sets]
    if "version" in metric.labels:
        sets = [{"version": "0.1.0"}]
    return sets


def _value(metric: Metric, labels, start):
    slow = labels.get("rank") == SLOW_RANK
    special = {
        "lockstep_step_time_seconds_total": float,
        "lockstep_phase_time_seconds_total": lambda t: (
            _OWN_S.get(labels.get("phase"), 0) * steps(t)
            + (excess_s(t) if slow and labels.get("phase") == "compute" else 0)
        ),
        "lockstep_compute_time_seconds_total": lambda t: (
            _COMPUTE_S.get(labels.get("phase"), 0) * steps(t)
            + (excess_s(t) if slow and labels.get("phase") == "forward" else 0)
        ),
        "lockstep_collective_wait_seconds_total": lambda t: (
            0.0 if labels.get("domain_kind") != "dp" else 0.2 * steps(t) + (0 if slow else excess_s(t))
        ),
        "lockstep_collective_time_seconds_total": lambda t: (
            0.0 if labels.get("domain_kind") != "dp" else 0.5 * steps(t) + excess_s(t)
        ),
        "lockstep_nccl_operation_time_seconds_total": lambda t: 0.5 * steps(t) + (0 if slow else excess_s(t)),
        "lockstep_nccl_last_arrivals_total": lambda t: (0.9 if slow else 0.01) * steps(t),
        "lockstep_nccl_last_arrival_wait_seconds_total": lambda t: excess_s(t) if slow else 0.0,
        "lockstep_rank_peak_flops_per_second": lambda _: 989.5e12,
        "process_resident_memory_bytes": lambda _: 9e7,
        "lockstep_step": lambda t: math.floor(steps(t)),
        "lockstep_run_step": lambda t: math.floor(steps(t)),
        "lockstep_last_step_timestamp_seconds": lambda t: start + t,
        "lockstep_run_last_step_timestamp_seconds": lambda t: start + t,
        "lockstep_coordinator_last_detection_timestamp_seconds": lambda t: start + t,
        "lockstep_run_ranks": lambda _: RANKS,
        "lockstep_run_ranks_reporting": lambda _: RANKS,
        "lockstep_run_ranks_blind": lambda _: 0,
        "lockstep_run_state": lambda t: int(labels.get("state") == ("healthy" if t < FAULT_S else "diagnosed")),
        "lockstep_run_recent_step_duration_seconds": step_s,
        "lockstep_run_baseline_step_duration_seconds": lambda _: HEALTHY_STEP_S,
        "lockstep_run_memory_remaining_seconds": lambda _: 3 * 86_400.0,
        "lockstep_run_earlier_step_duration_seconds": lambda _: (
            (1.01 if labels.get("match") == "name" else 1.02) * HEALTHY_STEP_S
        ),
        "lockstep_run_expected_step_seconds": lambda _: 0.97 * HEALTHY_STEP_S,
        "lockstep_run_expected_step_error_ratio": lambda _: 0.04,
        "lockstep_run_expected_state": lambda _: int(labels.get("state") == "known"),
        "lockstep_run_fluctuating": lambda t: int(t >= FAULT_S),
        "lockstep_run_slow_ranks": lambda t: int(t >= FAULT_S),
        "lockstep_run_suspects_omitted": lambda _: 0,
        "lockstep_run_incidents_open": lambda t: int(t >= FAULT_S and labels.get("cause") == "compute"),
        "lockstep_run_lost_device_seconds_total": lambda t: excess_s(t) * (RANKS - 1),
        "lockstep_run_imbalance_ratio": lambda _: 0.02,
        "lockstep_incident_predicted_gain_ratio": lambda t: 0.33 if t >= FAULT_S else None,
        "lockstep_agent_up": lambda _: int(labels.get("rank") != RANKS - 1),
        "lockstep_exporter_mqtt_connected": lambda t: int(t < FAULT_S),
        "lockstep_exporter_records_lost_total": lambda _: 0,
        "lockstep_coordinator_records_recorded_total": lambda t: steps(t) * RANKS * (labels.get("state") == "written"),
    }
    if metric.name in special:
        return special[metric.name]
    if metric.type == "counter":
        ranks = RANKS // 2 if "rank" in metric.labels and "rank" not in labels else 1
        return lambda t: ranks * _PER_STEP.get(metric.name, _LOW_RATE) * steps(t)
    return lambda _: 1


def _histogram(metric: Metric):
    for bound in (*STEP_BUCKETS_SECONDS, math.inf):
        text = "+Inf" if bound == math.inf else str(float(bound))
        yield f"{metric.name}_bucket", {"run": RUN, "le": text}, _below(bound)
    yield f"{metric.name}_sum", {"run": RUN}, float
    yield f"{metric.name}_count", {"run": RUN}, steps


def _below(bound):
    return lambda t: (
        steps(min(t, FAULT_S)) * (bound >= HEALTHY_STEP_S)
        + ((steps(t) - steps(min(t, FAULT_S))) * (bound >= SLOW_STEP_S))
    )


assert set(_PER_STEP) <= set(BY_NAME)
