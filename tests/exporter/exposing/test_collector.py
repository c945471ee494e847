import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.counts import DeliveryStatus, ExporterCounters
from exporter.exposing.collector import NodeCollector
from exporter.exposing.snapshot import NodeSnapshot, take_snapshot
from exporter.host_watch import HostTotals, NodeLoad
from exporter.inspector import CollectiveTotals, InspectorStatus
from exporter.reading.rings import Rings
from lockstep.contracts import ring as layout
from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.messages import GroupInfo
from lockstep.contracts.metric import LEVELS, Level
from lockstep.contracts.metrics import BY_NAME, CATALOGUE, FLAGS, PHASES
from lockstep.contracts.records import COMPUTE_PHASES, MISSING, Flag
from lockstep.serving.exposition import render
from lockstep.serving.process import OwnProcess
from tests.exporter.conftest import MS, NOW_NS, OFFSET_NS, record, table
from tests.support.mark_ring import wanted_step

STALE_NS = 10**12
OURS = {metric.name for metric in CATALOGUE if metric.source != "coordinator"}


DELIVERY = DeliveryStatus(
    connected=True,
    spool_bytes=5,
    spool_messages=2,
    spool_limit_bytes=20,
    published=7,
    resent=3,
    coordinators=1,
    acknowledged_unix_ns=9 * 10**9,
)


class Node:
    """Rings and counts with a snapshot on demand."""

    def __init__(self, root: Path) -> None:
        self.counts = ExporterCounters()
        self.rings = Rings(root, self.counts, {})

    def snapshot(self, **values: Any) -> NodeSnapshot:
        self.rings.scan(NOW_NS)
        self.rings.read()
        return take_snapshot(
            self.rings,
            self.counts,
            now_ns=NOW_NS,
            unix_ns=0,
            stale_ns=STALE_NS,
            delivery=DELIVERY,
            tick_duration_ns=2_000_000,
            process=OwnProcess().read(),
            **values,
        )

    def samples(self) -> dict[tuple, float]:
        """Sample name and labels -> value."""
        return samples_of(self.snapshot())


def samples_of(snapshot: NodeSnapshot, level: Level = "full") -> dict[tuple, float]:
    families = parse_text(render(NodeCollector(snapshot, level=level), "text").decode())
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def key(name: str, **labels: str) -> tuple:
    return (name, *sorted(labels.items()))


@pytest.fixture
def node(root: Path):
    node = Node(root)
    yield node
    node.rings.close()


def test_every_family_of_the_catalogue_and_no_other(node: Node, make_ring):
    """Names, types and labels are the catalogue's, with nothing next to them and no creation times."""
    ring = make_ring()
    ring.facts(facts_to_json(RankFacts(device="NVIDIA H200", device_uuid="GPU-5", dtype="bf16")))
    ring.write(record(0, tokens=1, tp_wait_ns=1, tp_bytes=1, tp_count=1))
    families = {}
    for family in parse_text(render(NodeCollector(node.snapshot()), "text").decode()):
        name = family.name + "_total" if family.type == "counter" else family.name
        families[name] = family
    assert set(families) == OURS
    for name, family in families.items():
        metric = BY_NAME[name]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
            assert not sample.name.endswith("_created")


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_a_level_has_the_families_of_the_catalogue_in_their_forms(node: Node, make_ring, level: Level):
    """Whole families as at level full, sums and extremes of a node without the label rank, zeros, and nothing else."""
    for rank in (0, 1):
        make_ring(rank=rank).write(record(0, tokens=1 + rank, step_ns=(1 + rank) * 100 * MS))
    make_ring(rank=2).state(layout.STATE_FAILED)
    snapshot = node.snapshot(hosts={("run-a", 0): HostTotals(cores=4)})
    whole, found = samples_of(snapshot), samples_of(snapshot, level)
    expected = {}
    for (name, *labels), value in whole.items():
        metric = BY_NAME.get(name) or BY_NAME[re.sub(r"_(bucket|sum|count)\Z", "", name)]
        form = metric.form(level)
        if form == "whole" or (form == "zeros" and not value):
            expected[name, *labels] = value
        elif form == "node":
            shared = (name, *(pair for pair in labels if pair[0] != "rank"))
            how = {"sum": sum, "min": min, "max": max}[metric.below]
            expected[shared] = how([expected[shared], value]) if shared in expected else value
    assert found == pytest.approx(expected)
    assert found[key("lockstep_tokens_total", run="run-a")] == 3
    assert found[key("lockstep_agent_up", run="run-a", rank="2")] == 0


