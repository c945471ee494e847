"""A recorded log gives the incidents that the live coordinator gave, and nothing in a log can silence it."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios.job import Fault, Interruptions
from benchmarks.scenarios.job import Scenario as Job
from benchmarks.scenarios.model import generate as generate_job
from coordinator.record import steplog
from coordinator.record.backtest import backtest, to_line, topology_of, world_size_of
from coordinator.record.steplog import StepLog
from coordinator.settings.policy import Policy
from lockstep.contracts.domains import Domain
from lockstep.contracts.errors import ConfigError, MalformedError

POLICY = Policy()
SLOW = Fault(cause="data", ranks=(5,), ratio=0.1, begin=60, end=100)


def job(**changed):
    """Return 130 steps of 8 ranks; rank 5 waits for its data from step 60 to before 100."""
    return Job(**({"name": "job", "degrees": "tp=2,dp=4", "seed": 4, "steps": 130, "faults": (SLOW,)} | changed))


def replayed(log, degrees="tp=2,dp=4", **more):
    """Return the incidents of a log as JSON objects."""
    outcome = backtest(log, topology_of(world_size_of(degrees, log), degrees), POLICY, **more)
    return [to_line(incident) for incident in outcome.incidents.values()]


def test_a_slow_rank_is_printed_with_all_that_a_reader_needs():
    """Rank, cause, domain, begin, naming and end, slowdown and loss, and the evidence in words."""
    (line,) = replayed(generate_job(job()).log(run="night"))
    assert {name: line[name] for name in ("run", "kind", "cause", "scope", "ranks", "domain")} == {
        "run": "night",
        "kind": "slow_rank",
        "cause": "data",
        "scope": "rank",
        "ranks": [5],
        "domain": {"kind": "dp", "id": "dp1"},
    }
    assert abs(line["onset_step"] - 60) <= 2
    assert 61 <= line["detected_step"] <= 63
    assert 100 < line["closed_step"] < 125
    assert line["lost_device_seconds"] == pytest.approx(40 * 7 * 0.1 * job().own_seconds, rel=0.3)
    assert any("rank 5 works" in each for each in line["evidence"])


def test_the_order_of_rows_does_not_matter(tmp_path):
    """A log whose rows were shuffled, read from its file, reports the same."""
    log = generate_job(job()).log()
    shuffled = np.random.default_rng(2).permutation(log.count)
    steplog.write(StepLog(log.run, {name: values[shuffled] for name, values in log.columns.items()}), tmp_path / "log")
    assert replayed(steplog.read(tmp_path / "log")[0]) == replayed(log)


def test_optional_columns_may_be_absent():
    """Without receipt, bytes, tokens, flags and bounds the rank is still found."""
    lasting = job(steps=100, faults=(replace(SLOW, end=None),))
    (line,) = replayed(generate_job(lasting).log(optional=False))
    assert (line["ranks"], line["cause"], line["closed_step"]) == ([5], "data", None)
    assert line["slowdown_ratio"] == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("degrees", ["", "dp=8"])
def test_records_of_a_job_of_one_group_call_it_world(degrees):
    """The step log of a plain data-parallel job has `world_wait_ns` and no `dp_wait_ns`: its incident is the same."""
    log = generate_job(job(degrees="dp=8")).log()
    waits_ns = log.columns.pop("world_wait_ns") + log.columns["dp_wait_ns"]
    columns = {name.replace("dp_", "world_"): values for name, values in log.columns.items()}
    (line,) = replayed(StepLog(log.run, columns | {"world_wait_ns": waits_ns}), degrees)
    assert (line["kind"], line["ranks"], line["onset_step"], line["domain"]["kind"]) == ("slow_rank", [5], 60, "dp")


def test_restarts_and_pauses_are_no_incidents_and_lose_no_step():
    """A rollback after minutes, checkpoints and evaluations: every step of both attempts is evaluated, nothing is reported."""
    restarted = job(faults=(), steps=200, interruptions=Interruptions(restart_at=120, missing=0.0, late=0.0))
    recording = generate_job(restarted)
    outcome = backtest(recording.log(), recording.topology, POLICY)
    assert outcome.evaluated_steps == 200
    assert outcome.incidents == {}
    assert sum(outcome.rejected.values()) == 0


def test_late_and_missing_records_are_counted_not_fatal():
    """What arrives after its step was evaluated is refused by reason, as live."""
    recording = generate_job(job(degrees="dp=8", interruptions=Interruptions(late=0.02, missing=0.01)))
    outcome = backtest(recording.log(), recording.topology, POLICY)
    assert outcome.rejected["late"] > 10
    assert [incident.ranks for incident in outcome.incidents.values()] == [(5,)]


@pytest.mark.parametrize("lie", ["clock", "frozen step", "account"])
def test_a_lying_rank_silences_no_one(tmp_path, lie):
    """A clock an hour off, a step counter that stands still, parts beyond the step: the others are evaluated without."""
    log = generate_job(job()).log(optional=False)
    liar = log.columns["rank"] == 2
    if lie == "clock":
        log.columns["start_ns"][liar] += 3600 * 10**9
    elif lie == "frozen step":
        log.columns["step"][liar] = 7
    else:
        log.columns["compute_ns"][liar] *= 2
    steplog.write(log, tmp_path / "log.parquet")
    (line,) = replayed(steplog.read(tmp_path / "log.parquet")[0])
    assert line["ranks"] == [5]


def test_a_whole_node_is_a_node():
    """Eight ranks of one host that turn slow together are one incident of scope node; four of them are ranks."""
    slow = Fault(cause="host", ranks=tuple(range(8, 16)), ratio=0.1, begin=40)
    sixteen = {"degrees": "tp=2,dp=16", "seed": 6, "steps": 60}
    (line,) = replayed(generate_job(job(**sixteen, faults=(slow,))).log(), "tp=2,dp=16")
    assert (line["scope"], line["ranks"]) == ("node", list(range(8, 16)))
    half = replace(slow, ranks=slow.ranks[:4])
    (line,) = replayed(generate_job(job(**sixteen, faults=(half,))).log(), "tp=2,dp=16")
    assert (line["scope"], line["ranks"]) == ("rank", list(range(8, 12)))


def test_a_slow_link_is_named_by_its_group():
    """A tensor group whose transfers take twice as long: cause link, scope group, and no rank is blamed."""
    slow = Fault(cause="link", ranks=(2,), ratio=1.0, kinds=("tp",), wanted="group", begin=60)
    (line,) = replayed(generate_job(job(faults=(slow,))).log())
    assert (line["kind"], line["cause"], line["scope"], line["ranks"]) == ("slow_link", "link", "group", [2, 3])
    assert line["domain"] == {"kind": "tp", "id": "tp1"}


def test_a_slower_job_is_named_as_a_job():
    """When every rank waits for data long enough, the incident is the job's."""
    slow = Fault(cause="data", ranks=tuple(range(8)), ratio=0.2, wanted="job", begin=60)
    lines = replayed(generate_job(job(steps=200, faults=(slow,))).log())
    assert [(line["scope"], line["cause"], line["closed_step"]) for line in lines] == [("job", "data", None)]


