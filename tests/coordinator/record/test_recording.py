"""What a coordinator recorded gives the incidents that it reported live: each line, each id, whatever happened on the way."""

import asyncio
from dataclasses import asdict, replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.scenarios.job import Fault, Imbalance, Interruptions, Noise, Scenario
from benchmarks.scenarios.model import generate
from coordinator.intake.timeline import StepTimeline
from coordinator.intake.views import VIEWS
from coordinator.record import steplog
from coordinator.record.backtest import to_line, topology_of
from coordinator.record.journal import CoordinatorStart
from coordinator.record.recorder import Recorder
from coordinator.record.recording import parts_of, read_parts
from coordinator.record.replay import replay
from coordinator.settings.policy import Policy
from coordinator.store import Store
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.records import COMPUTE_PHASES, MISSING, RECORD_FIELDS, Flag
from tests.coordinator.live import NS, Live, batch_of
from tests.support.batches import with_columns

START_S = 1_790_000_000.0
SLOW = Fault(cause="data", ranks=(5,), ratio=0.1, begin=60, end=100)
JOB = Scenario(name="job", degrees="tp=2,dp=4", seed=4, steps=130, faults=(SLOW,))
START = CoordinatorStart(policy=Policy(), domains="", order="tp-cp-ep-dp-pp")


def recorder(directory, start=START, **more):
    return Recorder(directory, start, 1_789_999_999.0, **({"quota_bytes": 1 << 30} | more))


def flush(*recorders):
    for each in recorders:
        assert asyncio.run(each.flush())


def replay_lines(directory, shape=None):
    replayed = replay(read_parts(parts_of(directory)), shape)
    return [to_line(each, nodes=replayed.nodes.get(each.run)) for each in replayed.incidents.values()], replayed


def profiled(log, steps=range(63, 70), ranks=(5, 1)):
    """Flag steps of some ranks as a capture would, and make them half a second longer for everybody."""
    marked = np.isin(log.columns["step"], list(steps))
    log.columns["flags"][marked & np.isin(log.columns["rank"], ranks)] |= int(Flag.PROFILED)
    return log


