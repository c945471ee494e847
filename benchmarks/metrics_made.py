"""Snapshots of services that no one runs here, and the samples of a large run as Prometheus would have scraped them."""

import math
import random
from collections.abc import Iterator
from itertools import product

import numpy as np

from alerts import rules
from alerts.policy import Site
from coordinator.decide.incidents import Incident
from coordinator.record.earlier_attempts import EarlierAttempts
from coordinator.snapshot import RunSnapshot, Snapshot, Suspect
from dashboards import external_metrics
from exporter.counts import DeliveryStatus
from exporter.exposing.snapshot import NodeRunView, NodeSnapshot, RankView
from exporter.host_watch import HostTotals, NodeLoad
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.contracts.metrics import (
    BY_NAME,
    CATALOGUE,
    FLAGS,
    FRAME_VERDICTS,
    LOST_REASONS,
    PROFILE_STATES,
    STEP_BUCKETS_SECONDS,
    Metric,
)
from lockstep.contracts.peaks import peak_flops_per_second
from lockstep.contracts.records import DOMAIN_KINDS, RECORD_FIELDS
from lockstep.contracts.unwatched import UNWATCHED_REASONS
from lockstep.serving.fault_isolation import OUTCOMES
from lockstep.serving.process import OwnProcess
from tests.alerts.promql import labels_of_recording

RUN = "llm"
RANKS_PER_NODE = 8
SCRAPE_SECONDS = 30  # what is advised for ten thousand ranks
ASKED_RANK, UNNAMED_RANK = 29, 31  # whom the Rank dashboard is asked about; the second knows no UUID of its device
DOWN = ("lockstep_agent_up", "lockstep_exporter_mqtt_connected")  # the last one of each is not
CLOSED = ("lockstep_incident_info",)  # the last one of it left the page at once
assert ASKED_RANK < SUSPECTS_MAX  # the first ranks are the suspects
_FACTS = RankFacts(
    device="NVIDIA H200",
    device_kind="cuda",
    dtype="bf16",
    peak_flops_per_second=peak_flops_per_second("NVIDIA H200", "bf16"),
)
_UNIX_S = 1.7e9


def exporter_snapshot(runs: int, ranks: int, seed: int) -> NodeSnapshot:
    """Return a node whose ranks measure every quantity there is."""
    draw = np.random.default_rng(seed)
    return NodeSnapshot(
        unix_ns=int(_UNIX_S * 1e9),
        runs=tuple(
            NodeRunView(
                run=f"run-{run}",
                ranks=tuple(_rank_view(rank, draw) for rank in range(ranks)),
                sums=draw.random(len(RECORD_FIELDS)) * 1e16,
                measured=np.ones(len(RECORD_FIELDS), bool),
                peak_flops=float(draw.random() * 1e21),
                histogram_counts=tuple(draw.integers(0, 10**6, len(STEP_BUCKETS_SECONDS) + 1).tolist()),
                histogram_sum_ns=float(draw.random() * 1e15),
                flagged=tuple(range(len(FLAGS))),
            )
            for run in range(runs)
        ),
        ranks_omitted=0,
        lost=dict.fromkeys(BY_NAME["lockstep_exporter_records_lost_total"].values, 0),
        lost_blocks=dict.fromkeys(BY_NAME["lockstep_exporter_blocks_lost_total"].values, 0),
        incomplete_steps=0,
        malformed_marks=0,
        ranks_unnumbered=0,
        http_refusals=dict.fromkeys(BY_NAME["lockstep_exporter_http_refusals_total"].values, 0),
        rejected=dict.fromkeys(BY_NAME["lockstep_exporter_inputs_rejected_total"].values, 0),
        profiles=dict.fromkeys(BY_NAME["lockstep_exporter_profiles_total"].values, 1),
        profile_cost_ns=10**9,
        rings_quarantined=0,
        dropped=dict.fromkeys(BY_NAME["lockstep_exporter_inputs_dropped_total"].values, 0),
        unwatched=dict.fromkeys(UNWATCHED_REASONS, 0),
        delivery=DeliveryStatus(
            connected=True,
            spool_bytes=12345,
            spool_messages=12,
            spool_limit_bytes=1 << 28,
            published=10**6,
            resent=64,
            coordinators=2,
            acknowledged_unix_ns=round(_UNIX_S * 1e9),
        ),
        tick_duration_ns=2_345_678,
        load=NodeLoad(pressure_ns=10**9, cost_ns=10**7, load=3.25),
        process=OwnProcess().read(),
    )