def test_the_sums_of_a_node_outlive_its_ranks(node: Node, make_ring):
    """A rank that ended, and one that was forgotten, never lower what all ranks of a run have counted here."""
    gone, _stays = make_ring(rank=0), make_ring(rank=1)
    gone.write(record(0, tokens=5))
    name = key("lockstep_tokens_total", run="run-a")
    assert samples_of(node.snapshot(), "minimal")[name] == 5
    gone.path.unlink()
    assert samples_of(node.snapshot(), "minimal")[name] == 5
    (run,) = node.rings.runs.values()
    run.forget_departed()
    assert list(run.ranks) == [1]
    assert samples_of(node.snapshot(), "minimal")[name] == 5


def test_peak_flops_are_summed_where_every_peak_is_known(node: Node, make_ring):
    """A node of which one rank computes on a device without a known peak has no sum to compare its FLOPs with."""
    peak = facts_to_json(RankFacts(device="NVIDIA H200", dtype="bf16", peak_flops_per_second=1e15))
    rings = [make_ring(rank=rank) for rank in (0, 1)]
    for ring in rings:
        ring.facts(peak)
        ring.write(record(0, model_flops=7))
    total = key("lockstep_peak_flops_total", run="run-a")
    assert samples_of(node.snapshot(), "default")[total] == pytest.approx(2 * 0.1 * 1e15)
    rings[1].facts(facts_to_json(RankFacts(device="an unknown one")))
    assert total not in samples_of(node.snapshot(), "default")
    assert samples_of(node.snapshot())[key("lockstep_peak_flops_total", run="run-a", rank="0")] == pytest.approx(1e14)


def test_parts_that_are_off_have_no_series(node: Node):
    """Without a configured neighbour and before the first file of an Inspector there is nothing to count."""
    optional = {metric.name for metric in CATALOGUE if metric.is_optional}
    assert len(optional) == 5
    assert optional.isdisjoint(name for name, *_ in node.samples())


def test_values_are_in_base_units(node: Node, make_ring):
    """Nanoseconds become seconds, counts and bytes stay."""
    ring = make_ring()
    ring.write(record(0))
    ring.write(record(1))
    samples = node.samples()
    rank = {"run": "run-a", "rank": "0"}
    expected = {
        key("lockstep_steps_total", **rank): 2,
        key("lockstep_step_time_seconds_total", **rank): 0.2,
        key("lockstep_phase_time_seconds_total", **rank, phase="compute"): 0.1,
        key("lockstep_collective_wait_seconds_total", **rank, domain_kind="dp"): 0.05,
        key("lockstep_collective_bytes_total", **rank, domain_kind="dp"): 2 << 20,
        key("lockstep_collectives_total", **rank, domain_kind="dp"): 4,
        key("lockstep_gc_collections_total", **rank): 2,
        key("lockstep_samples_total", **rank): 16,
        key("lockstep_cpu_time_seconds_total", **rank): 0.1,
        key("lockstep_agent_time_seconds_total", **rank): 2e-6,
        key("lockstep_step", **rank): 1,
        key("lockstep_last_step_timestamp_seconds", **rank): OFFSET_NS / 1e9 + 1.2,
        key("lockstep_rank_info", **rank, local_rank="0", hostname="worker-0"): 1,
        key("lockstep_agent_up", **rank): 1,
        key("lockstep_step_duration_seconds_count", run="run-a"): 2,
        key("lockstep_step_duration_seconds_sum", run="run-a"): 0.2,
        key("lockstep_step_duration_seconds_bucket", run="run-a", le="0.05"): 0,
        key("lockstep_step_duration_seconds_bucket", run="run-a", le="0.1"): 2,
        key("lockstep_step_duration_seconds_bucket", run="run-a", le="+Inf"): 2,
        key("lockstep_exporter_tick_duration_seconds"): 0.002,
        key("lockstep_exporter_mqtt_connected"): 1,
        key("lockstep_exporter_spool_bytes"): 5,
        key("lockstep_exporter_spool_messages"): 2,
        key("lockstep_exporter_spool_fill_ratio"): 0.25,
        key("lockstep_exporter_messages_published_total"): 7,
        key("lockstep_exporter_messages_resent_total"): 3,
        key("lockstep_exporter_coordinators"): 1,
        key("lockstep_exporter_last_acknowledgement_timestamp_seconds"): 9,
    }
    for name, value in expected.items():
        assert samples[name] == pytest.approx(value), name