SCENARIOS = {
    "slow rank": JOB,
    "captured": JOB,
    "restart": replace(JOB, steps=200, interruptions=Interruptions(restart_at=80, rollback_steps=15)),
    "late and missing": replace(JOB, interruptions=Interruptions(late=0.05, missing=0.02)),
    "pipeline": replace(JOB, degrees="tp=2,dp=2,pp=2", imbalance=Imbalance(last_stage=0.25), seed=9),
    "slow link": replace(
        JOB, faults=(Fault(cause="link", ranks=(2,), ratio=1.0, kinds=("tp",), wanted="group", begin=60),)
    ),
    "noisy": replace(JOB, noise=Noise(step=0.02, stall_rate=1e-3, stall_memory=0.3)),
    "two nodes": replace(
        JOB, degrees="dp=16", faults=(Fault(cause="host", ranks=tuple(range(8, 16)), ratio=0.1, begin=40),)
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_messages_give_the_same_incidents(tmp_path, name):
    """Parts of many sizes, captures answered or refused, late records: ids, words, steps and losses are the live ones."""
    made = generate(SCENARIOS[name])
    log = profiled(made.log(run="night")) if name == "captured" else made.log(run="night")
    tap = recorder(tmp_path)
    live = Live(tap=tap, refuses=(1,) if name == "noisy" else ())
    for share in (0.0, 0.37, 0.61):
        live.play(
            log,
            made.topology,
            first=share,
            last={0.0: 0.37, 0.37: 0.61, 0.61: 1.0}[share],
            gathered=name in ("two nodes", "restart"),
        )
        flush(tap)
    lines, replayed = replay_lines(tmp_path)
    assert lines == live.lines()
    assert dict(replayed.rejected) == {reason: count for reason, count in live.runs.rejected.items() if count}
    assert replayed.evaluated_steps == live.runs.detection.steps
    assert (len(lines) > 0) is bool(SCENARIOS[name].faults)


def test_two_runs_under_one_coordinator_are_distinguished(tmp_path):
    """One recording holds all runs; each keeps its own incidents."""
    tap = recorder(tmp_path)
    live = Live(tap=tap)
    for run, seed in (("day", 4), ("night", 5)):
        made = generate(replace(JOB, seed=seed))
        live.play(made.log(run=run), made.topology)
    flush(tap)
    lines, _ = replay_lines(tmp_path)
    assert lines == live.lines()
    assert {line["run"] for line in lines} == {"day", "night"}


def test_a_coordinator_that_restarts_is_replayed_through(tmp_path):
    """Two coordinators on one state and one recording: the second one's incidents go on from the first one's."""
    made = generate(JOB)
    log = made.log(run="night")
    store = Store(str(tmp_path / "state"))
    first = recorder(tmp_path / "log")
    live = Live(tap=first, store=store)
    live.play(log, made.topology, last=0.5)
    live.end()
    flush(first)
    second = recorder(tmp_path / "log", replace(START, memories=store.load_runs()))
    heir = live.followed_by(store, tap=second)
    heir.play(log, made.topology, first=0.5)
    flush(second)
    store.close()
    lines, _ = replay_lines(tmp_path / "log")
    assert lines == heir.lines()
    assert len(lines) == 1


def test_other_thresholds_are_replayed(tmp_path):
    """What an operator changed while the run went on holds from the same step on in the replay."""
    made = generate(JOB)
    log = made.log(run="night")
    tap = recorder(tmp_path)
    live = Live(tap=tap)
    live.play(log, made.topology, last=0.3)
    deaf = replace(Policy(), excess=replace(Policy().excess, floor_ratio=0.5))
    live.perform(live.runs.set_policies(lambda _: deaf, log.arrival_ns[0] / 1e9 + 30), log.arrival_ns[0] / 1e9 + 30)
    live.play(log, made.topology, first=0.3)
    flush(tap)
    lines, _ = replay_lines(tmp_path)
    assert lines == live.lines()
    assert [line["kind"] for line in lines if line["kind"] == "slow_rank"] == []


def test_a_run_that_begins_under_other_thresholds_is_evaluated_by_them(tmp_path):
    """The thresholds in force when a run was first seen are recorded with it."""
    made = generate(JOB)
    tap = recorder(tmp_path)
    deaf = replace(Policy(), excess=replace(Policy().excess, floor_ratio=0.5))
    live = Live(tap=tap, policy=deaf)
    live.play(made.log(run="night"), made.topology)
    flush(tap)
    assert replay_lines(tmp_path)[0] == live.lines()


def test_lost_parts_cost_what_they_held(tmp_path):
    """With parts missing in the middle or at the beginning the rest is still reported: the rank is found."""
    made = generate(replace(JOB, faults=(replace(SLOW, end=None),)))
    log = made.log(run="night")
    tap = recorder(tmp_path)
    live = Live(tap=tap)
    for number in range(10):
        live.play(log, made.topology, first=number / 10, last=(number + 1) / 10)
        flush(tap)
    parts = parts_of(tmp_path)
    for part in (parts[0], parts[6]):
        part.unlink()
    lines, _ = replay_lines(tmp_path)
    assert [(line["ranks"], line["cause"]) for line in lines if line["kind"] == "slow_rank"] == [([5], "data")]


def test_groups_by_hand_take_the_place_of_the_announced_ones(tmp_path):
    """The same degrees give the same answer; others are refused by name."""
    made = generate(JOB)
    tap = recorder(tmp_path)
    live = Live(tap=tap)
    live.play(made.log(run="night"), made.topology)
    flush(tap)
    lines, _ = replay_lines(tmp_path, lambda world: topology_of(world, "tp=2,dp=4"))
    assert [line["ranks"] for line in lines] == [[5]]
    with pytest.raises(ConfigError, match="expected tp\\*cp\\*dp\\*pp = world size 8"):
        replay_lines(tmp_path, lambda world: topology_of(world, "tp=2,dp=8"))


def test_records_that_lie_are_replayed_as_live(tmp_path):
    """Frozen counters, clocks years ahead, numbers at the edge of 64 bits, no times at all: counted alike, found alike."""
    made = generate(JOB)
    log = made.log(run="night")
    rng = np.random.default_rng(3)
    liar = np.flatnonzero(log.columns["rank"] == 2)
    edge = np.array([MISSING, -1, 0, 1 << 62, (1 << 63) - 1])
    for name in ("step", "start_ns", "duration_ns", "compute_ns", "dp_wait_ns", "tp_transfer_ns", "flags", "tokens"):
        chosen = rng.choice(liar, 20, replace=False)
        log.columns[name][chosen] = rng.choice(edge, 20)
    log.columns["received_ns"][liar] = log.columns["received_ns"][liar - 2]
    tap = recorder(tmp_path)
    live = Live(tap=tap)
    live.play(log, made.topology)
    flush(tap)
    lines, replayed = replay_lines(tmp_path)
    assert lines == live.lines()
    assert dict(replayed.rejected) == {reason: count for reason, count in live.runs.rejected.items() if count}
    assert replayed.rejected["impossible"] > 10
    assert [line["ranks"] for line in lines if line["kind"] == "slow_rank"] == [[5]]


def test_every_column_that_is_evaluated_is_recorded(tmp_path):
    """A record in which each field has a value of its own gives the same row of the timeline, live and recorded."""
    values = {name: 1000 + place for place, name in enumerate(RECORD_FIELDS)} | {"step": 0, "flags": 0}
    values |= {"device_step_ns": MISSING, "compute_ns": sum(values[f"{phase}_ns"] for phase in COMPUTE_PHASES)}
    parts = [name for name in RECORD_FIELDS if name.endswith("_wait_ns") or name in steplog.PART_COLUMNS]
    values |= {"start_ns": int(START_S) * NS, "end_ns": int(START_S) * NS + sum(values[name] for name in parts)}
    batch = batch_of(generate(JOB).log(), np.arange(8), "node0", START_S)
    full = with_columns(batch, {name: np.full(8, value) for name, value in values.items()})
    tap = recorder(tmp_path)
    tap.receive((full,), START_S)
    flush(tap)
    (kept,) = next(entry.what for entry in read_parts(parts_of(tmp_path)) if isinstance(entry.what, tuple))
    rows = []
    for each in (full, kept):
        timeline = StepTimeline(Policy().timeline)
        timeline.know(list(range(8)))
        timeline.ingest(each, START_S)
        rows += timeline.ready(START_S)
    live, recorded = map(asdict, rows)
    assert live["views"].keys() == {*VIEWS}
    np.testing.assert_equal(recorded, live)


@pytest.mark.parametrize("damage", ["truncated", "journal", "column"])
def test_a_damaged_part_is_named(tmp_path, damage):
    """A part that is cut short or was changed by another program is refused with its path, not half replayed."""
    tap = recorder(tmp_path)
    Live(tap=tap).play(generate(replace(JOB, steps=20)).log(), generate(replace(JOB, steps=20)).topology)
    flush(tap)
    (part,) = parts = parts_of(tmp_path)
    table, metadata = pq.read_table(part), pq.read_metadata(part).metadata
    if damage == "truncated":
        part.write_bytes(part.read_bytes()[:-100])
    else:
        if damage == "column":
            table = table.drop_columns(["arrival"])
        else:
            metadata = metadata | {b"lockstep.journal": b"AAAA"}
        with pq.ParquetWriter(part, table.schema, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(metadata)
    with pytest.raises(MalformedError, match=r"recording in .*steps-") as error:
        list(read_parts(parts))
    assert str(part) in str(error.value)


def test_what_is_no_recording_is_left_to_the_step_log(tmp_path):
    """A step log of another origin, an empty directory and a missing file are no recordings."""
    steplog.write(generate(replace(JOB, steps=3)).log(), tmp_path / "steps-1.parquet")
    assert parts_of(tmp_path) == []
    assert parts_of(tmp_path / "steps-1.parquet") == []
    assert parts_of(tmp_path / "absent") == []