def _rank_view(rank: int, draw: np.random.Generator) -> RankView:
    return RankView(
        rank=rank,
        local_rank=rank % RANKS_PER_NODE,
        world_size=10_240,
        hostname=f"node{rank // RANKS_PER_NODE}",
        attempt=1,
        state="running",
        heartbeat_unix_ns=int(_UNIX_S * 1e9),
        facts=_FACTS,
        steps=int(draw.integers(1, 10**7)),
        step_time_ns=float(draw.random() * 1e15),
        peak_flops=float(draw.random() * 1e20),
        failures=0,
        last_step=12345,
        last_step_unix_ns=int(_UNIX_S * 1e9),
        sums=draw.random(len(RECORD_FIELDS)) * 1e15,
        measured=np.ones(len(RECORD_FIELDS), bool),
        host=HostTotals(run_queue_wait_ns=10**9, throttled_ns=0, cpu_ns=10**12, others_ns=10**10, cores=24),
    )


def coordinator_snapshot(runs: int, ranks: int, seed: int) -> Snapshot:
    """Return a coordinator that watches runs of `ranks` ranks; each second one has as many suspects as it may."""
    draw = random.Random(seed)  # noqa: S311  (made figures)
    received = BY_NAME["lockstep_coordinator_messages_received_total"].values
    rejected = BY_NAME["lockstep_coordinator_messages_rejected_total"].values
    return Snapshot(
        runs=tuple(_run_snapshot(f"run-{run}", ranks, run % 2 == 1, draw) for run in range(runs)),
        messages_received=dict.fromkeys(received, draw.randrange(10**9)),
        messages_rejected=dict.fromkeys(rejected, 0),
        records_rejected=dict.fromkeys(BY_NAME["lockstep_coordinator_records_rejected_total"].values, 0),
        records_lost=dict.fromkeys(LOST_REASONS, 0),
        records_evaluated=0,
        frames=dict.fromkeys(FRAME_VERDICTS, 0),
        frames_unsettled=0,
        inputs_dropped=dict.fromkeys(OUTCOMES, 0),
        leads=True,
        peers=0,
        is_connected=True,
        nodes_alive=runs * ranks // RANKS_PER_NODE,
        detections=10**7,
        detection_seconds=12345.678,
        last_detection_unix_s=_UNIX_S,
        policy_changes={"api": 2, "file": 0},
        reload_ok=True,
        reload_unix_s=_UNIX_S,
        version="0.1.0",
        process=OwnProcess().read(),
    )


def _run_snapshot(run: str, ranks: int, is_slow: bool, draw: random.Random) -> RunSnapshot:  # noqa: FBT001
    slow = draw.sample(range(ranks), SUSPECTS_MAX if is_slow else 0)
    suspects = [
        Suspect(rank=r, hostname=f"node{r // 8}", domain_kind="dp", cause="compute", excess_ratio=0.5) for r in slow
    ]
    return RunSnapshot(
        run=run,
        state="diagnosed" if is_slow else "healthy",
        world_size=ranks,
        ranks_reporting=ranks,
        ranks_blind=0,
        step=draw.randrange(10**6),
        last_step_unix_s=_UNIX_S,
        recent_step_seconds=draw.random(),
        baseline_step_seconds=draw.random(),
        fluctuating=is_slow,
        slow_ranks=2 * len(slow),
        suspects=tuple(suspects),
        incidents=tuple(_incident(run, number, rank) for number, rank in enumerate(slow)),
        incidents_total=100,
        lost_device_seconds=draw.random() * 1e9,
        profiles=dict.fromkeys(PROFILE_STATES, 3),
        step_counts=tuple(draw.randrange(10**6) for _ in range(len(STEP_BUCKETS_SECONDS) + 1)),
        step_sum_seconds=draw.random() * 1e9,
        hostnames={rank: f"node{rank // 8}" for rank in slow},
        imbalance_ratios={"stage": 0.1, "replica": 0.05, "work": 0.0},
        expected_state="known",
        expected_step_seconds=draw.random(),
        expected_error_ratio=0.02,
        earlier=EarlierAttempts(match="name", runs=(run,), attempts=2, step_seconds=draw.random(), slowdown_ratio=0.1),
    )