def test_what_the_host_watch_knows_is_shown_and_nothing_else(node: Node, make_ring):
    """Times in seconds, a measured zero as zero, and no series of what this node does not show."""
    make_ring().write(record(0))
    make_ring(rank=1).write(record(0))
    hosts = {
        ("run-a", 0): HostTotals(run_queue_wait_ns=2_500_000_000, throttled_ns=0, cores=4),
        ("gone", 0): HostTotals(),
    }
    load = NodeLoad(pressure_ns=1_500_000_000, cost_ns=3_000_000)
    samples = samples_of(node.snapshot(load=load, hosts=hosts))
    names = ("cpu_wait", "cpu_throttled", "lockstep_process_cpu", "other_cpu", "rank_cores", "node_", "host_watch")
    found = {name: value for name, value in samples.items() if any(each in name[0] for each in names)}
    rank = {"run": "run-a", "rank": "0"}
    assert found == {
        key("lockstep_cpu_wait_time_seconds_total", **rank): 2.5,
        key("lockstep_cpu_throttled_time_seconds_total", **rank): 0,
        key("lockstep_rank_cores", **rank): 4,
        key("lockstep_node_cpu_pressure_seconds_total"): 1.5,
        key("lockstep_exporter_host_watch_time_seconds_total"): 0.003,
    }


def test_compute_by_phase(node: Node, make_ring):
    """Forward, backward and optimizer in seconds; none of a rank whose backward is not seen but the optimizer."""
    make_ring(rank=0).write(record(0, forward_ns=20 * MS, backward_ns=40 * MS, optimizer_ns=0))
    make_ring(rank=1).write(record(0))
    samples = node.samples()
    found = [
        [
            samples.get(key("lockstep_compute_time_seconds_total", run="run-a", rank=rank, phase=p))
            for p in COMPUTE_PHASES
        ]
        for rank in ("0", "1")
    ]
    assert found == [[0.02, 0.04, 0], [None, None, 0]]


def test_what_was_never_measured_has_no_series(node: Node, make_ring):
    """A missing quantity is no zero; a measured zero is one."""
    make_ring().write(record(0, compute_ns=64 * MS, cpu_ns=MISSING))  # with nothing left for the host
    samples = node.samples()
    names = {name for name, *_ in samples}
    assert "lockstep_tokens_total" not in names
    assert "lockstep_cpu_time_seconds_total" not in names
    rank = {"run": "run-a", "rank": "0"}
    phases = {p for p in PHASES if key("lockstep_phase_time_seconds_total", **rank, phase=p) in samples}
    assert phases == {"data", "compute", "host", "gc"}
    assert samples[key("lockstep_phase_time_seconds_total", **rank, phase="host")] == 0
    kinds = {dict(labels)["domain_kind"] for name, *labels in samples if name == "lockstep_collectives_total"}
    assert kinds == {"dp"}