def test_a_log_that_does_not_fit_its_domains_is_refused():
    """Other ranks than the domains have, or no waits in a kind that the job has: named, not guessed."""
    log = generate_job(job(steps=3)).log()
    with pytest.raises(MalformedError, match="rank in the log of run: got 0 to 7, expected 0 to 15"):
        replayed(log, "tp=2,dp=8")
    with pytest.raises(MalformedError, match="got 0 to 7, expected 0 to 3"):
        replayed(log, "dp=4")
    del log.columns["dp_wait_ns"]
    with pytest.raises(MalformedError, match="got no dp_wait_ns"):
        replayed(log)


def test_an_empty_log_gives_no_incident():
    """No row, no incident."""
    log = generate_job(job(steps=1)).log()
    empty = StepLog("run", {name: values[:0] for name, values in log.columns.items()})
    assert backtest(empty, topology_of(8, "dp=8"), POLICY).incidents == {}


def test_groups_given_by_hand_replace_those_of_their_kind():
    """Degrees give the other kinds; with neither, all ranks are one data-parallel domain."""
    by_hand = [Domain("dp", "left", (0, 1, 2, 3)), Domain("dp", "right", (4, 5, 6, 7))]
    made = topology_of(8, "tp=2,dp=4", groups=by_hand)
    assert [domain.name for domain in made.domains if domain.kind == "dp"] == ["left", "right"]
    assert sum(domain.kind == "tp" for domain in made.domains) == 4
    assert [domain.ranks for domain in topology_of(3, "").domains] == [(0, 1, 2)]
    with pytest.raises(ConfigError, match="group right: got rank 7, expected 0 to 3"):
        topology_of(4, "tp=2,dp=2", groups=by_hand)