def _incident(run: str, number: int, rank: int) -> Incident:
    return Incident(
        id=f"{run}-{number}",
        run=run,
        kind="slow_rank",
        cause="compute",
        scope="rank",
        ranks=(rank,),
        domain=("dp", "dp0"),
        onset_step=60,
        detected_step=63,
        opened_unix_ns=int(_UNIX_S * 1e9),
        slowdown_ratio=0.5,
        excess_seconds=0.05,
        evidence=(),
        numbers={},
        function="model/attention.py(123): forward",
        root_cause="slow_function",
    )


def openmetrics(names: set[str], ranks: int, start_unix_s: int, span_s: int) -> Iterator[tuple[str, int]]:
    """Yield (text, samples) of every known series in `names`, from a run of `ranks` ranks."""
    times = range(start_unix_s, start_unix_s + span_s + 1, SCRAPE_SECONDS)
    for metric in CATALOGUE:
        sampled = [metric.name]
        if metric.type == "histogram":
            sampled = [f"{metric.name}_{part}" for part in ("bucket", "sum", "count")]
        if not names.isdisjoint(sampled):
            rate = 1.0 if metric.type != "gauge" else 0.0
            labels = list(_of_catalogue(metric, ranks))
            yield _family(metric.name, metric.type, sampled, labels, rate=rate, times=times)
    for rule in rules.recordings():
        if rule.record in names:
            labels = list(_sets(labels_of_recording(rule.expr), ranks))
            yield _family(rule.record, "gauge", [rule.record], labels, rate=0.0, times=times)
    for name, extra in external_metrics.LABELS.items():
        if name in names:
            labels = list(_of_others(name, extra, ranks))
            rate = 1e9 if name.endswith("_total") else 0.0
            yield _family(name, "counter" if rate else "gauge", [name], labels, rate=rate, times=times)
    yield "# EOF\n", 0