def test_throughput_and_communication_in_base_units(node: Node, make_ring):
    """Model FLOPs, flight time, bus bytes, compilations and the device's clock arrive as their sums."""
    values = {
        "model_flops": 3_000_000_000_000,
        "dp_comm_ns": 50_000_000,
        "dp_bus_bytes": 7,
        "gc_full_count": 1,
        "recompilations": 2,
        "device_step_ns": 90_000_000,
        "device_comm_ns": 30_000_000,
        "host_lead_ns": 4_000_000,
    }
    make_ring().write(wanted_step(0, 0, 1))
    node.samples()
    totals = node.rings.runs["run-a"].ranks[0].totals
    totals.add(table(record(1, **values), record(2, **values)), OFFSET_NS)
    samples = node.samples()
    rank = {"run": "run-a", "rank": "0"}
    expected = {
        key("lockstep_model_flops_total", **rank): 6e12,
        key("lockstep_collective_time_seconds_total", **rank, domain_kind="dp"): 0.1,
        key("lockstep_collective_bus_bytes_total", **rank, domain_kind="dp"): 14,
        key("lockstep_gc_full_collections_total", **rank): 2,
        key("lockstep_recompilations_total", **rank): 4,
        key("lockstep_device_step_time_seconds_total", **rank): 0.18,
        key("lockstep_device_collective_time_seconds_total", **rank): 0.06,
        key("lockstep_host_lead_seconds_total", **rank): 0.008,
    }
    for name, value in expected.items():
        assert samples[name] == pytest.approx(value), name


def test_flagged_steps_are_counted_by_flag(node: Node, make_ring):
    """A step counts under each of its flags, over all ranks of the node; a flag that never was is a zero."""
    for rank in range(2):
        ring = make_ring(rank=rank)
        ring.write(record(0, flags=int(Flag.WARM_UP)))
        ring.write(record(1, flags=int(Flag.CHECKPOINT | Flag.PROFILED)))
        ring.write(record(2))
    samples = node.samples()
    found = {flag: samples[key("lockstep_steps_flagged_total", run="run-a", flag=flag)] for flag in FLAGS}
    assert found == {"warm_up": 2, "checkpoint": 2, "evaluation": 0, "profiled": 2, "skipped_optimizer": 0}


def test_device_and_peak_are_exported_as_far_as_they_are_known(node: Node, make_ring):
    """A rank that reported what it runs on has its series; what no one knows of it has none, nor an empty UUID."""
    known, unknown, _silent = (make_ring(rank=rank) for rank in range(3))
    known.facts(
        facts_to_json(
            RankFacts(device="NVIDIA H200", dtype="bf16", peak_flops_per_second=989.5e12, device_uuid="GPU-5")
        )
    )
    unknown.facts(facts_to_json(RankFacts(device="cpu")))
    samples = node.samples()
    found = {name: value for name, value in samples.items() if name[0].startswith("lockstep_rank_")}
    where = {"run": "run-a", "hostname": "worker-0"}
    device = {"device": "NVIDIA H200", "dtype": "bf16", "device_uuid": "GPU-5"}
    assert found == {
        key("lockstep_rank_info", **where, rank="0", local_rank="0", **device): 1,
        key("lockstep_rank_info", **where, rank="1", local_rank="1", device="cpu", dtype=""): 1,
        key("lockstep_rank_info", **where, rank="2", local_rank="2"): 1,
        key("lockstep_rank_peak_flops_per_second", run="run-a", rank="0"): 989.5e12,
    }


def test_what_the_agent_is_written_in_is_exported(node: Node, make_ring):
    """Its writer of marks and its kernels in front of collectives; without torch it has no kernels."""
    both, neutral, _silent = (make_ring(rank=rank) for rank in range(3))
    reason = "none is built for torch 2.13.0"
    facts = RankFacts(mark_writer="C extension", collective_kernels="Python", collective_kernels_reason=reason)
    both.facts(facts_to_json(facts))
    neutral.facts(facts_to_json(RankFacts(mark_writer="pure Python")))
    found = {name: value for name, value in node.samples().items() if name[0] == "lockstep_rank_agent_info"}
    assert found == {
        key(
            "lockstep_rank_agent_info", run="run-a", rank="0", mark_writer="C extension", collective_kernels="Python"
        ): 1,
        key("lockstep_rank_agent_info", run="run-a", rank="1", mark_writer="pure Python"): 1,
    }


