"""The exposition against the catalogue."""

import re
import subprocess
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.collector import SnapshotCollector
from coordinator.decide.incidents import Prediction
from coordinator.fleet.history import Subject, SubjectRecord
from coordinator.record.earlier_attempts import EarlierAttempts
from coordinator.snapshot import RunSnapshot, Snapshot, StepHistogram, Suspect
from lockstep.contracts.finding import Advice
from lockstep.contracts.limits import SUSPECTS_MAX
from lockstep.contracts.metrics import (
    CATALOGUE,
    CAUSES,
    EXPECTED_STATES,
    FRAME_VERDICTS,
    LOST_REASONS,
    PROFILE_STATES,
    REJECTED_REASONS,
    RUN_STATES,
)
from lockstep.serving.exposition import render
from lockstep.serving.fault_isolation import OUTCOMES
from lockstep.serving.process import OwnProcess
from tests.coordinator.evidence.deviations import EVIDENCE
from tests.coordinator.test_store import incident

HANG = incident(2, kind="hang", cause="unknown", ranks=(2, 3), domain=("tp", "tp0"), excess_seconds=9.5)
NAME = "lockstep_incident_silence_seconds"
PROCESS = OwnProcess().read()
ADVICE = tuple(Advice(suggestion="a", how="b", predicted_gain_ratio=gain, source="c") for gain in (None, 0.125, 0.25))
NAMED = (SubjectRecord(subject=Subject("node", "n17"), sightings=(), recent=3),)
OURS = [metric for metric in CATALOGUE if metric.source != "exporter"]


def rendered(snapshot, form):
    return render(SnapshotCollector(snapshot), form)


def run_snapshot(name="job", **more):
    histogram = StepHistogram.empty()
    for seconds in (0.1, 0.1, 0.3, 100.0):
        histogram.observe(seconds)
    suspect = Suspect(rank=2, hostname="h", domain_kind="dp", cause="compute", excess_ratio=0.5)
    values = {
        "run": name,
        "state": "diagnosed",
        "world_size": 4,
        "ranks_reporting": 4,
        "ranks_blind": 0,
        "step": 80,
        "last_step_unix_s": 1.5e9,
        "recent_step_seconds": 0.3,
        "baseline_step_seconds": 0.1,
        "fluctuating": True,
        "slow_ranks": 1,
        "suspects": (suspect,),
        "incidents": (
            incident(1, function="train.py(10): forward", root_cause="gc", advice=ADVICE, machine=EVIDENCE),
            HANG,
        ),
        "incidents_total": 3,
        "lost_device_seconds": 4.5,
        "profiles": {"requested": 2},
        "step_counts": tuple(histogram.counts),
        "step_sum_seconds": histogram.sum_seconds,
        "expected_state": "known",
        "expected_step_seconds": 0.25,
        "expected_error_ratio": 0.05,
        "earlier": EarlierAttempts(match="name", runs=("job",), attempts=2, step_seconds=0.125, slowdown_ratio=-0.2),
        "mirrored_alarms": {"rank": 2, "replica": 0, "stage": 0, "group": 1},
        "memory_remaining_seconds": 900.0,
        "imbalance_ratios": {"stage": 0.1, "replica": 0.05, "work": 0.0},
    }
    return RunSnapshot(**(values | more))


def snapshot(*runs):
    return Snapshot(
        runs=runs,
        messages_received={"steps": 5, "announce": 0, "answer": 0, "summary": 0, "alive": 0},
        messages_rejected={"topic": 0, "version": 0, "malformed": 1},
        records_rejected=dict.fromkeys(REJECTED_REASONS, 0),
        records_lost=dict.fromkeys(LOST_REASONS, 0),
        records_evaluated=0,
        frames=dict.fromkeys(FRAME_VERDICTS, 0),
        frames_unsettled=0,
        inputs_dropped=dict.fromkeys(OUTCOMES, 0),
        leads=True,
        peers=0,
        is_connected=True,
        nodes_alive=1,
        detections=10,
        detection_seconds=0.01,
        last_detection_unix_s=1.5e9,
        policy_changes={"api": 2, "file": 0},
        reload_ok=False,
        reload_unix_s=1.4e9,
        version="0.1.0",
        fleet=NAMED,
        process=PROCESS,
    )