def _family(
    name: str, kind: str, sampled: list[str], labels: list[str], *, rate: float, times: range
) -> tuple[str, int]:
    """Return a family's text; a series grows by `rate`, a thousandth faster than the one before it, from 1 on."""
    lines = [f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {kind}\n"]
    count = 0
    for sample in sampled:
        bounds = [*map(str, map(float, STEP_BUCKETS_SECONDS)), "+Inf"] if sample.endswith("_bucket") else [""]
        for (place, text), bound in product(enumerate(labels), bounds):
            own = 0.0 if bound and float(bound) < 1 else rate * (1 + place % 50 / 1000)
            begin = int(sample not in DOWN or place < len(labels) - 1)
            head = f'{sample}{{{text},le="{bound}"}}' if bound else f"{sample}{{{text}}}"
            seen = times[:1] if sample in CLOSED and place == len(labels) - 1 else times
            lines += [f"{head} {begin + own * (at - times.start):.9g} {at}\n" for at in seen]
            count += len(seen)
    return "".join(lines), count


def _of_catalogue(metric: Metric, ranks: int) -> Iterator[str]:
    labels = tuple(label for label in metric.labels if label not in ("local_rank", "hostname", "device_uuid"))
    is_found = metric.source == "coordinator" and "rank" in labels
    is_of_node = metric.source != "coordinator" and "rank" not in labels
    one_of_each = range(0, ranks, RANKS_PER_NODE) if is_of_node else range(SUSPECTS_MAX if is_found else ranks)
    if metric.source == "both":
        yield f'job="{Site().coordinator_job}",instance="head:9856"'
    for text, rank in _ranked(labels, one_of_each, metric.values, is_of_node=is_of_node):
        host = f"node{rank // RANKS_PER_NODE}"
        own = f'job="{Site().exporter_job}",instance="{host}:9855"'
        if metric.source == "coordinator":
            own = f'job="{Site().coordinator_job}",instance="head:9856"'
        if "hostname" in metric.labels:
            own += f',hostname="{host}"'
        if "local_rank" in metric.labels:
            own += f',local_rank="{rank % RANKS_PER_NODE}"'
        if "device_uuid" in metric.labels and rank % RANKS_PER_NODE != UNNAMED_RANK % RANKS_PER_NODE:
            own += f',device_uuid="GPU-{rank}"'
        yield f"{own},{text}" if text else own


_VALUES = {
    "run": (RUN,),
    "job": (Site().exporter_job,),
    "phase": BY_NAME["lockstep_phase_time_seconds_total"].values,
    "flag": FLAGS,
    "domain_kind": DOMAIN_KINDS,
    "cause": ("compute",),
    "root_cause": ("slow_function",),
    "function": ("model.py:forward",),
    "device": ("NVIDIA H200",),
    "dtype": ("bf16",),
    "version": ("0.1.0",),
    "communicator": ("tp", "dp"),
    "operation": ("AllReduce", "AllGather"),
}
"""What a label may be; each other one has one value, its name."""


def _values(label: str) -> tuple[str, ...]:
    return _VALUES.get(label, (label,))


def _ranked(
    labels: tuple[str, ...], ranks: range, values: tuple[str, ...], *, is_of_node: bool
) -> Iterator[tuple[str, int]]:
    """Yield the text of each series' labels and a rank of its node; series of no rank once, or once a node."""
    of_others = [label for label in labels if label not in ("rank", "incident")]
    choices = [values if values and label == labels[-1] else _values(label) for label in of_others]
    for rank in ranks if is_of_node or {"rank", "incident"} & set(labels) else (0,):
        own = [
            (label, f"{RUN}-{rank}" if label == "incident" else str(rank)) for label in labels if label not in of_others
        ]
        for chosen in product(*choices):
            pairs = [*zip(of_others, chosen, strict=True), *own]
            yield ",".join(f'{label}="{value}"' for label, value in pairs), rank


def _sets(labels: tuple[str, ...], ranks: int) -> Iterator[str]:
    nodes = math.ceil(ranks / RANKS_PER_NODE)
    by_node = {
        "hostname": tuple(f"node{node}" for node in range(nodes)),
        "instance": tuple(f"node{node}:9855" for node in range(nodes)),
    }
    if {"rank", "hostname"} <= set(labels):  # a rank is on one node: not every pair of the two
        others = [label for label in labels if label not in ("rank", "hostname")]
        for rank in range(ranks):
            own = f'rank="{rank}",hostname="node{rank // RANKS_PER_NODE}"'
            yield ",".join([own, *(f'{label}="{_values(label)[0]}"' for label in others)])
        return
    for chosen in product(*(by_node.get(label) or _values(label) for label in labels)):
        yield ",".join(f'{label}="{value}"' for label, value in zip(labels, chosen, strict=True))


def _of_others(name: str, extra: tuple[str, ...], ranks: int) -> Iterator[str]:
    of_device = name.startswith(("DCGM", "npu"))
    for number in range(ranks if of_device else math.ceil(ranks / RANKS_PER_NODE)):
        host = f"node{number // RANKS_PER_NODE if of_device else number}"
        known = {"nodename": host, "device": "ib0", "gpu": str(number % 8), "UUID": f"GPU-{number}", "hostname": host}
        known |= {"Hostname": host, "id": str(number % 8)}
        shown = [label for label in extra if label != "hostname"]
        text = ",".join(f'{label}="{known[label]}"' for label in shown)
        yield f'job="others",instance="{host}:9100"' + (f",{text}" if text else "")