def test_a_rank_that_has_not_stepped_has_no_step(node: Node, make_ring):
    """Before the first step there is no index and no time of it, but the rank is there."""
    make_ring()
    samples = node.samples()
    rank = {"run": "run-a", "rank": "0"}
    assert key("lockstep_step", **rank) not in samples
    assert key("lockstep_last_step_timestamp_seconds", **rank) not in samples
    assert samples[key("lockstep_steps_total", **rank)] == 0
    assert samples[key("lockstep_agent_up", **rank)] == 1


def test_counts_of_ourselves_have_every_label_value_from_the_start(node: Node):
    """A reason that never occurred is a zero."""
    samples = node.samples()
    for metric in CATALOGUE:
        if metric.source == "exporter" and metric.values and "run" not in metric.labels and not metric.is_optional:
            for value in metric.values:
                assert samples[key(metric.name, **{metric.labels[0]: value})] == 0


def test_counters_go_on_over_a_restart_of_the_rank(node: Node, make_ring):
    """A new attempt never lowers a counter; the step index is that of the attempt."""
    old = make_ring(attempt=1)
    for step in range(5):
        old.write(record(step))
    before = node.samples()
    make_ring(attempt=2).write(record(0))
    after = node.samples()
    falling = {n for n in before if n[0].endswith(("_total", "_bucket", "_count", "_sum")) and after[n] < before[n]}
    assert falling == set()
    rank = {"run": "run-a", "rank": "0"}
    assert after[key("lockstep_steps_total", **rank)] == 6
    assert after[key("lockstep_step", **rank)] == 0


def test_the_series_of_a_rank_that_ended_vanish(node: Node, make_ring):
    """Finished, silent and removed ranks leave no series, and a run without ranks none either."""
    finished, silent, removed = (make_ring(rank=rank) for rank in range(3))
    for ring in (finished, silent, removed):
        ring.write(record(0))
    assert {dict(labels).get("rank") for _, *labels in node.samples()} == {None, "0", "1", "2"}
    finished.state(layout.STATE_FINISHED)
    removed.path.unlink()
    assert {dict(labels).get("rank") for _, *labels in node.samples()} == {None, "1"}
    silent.beat(NOW_NS - 2 * STALE_NS)
    assert not [name for name in node.samples() if dict(name[1:]).get("run")]


def test_a_failed_agent_is_down(node: Node, make_ring):
    """An agent that took itself out shows as 0."""
    make_ring(rank=0)
    make_ring(rank=1).state(layout.STATE_FAILED)
    samples = node.samples()
    assert samples[key("lockstep_agent_up", run="run-a", rank="0")] == 1
    assert samples[key("lockstep_agent_up", run="run-a", rank="1")] == 0


def test_failures_of_an_agent_are_counted_over_its_attempts(node: Node, make_ring):
    """The count in its word grows within an attempt, and begins at 0 in the next; the counter never falls."""
    failures = key("lockstep_agent_failures_total", run="run-a", rank="0")
    ring = make_ring(attempt=1)
    assert node.samples()[failures] == 0
    for count in (2, 3):
        ring.word(layout.WORD_FAILURES, count)
        assert node.samples()[failures] == count
    again = make_ring(attempt=1)
    again.word(layout.WORD_FAILURES, 4)
    assert node.samples()[failures] == 4
    make_ring(attempt=2).word(layout.WORD_FAILURES, 1)
    assert node.samples()[failures] == 5


def test_http_refusals_are_shown_by_status(node: Node):
    """Guessing passwords shows in a rate."""
    samples = samples_of(node.snapshot(http_refusals={"401": 3, "403": 1}))
    assert samples[key("lockstep_exporter_http_refusals_total", code="401")] == 3
    assert samples[key("lockstep_exporter_http_refusals_total", code="403")] == 1