def samples(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_types_helps_and_labels_are_the_catalogues():
    """Every family of the catalogue is there, as the catalogue writes it, and no other."""
    families = list(text_string_to_metric_families(rendered(snapshot(run_snapshot()), "text").decode()))
    by_name = {family.name: family for family in families}
    assert by_name.keys() == {metric.name.removesuffix("_total") for metric in OURS}
    for metric in OURS:
        family = by_name[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels == {frozenset(metric.labels)}, metric.name


def test_the_root_cause_and_the_best_advice_of_an_incident():
    """What a capture named, and what acting on it would give back; an incident without a predicted gain has none."""
    found = samples(rendered(snapshot(run_snapshot()), "text").decode())
    infos = [dict(labels) for name, labels in found if name == "lockstep_incident_info"]
    assert {info["root_cause"] for info in infos if info["function"]} == {"gc"}
    gains = [value for (name, _), value in found.items() if name == "lockstep_incident_predicted_gain_ratio"]
    assert gains == [0.25]


def test_the_host_of_an_incident_comes_with_it():
    """A page needs no series of the rank itself, which may have ended before its first scrape; unknown is empty."""
    incidents = (incident(1, ranks=(2,)), HANG, replace(HANG, id="job-3", scope="job", ranks=()))
    found = samples(rendered(snapshot(run_snapshot(incidents=incidents, hostnames={2: "h" * 300})), "text").decode())
    infos = [dict(labels) for name, labels in found if name == "lockstep_incident_info"]
    hosts = {(info["incident"], info["rank"]): info["hostname"] for info in infos}
    assert hosts == {("job-1", "2"): "h" * 128, ("job-2", "2"): "h" * 128, ("job-2", "3"): "", ("job-3", ""): ""}


def test_the_gain_is_the_models_where_there_is_one():
    """One meaning, one series: a model goes before the advice's breakdown, and what neither can give is left out."""
    prediction = Prediction(gain_ratio=0.4, faulty_step_seconds=0.5, repaired_step_seconds=0.3, error_band_ratio=0.05)
    incidents = (incident(1, advice=ADVICE, prediction=prediction), incident(2, advice=ADVICE), incident(3, advice=()))
    found = samples(rendered(snapshot(run_snapshot(incidents=incidents)), "text").decode())
    name = "lockstep_incident_predicted_gain_ratio"
    gains = {dict(labels)["incident"]: value for (sample, labels), value in found.items() if sample == name}
    assert gains == {"job-1": 0.4, "job-2": 0.25}


def test_enumerated_labels_are_always_there():
    """States, causes and outcomes are exported with 0 before they ever happen."""
    found = samples(rendered(snapshot(run_snapshot()), "text").decode())
    for name, label, values in (
        ("lockstep_run_state", "state", RUN_STATES),
        ("lockstep_run_incidents_open", "cause", CAUSES),
        ("lockstep_run_profiles_total", "state", PROFILE_STATES),
        ("lockstep_run_expected_state", "state", EXPECTED_STATES),
    ):
        got = {dict(labels)[label]: value for (sample, labels), value in found.items() if sample == name}
        assert got.keys() == set(values)
    assert found["lockstep_run_state", (("run", "job"), ("state", "diagnosed"))] == 1
    assert found["lockstep_run_incidents_open", (("cause", "compute"), ("run", "job"))] == 1


def test_what_is_not_known_is_left_out_and_not_zero():
    """A run without a step has no step, and a coordinator without a detection no time of one."""
    names = ("step", "last_step_unix_s", "recent_step_seconds", "baseline_step_seconds")
    bare = run_snapshot(**dict.fromkeys((*names, "expected_step_seconds", "expected_error_ratio")))
    text = rendered(snapshot(bare), "text").decode()
    assert "lockstep_run_step{" not in text
    assert "lockstep_run_baseline_step_duration_seconds{" not in text
    assert "lockstep_run_expected_step" not in re.sub("(?m)^#.*$", "", text)


def test_a_hang_is_exported_by_the_ranks_that_have_not_arrived():
    """Each of them with the silence so far; a hang that names no one is one series without a rank."""
    without_ranks = replace(HANG, id="job-3", scope="job", ranks=(), domain=None)
    found = samples(rendered(snapshot(run_snapshot(incidents=(HANG, without_ranks, incident(1)))), "text").decode())
    rows = [dict(labels) | {"value": v} for (name, labels), v in found.items() if name == NAME]
    assert sorted((row["rank"], row["domain_kind"], row["value"]) for row in rows) == [
        ("", "", 9.5),
        ("2", "tp", 9.5),
        ("3", "tp", 9.5),
    ]
    many = replace(HANG, ranks=tuple(range(10_000)))
    found = samples(rendered(snapshot(run_snapshot(incidents=(many,))), "text").decode())
    assert sum(name == NAME for name, _ in found) == SUSPECTS_MAX


def test_a_forgotten_run_leaves_no_series():
    """The next scrape knows nothing of it."""
    assert 'run="job"' in rendered(snapshot(run_snapshot()), "text").decode()
    assert "run=" not in rendered(snapshot(), "text").decode()


def test_the_histogram_is_cumulative():
    """Buckets count what is not longer; the sum shows what +Inf hides."""
    found = samples(rendered(snapshot(run_snapshot()), "text").decode())
    name = "lockstep_run_step_duration_seconds"
    assert found[f"{name}_bucket", (("le", "0.1"), ("run", "job"))] == 2
    assert found[f"{name}_bucket", (("le", "60.0"), ("run", "job"))] == 3
    assert found[f"{name}_count", (("run", "job"),)] == 4
    assert found[f"{name}_sum", (("run", "job"),)] == pytest.approx(100.5)


def test_series_do_not_grow_with_the_ranks():
    """However many ranks an incident names, few are exported one by one."""
    wide = run_snapshot(incidents=tuple(incident(n, ranks=tuple(range(10_000))) for n in range(50)))
    found = samples(rendered(snapshot(wide), "text").decode())
    assert sum(name == "lockstep_incident_info" for name, _ in found) <= 2 * SUSPECTS_MAX


@pytest.mark.servers
@pytest.mark.parametrize("runs", [0, 2])
def test_promtool_has_no_complaint(runs):
    """Prometheus's own linter accepts the page."""
    page = rendered(snapshot(*(run_snapshot(f"job{n}") for n in range(runs))), "text")
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_twenty_runs_are_a_small_page():
    """Twenty runs are a few thousand lines, whatever their size."""
    page = rendered(snapshot(*(run_snapshot(f"job{n}") for n in range(20))), "text")
    assert page.count(b"\n") < 2500


def test_openmetrics_ends_as_it_must():
    """The other format is complete."""
    assert rendered(snapshot(run_snapshot()), "openmetrics").endswith(b"# EOF\n")