def test_a_snapshot_does_not_change(node: Node, make_ring):
    """What a scrape renders is the moment at which the snapshot was taken."""
    ring = make_ring()
    ring.write(record(0))
    snapshot = node.snapshot()
    before = render(NodeCollector(snapshot), "text")
    ring.write(record(1))
    node.counts.lost["torn"] += 1
    node.snapshot()
    assert render(NodeCollector(snapshot), "text") == before


def test_both_formats_agree(node: Node, make_ring):
    """OpenMetrics carries the same samples, ends as it must, and has no creation times."""
    make_ring(hostname='we"ird\\name').write(record(0))
    snapshot = node.snapshot()
    text = render(NodeCollector(snapshot), "openmetrics").decode()
    assert text.endswith("# EOF\n")
    found = {(s.name, *sorted(s.labels.items())): s.value for f in parse_openmetrics(text) for s in f.samples}
    assert found == samples_of(snapshot)


@pytest.mark.servers
def test_promtool_has_no_objection(node: Node, make_ring):
    """Prometheus's own linter accepts the text exposition."""
    for rank in range(8):
        make_ring(rank=rank).write(record(0, tokens=100, tp_wait_ns=5, tp_bytes=6, tp_count=1))
    page = render(NodeCollector(node.snapshot()), "text")
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_operations_that_an_inspector_timed(node: Node, make_ring):
    """By communicator and operation, in base units; what the exporter gave up and could not read next to them."""
    make_ring().write(record(0))
    totals = CollectiveTotals(
        count=3, time_ns=6_000_000, size_bytes=3 << 20, bus_bytes=5e6, arrivals=2, arrival_wait_ns=10**9
    )
    status = InspectorStatus(
        lines={"read": 3, "malformed": 1, "foreign": 0},
        dropped_bytes=7,
        lost_operations=2,
        ranks={("run-a", 0): {("dp", "AllReduce"): totals}},
    )
    samples = samples_of(node.snapshot(inspector=status))
    labels = {"run": "run-a", "rank": "0", "communicator": "dp", "operation": "AllReduce"}
    expected = {
        "operations_total": 3,
        "operation_time_seconds_total": 0.006,
        "operation_bytes_total": 3 << 20,
        "operation_bus_bytes_total": 5e6,
        "last_arrivals_total": 2,
        "last_arrival_wait_seconds_total": 1.0,
    }
    assert {name: samples[key(f"lockstep_nccl_{name}", **labels)] for name in expected} == pytest.approx(expected)
    assert samples[key("lockstep_exporter_inspector_lines_total", outcome="malformed")] == 1
    assert samples[key("lockstep_exporter_inspector_dropped_bytes_total")] == 7
    assert samples[key("lockstep_exporter_inspector_lost_operations_total")] == 2


def test_time_in_asynchronous_collectives_is_the_inspectors(node: Node, make_ring):
    """What the agent knows of some collectives only is the shorter time; a kind that it does not know at all is shown."""
    ring = make_ring()
    ring.write(wanted_step(0, 0, 1))
    data, tensor = {(4, 0): 80_000_000}, {(2, 0): 1_000_000}
    status = InspectorStatus(times_ns={("run-a", 0): {**data, **tensor}})
    node.samples()
    rank_state = node.rings.runs["run-a"].ranks[0]
    rank_state.groups = (
        GroupInfo(kind="dp", name="data", ranks=[[0, 4, 1]]),
        GroupInfo(kind="tp", name="tensor", ranks=[[0, 2, 1]]),
    )
    rank_state.totals.add(table(record(1, tp_comm_ns=50_000_000)), OFFSET_NS)
    samples = samples_of(node.snapshot(inspector=status))
    found = {
        kind: samples.get(key("lockstep_collective_time_seconds_total", run="run-a", rank="0", domain_kind=kind))
        for kind in ("dp", "tp", "pp")
    }
    assert found == {"dp": 0.08, "tp": 0.05, "pp": None}
