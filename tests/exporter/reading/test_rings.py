import logging
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from exporter.counts import ExporterCounters
from exporter.reading import rings as reading_rings
from exporter.reading.read_offsets import ReadOffsets
from exporter.reading.ring_file import RingFile
from exporter.reading.rings import Rings
from exporter.reading.silence import announcement, watch
from lockstep.accounting.step_record import built_steps
from lockstep.contracts import ring as layout
from lockstep.contracts import topics
from lockstep.contracts.capture import CaptureResult, result_to_json
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.limits import RANKS_PER_NODE_MAX, RUNS_PER_NODE_MAX
from lockstep.contracts.marks import MarkKind
from lockstep.contracts.records import MISSING, RECORD_INDEX, Flag
from tests.exporter.conftest import MS, NOW_NS, OFFSET_NS, open_descriptors, record

STALE_NS = 10**12


@pytest.fixture
def counts() -> ExporterCounters:
    return ExporterCounters()


@pytest.fixture
def rings(root: Path, counts: ExporterCounters):
    rings = Rings(root, counts, {})
    before = open_descriptors()
    yield rings
    opened = sum(rank_state.ring is not None for run in rings.runs.values() for rank_state in run.ranks.values())
    rings.close()
    assert open_descriptors() <= before + opened


def tick(rings: Rings) -> list:
    rings.scan(NOW_NS)
    return rings.read()


def steps_of(readings: list, rank: int = 0) -> list[int]:
    return [
        step
        for reading in readings
        if reading.rank == rank
        for step in reading.records[:, RECORD_INDEX["step"]].tolist()
    ]


def test_a_node_where_nothing_trains_has_no_runs(tmp_path: Path, counts: ExporterCounters):
    """A root that does not exist yet is normal."""
    rings = Rings(tmp_path / "nothing", counts, {})
    assert (tick(rings), rings.runs, counts.rejected["ring"]) == ([], {}, 0)


def test_records_come_with_wall_clock_times(rings: Rings, make_ring):
    """The ring's clock offset is added to begin and end of each step, and to nothing else."""
    make_ring().write(record(0))
    (reading,) = tick(rings)
    assert reading.records[0, RECORD_INDEX["start_ns"]] == OFFSET_NS + 1_000 * MS
    assert reading.records[0, RECORD_INDEX["end_ns"]] == OFFSET_NS + 1_100 * MS
    assert reading.records[0, RECORD_INDEX["data_ns"]] == 10 * MS


def test_a_refused_ring_is_logged_once_and_does_not_hurt_its_neighbours(rings: Rings, make_ring, counts, caplog):
    """A foreign file under a ring's name is one warning and one count, and the others are read."""
    good = make_ring(rank=0)
    foreign = good.path.with_name("1.ring")
    foreign.write_bytes(b"not a ring" * 10_000)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            good.write(record(step))
            assert steps_of(tick(rings)) == [step]
    assert counts.rejected["ring"] == 1
    assert [r for r in caplog.records if "1.ring" in r.getMessage()] == caplog.records
    assert len(caplog.records) == 1


def test_a_ring_of_an_older_version_gives_way_to_a_good_one(rings: Rings, make_ring, counts):
    """A refused file that is replaced by a ring is read."""
    older = make_ring(rank=0)
    os.pwrite(older.file, (99).to_bytes(4, "little"), 8)
    assert tick(rings) == []
    assert counts.rejected["ring"] == 1
    make_ring(rank=0).write(record(0))
    assert steps_of(tick(rings)) == [0]


def test_a_restarted_rank_is_a_new_attempt_and_loses_nothing(rings: Rings, make_ring):
    """The replaced ring is read to its end before the new one, and the counters go on."""
    old = make_ring(attempt=1)
    old.write(record(0))
    tick(rings)
    old.write(record(1))
    new = make_ring(attempt=2)
    new.write(record(0, step_ns=50 * MS))
    assert steps_of(tick(rings)) == [1, 0]
    rank_state = rings.runs["run-a"].ranks[0]
    assert (rank_state.header.attempt, rank_state.totals.steps, rank_state.totals.last_step) == (2, 3, 0)
    assert rank_state.totals.step_time_ns == 250 * MS


def test_a_ring_cut_under_us_stops_that_rank_only(rings: Rings, make_ring, counts):
    """A truncated file is counted once, and its neighbour goes on."""
    cut, good = make_ring(rank=0), make_ring(rank=1)
    cut.write(record(0))
    tick(rings)
    os.ftruncate(cut.file, 100)
    for step in range(3):
        good.write(record(step))
        assert steps_of(tick(rings), rank=1) == [step]
    assert counts.rejected["ring"] == 1


def test_impossible_records_are_dropped_and_counted(rings: Rings, make_ring, counts):
    """A step that ends before it began is refused, those around it are taken."""
    ring = make_ring()
    ring.write(record(0))
    ring.marks([(MS, MarkKind.STEP_END, 0, 0, MISSING)])
    ring.steps.step += 1
    ring.write(record(2))
    assert steps_of(tick(rings)) == [0, 2]
    assert counts.rejected["ring"] == 1
    assert rings.runs["run-a"].ranks[0].totals.steps == 2


def test_malformed_marks_are_counted_and_leave_their_step_incomplete(rings: Rings, make_ring, counts):
    """Of such a step only beginning and end are known; it is a warm-up, and the next one is whole."""
    ring = make_ring()
    ring.write(record(0))
    ring.marks([(1_100 * MS, 0x7FFF, 0, 0, 0)])
    ring.write(record(1))
    ring.write(record(2))
    (reading,) = tick(rings)
    assert steps_of([reading]) == [0, 1, 2]
    assert (counts.malformed_marks, counts.incomplete_steps, reading.lost) == (1, 1, {})
    flags, compute_ns = reading.records[:, RECORD_INDEX["flags"]], reading.records[:, RECORD_INDEX["compute_ns"]]
    assert flags.tolist() == [Flag.WARM_UP, Flag.WARM_UP, 0]
    assert compute_ns.tolist() == [50 * MS, MISSING, 50 * MS]


def test_lost_records_are_counted_by_reason(rings: Rings, make_ring, counts):
    """Overwritten and torn blocks each have their own count, and so have the steps that lay in them."""
    ring = make_ring()
    ring.write(record(0))
    tick(rings)
    for step in range(1, 30):
        ring.write(record(step))
    steps = steps_of(tick(rings))
    assert counts.lost_blocks == {"lapped": steps[0] - 2, "torn": 0}  # numbers are known from the end of a step on
    assert (counts.lost["lapped"], counts.lost["torn"]) == (steps[0] - 1, 0)
    assert steps == list(range(steps[0], 30))
    for step in range(30, 35):
        ring.write(record(step))
    ring.tear(31)
    ring.tear(32)
    (reading,) = tick(rings)
    assert steps_of([reading]) == [30, 34]
    assert (counts.lost_blocks["torn"], counts.lost["torn"], reading.lost) == (2, 3, {"torn": 3})


def test_a_job_on_each_device_of_a_node_is_followed(rings: Rings, make_ring):
    """Sixteen trainings of one device each, as a search over hyperparameters has them, are sixteen runs."""
    for number in range(16):
        make_ring(run=f"trial-{number}").beat(1)
    tick(rings)
    assert (len(rings.runs), rings.omitted) == (16, 0)


def test_more_runs_than_the_limit_are_omitted_the_dead_ones_first(rings: Rings, make_ring):
    """Live runs are followed before silent ones, and what is left out is counted by its live ranks."""
    for number in range(RUNS_PER_NODE_MAX):
        make_ring(run=f"dead-{number}").beat(1)
    make_ring(run="live")
    tick(rings)
    assert "live" in rings.runs
    assert (len(rings.runs), rings.omitted) == (RUNS_PER_NODE_MAX, 0)
    for number in range(RUNS_PER_NODE_MAX):
        make_ring(run=f"late-{number}")
    tick(rings)
    assert "live" in rings.runs
    assert (len(rings.runs), rings.omitted) == (RUNS_PER_NODE_MAX, 1)


def test_more_ranks_than_the_limit_are_omitted(rings: Rings, make_ring):
    """The first ranks are followed, the rest is counted."""
    for rank in range(RANKS_PER_NODE_MAX + 2):
        make_ring(rank=rank, world_size=100)
    tick(rings)
    assert (len(rings.runs["run-a"].ranks), rings.omitted) == (RANKS_PER_NODE_MAX, 2)


def test_names_that_are_no_runs_are_left_alone(rings: Rings, root: Path, make_ring):
    """Hidden folders, links and files in the root are no runs."""
    make_ring()
    (root / ".hidden").mkdir()
    (root / "link").symlink_to(root / "run-a")
    (root / "file").write_text("")
    tick(rings)
    assert list(rings.runs) == ["run-a"]


def test_a_vanished_run_is_handed_over_with_its_finished_ranks(rings: Rings, make_ring):
    """A folder that is removed ends the run; what finished before stays announced, what was killed does not."""
    finished, killed = make_ring(rank=0), make_ring(rank=1)
    tick(rings)
    finished.write(record(0))
    finished.state(layout.STATE_FINISHED)
    shutil.rmtree(killed.path.parent)
    assert steps_of(tick(rings)) == [0]
    (run,) = rings.take_gone()
    assert [(info.rank, info.state) for info in run.announced()] == [(0, "finished")]
    assert (rings.runs, rings.take_gone()) == ({}, [])


def test_only_ranks_that_give_a_sign_of_life_are_shown(rings: Rings, make_ring):
    """Finished, silent and vanished ranks have no series; one from before a reboot neither."""
    alive, finished, silent, future, vanished = (make_ring(rank=rank) for rank in range(5))
    finished.state(layout.STATE_FINISHED)
    silent.beat(NOW_NS - STALE_NS - 10**10)
    future.beat(NOW_NS + STALE_NS + 10**10)
    tick(rings)
    vanished.path.unlink()
    tick(rings)
    assert [rank_state.rank for rank_state in rings.runs["run-a"].shown(NOW_NS, STALE_NS)] == [alive.header.rank]


def test_a_failed_agent_is_shown_while_its_run_lives(rings: Rings, make_ring):
    """An agent that took itself out is silent by nature: it is shown until no one of its run lives."""
    failed, alive = make_ring(rank=0), make_ring(rank=1)
    failed.state(layout.STATE_FAILED)
    failed.beat(NOW_NS - 2 * STALE_NS)
    tick(rings)
    run = rings.runs["run-a"]
    assert [rank_state.rank for rank_state in run.shown(NOW_NS, STALE_NS)] == [0, 1]
    alive.beat(NOW_NS - 2 * STALE_NS)
    tick(rings)
    assert run.shown(NOW_NS, STALE_NS) == []


def test_saved_offsets_belong_to_one_attempt(root: Path, make_ring, counts):
    """A new reader goes on where the old one stopped, and reads a new attempt from its beginning."""
    same, other = make_ring(rank=0, attempt=5), make_ring(rank=1, attempt=5)
    for ring in (same, other):
        ring.write(record(0))
        ring.write(record(1))
    before = Rings(root, counts, {})
    assert steps_of(tick(before), 0) == [0, 1]
    saved = msgspec.json.decode(msgspec.json.encode(before.offsets()), type=ReadOffsets)
    before.close()
    same.write(record(2))
    make_ring(rank=1, attempt=6).write(record(0))
    rings = Rings(root, counts, saved)
    readings = tick(rings)
    assert (steps_of(readings, 0), steps_of(readings, 1)) == ([2], [0])
    assert rings.runs["run-a"].ranks[0].totals.steps == 1
    offsets = rings.offsets()["run-a"]
    assert [(offsets[rank].attempt, offsets[rank].last_step) for rank in (0, 1)] == [(5, 2), (6, 0)]
    rings.close()


def test_a_restarted_exporter_knows_where_a_rank_stands_before_its_next_step(root: Path, make_ring, counts):
    """Its last step is announced, although it is not counted again."""
    make_ring().write(record(0))
    before = Rings(root, counts, {})
    tick(before)
    rings = Rings(root, counts, before.offsets())
    before.close()
    assert tick(rings) == []
    totals = rings.runs["run-a"].ranks[0].totals
    assert (totals.steps, totals.last_step, totals.last_end_ns) == (0, 0, OFFSET_NS + 1_100 * MS)
    rings.close()


def test_a_ring_that_its_agent_writes_again_is_read_on(rings: Rings, make_ring):
    """The file of the same attempt under the same name: no step and no answer comes twice; the lost block is counted."""
    ring = make_ring()
    ring.answer(result_to_json(CaptureResult(request_id=1, state="accepted")))
    for step in range(3):
        ring.write(record(step))
    (reading,) = tick(rings)
    assert (steps_of([reading]), reading.answer is not None) == ([0, 1, 2], True)
    again = make_ring()  # as the agent does: without the blocks, and its sequence goes on
    again.answer(result_to_json(CaptureResult(request_id=1, state="accepted")))
    ring.write(record(3))
    ring.lose(record(4))
    again.continue_from(ring)
    for step in (5, 6):
        again.write(record(step))
    readings = tick(rings)
    assert (steps_of(readings), [reading.answer for reading in readings]) == ([3, 6], [None, None])
    assert rings.runs["run-a"].ranks[0].totals.steps == 5
    assert [reading.lost for reading in readings] == [{}, {"torn": 2}]


def test_answers_and_groups_are_taken_with_the_records(rings: Rings, make_ring, counts):
    """A look brings answer and groups; malformed ones are counted."""
    ring = make_ring(world_size=4)
    ring.groups([{"kind": "dp", "name": "dp0", "ranks": [[0, 4, 1]]}])
    ring.answer(result_to_json(CaptureResult(request_id=3, state="accepted")))
    (reading,) = tick(rings)
    assert reading.answer is not None
    assert [group.name for group in rings.runs["run-a"].groups()] == ["dp0"]
    ring.groups("nonsense")
    ring.answer("nonsense")
    assert tick(rings) == []
    assert (counts.rejected["ring"], counts.rejected["answer"]) == (1, 1)


def test_facts_are_announced_and_belong_to_their_attempt(rings: Rings, make_ring, counts):
    """What a rank runs on is in its announcement until a new attempt reports its own; malformed facts are counted."""
    ring = make_ring(attempt=1)
    tick(rings)
    run = rings.runs["run-a"]
    revision = run.revision
    facts = RankFacts(device="NVIDIA H200", device_kind="cuda", parameters=5, peak_flops_per_second=1e15)
    ring.facts(facts_to_json(facts))
    tick(rings)
    assert [info.facts for info in run.announced()] == [facts]
    assert run.revision > revision
    ring.facts({"device": "x" * 1000})
    tick(rings)
    assert counts.rejected["ring"] == 1
    assert [info.facts for info in run.announced()] == [facts]
    make_ring(attempt=2)
    tick(rings)
    assert [info.facts for info in run.announced()] == [None]


def test_the_revision_grows_only_when_there_is_news(rings: Rings, make_ring):
    """Heartbeats and steps announce nothing; a state does."""
    ring = make_ring()
    tick(rings)
    before = rings.runs["run-a"].revision
    ring.write(record(0))
    ring.beat(NOW_NS + MS)
    tick(rings)
    assert rings.runs["run-a"].revision == before
    ring.state(layout.STATE_FAILED)
    tick(rings)
    assert rings.runs["run-a"].revision > before


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (layout.WORD_HEARTBEAT, (1 << 64) - 1),
        (layout.WORD_STATE, 77),
        (layout.WORD_FLAGS, (1 << 64) - 1),
        (layout.WORD_ISSUES, (1 << 64) - 1),
        (layout.WORD_ISSUES + 1, (1 << 64) - 1),
    ],
)
def test_a_word_of_one_ring_costs_the_others_nothing(rings: Rings, make_ring, word: int, value: int):
    """Whatever one rank writes, its node announces itself in bytes that a coordinator takes, and reads the others."""
    bad, good = make_ring(rank=0), make_ring(rank=1)
    bad.groups([{"kind": "dp", "name": "dp0", "ranks": [[0, 2, 1]], "slot": 0}])
    tick(rings)
    bad.word(word, value)
    good.write(record(0))
    assert steps_of(tick(rings), 1) == [0]
    run = rings.runs["run-a"]
    for now_ns in (0, 10**18):  # the second: long without a record, so it states where its ranks stand
        watch(run, now_ns)
        message = announcement(run, "node-1")
        assert decode(topics.run_topic("run-a", topics.ANNOUNCE, "node-1"), encode(message)) == message


def test_flags_that_no_message_holds_are_no_flags(rings: Rings, make_ring, counts: ExporterCounters):
    """Each is a malformed mark, whose step is incomplete."""
    ring = make_ring()
    for step, flags in enumerate((-1, 1 << 32, (1 << 63) - 1)):
        ring.write(record(step, flags=flags))
    ring.write(record(3))
    (reading,) = tick(rings)
    assert reading.records[:, RECORD_INDEX["flags"]].tolist() == [*[Flag.WARM_UP] * 3, 0]
    assert (counts.malformed_marks, counts.incomplete_steps) == (3, 3)


class SurpriseError(Exception):
    """What no one expects."""


def surprise(rank: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make reading one rank's ring raise; return the list of ranks that were read."""
    original, read = RingFile.read, []

    def raising(self: RingFile, *given):
        read.append(self.header.rank)
        if self.header.rank == rank:
            raise SurpriseError("surprise")
        return original(self, *given)

    monkeypatch.setattr(RingFile, "read", raising)
    return read


def test_a_ring_that_surprises_is_left_alone_after_three_times(root, counts, make_ring, monkeypatch, caplog):
    """It costs no other ring a record, a line a minute, and is read again once its file is replaced."""
    make_ring(rank=0)
    good = make_ring(rank=1)
    rings = Rings(root, counts, {})
    with monkeypatch.context() as patch:
        read = surprise(0, patch)
        for step in range(10):
            good.write(record(step))
            assert steps_of(tick(rings), 1) == [step]
        assert read.count(0) == 3
    assert rings.quarantined == 1
    assert rings.isolation.dropped["ring", "failed"] == 3
    assert rings.isolation.dropped["ring", "quarantined"] == 7
    assert [line for line in caplog.messages if "SurpriseError" in line and "0.ring" in line]
    assert len(caplog.messages) == 2
    make_ring(rank=0, attempt=2).write(record(0))
    assert steps_of(tick(rings)) == [0]
    assert rings.quarantined == 0
    rings.close()


def test_records_that_are_read_and_not_taken_are_lost_by_count(root, counts, make_ring, monkeypatch):
    """What was consumed from the ring when the surprise came is in no message, so it is counted."""
    ring = make_ring()
    rings = Rings(root, counts, {})
    tick(rings)
    for step in range(3):
        ring.write(record(step))

    def raising(*_):
        raise SurpriseError("surprise")

    with monkeypatch.context() as patch:
        patch.setattr("exporter.reading.totals.StepTotals.add", raising)
        (reading,) = tick(rings)
    assert (len(reading.records), reading.lost) == (0, {"torn": 3})
    assert counts.lost["torn"] == 3
    ring.write(record(3))
    assert steps_of(tick(rings)) == [3]
    rings.close()


def test_a_surprise_in_the_records_of_one_ring_costs_the_others_nothing(root, counts, make_ring, monkeypatch):
    """Records of all rings are built together; if that fails, each ring's are built alone."""
    for rank in range(3):
        ring = make_ring(rank=rank)
        for step in range(1 + (rank == 1)):
            ring.write(record(step))
    rings = Rings(root, counts, {})

    def raising(ended):
        if any(step.step == 1 for step in ended):
            raise KeyError("surprise")
        return built_steps(ended)

    with monkeypatch.context() as patch:
        patch.setattr(reading_rings, "built_steps", raising)
        readings = tick(rings)
    assert [(reading.rank, len(reading.records), reading.lost) for reading in readings] == [
        (0, 1, {}),
        (1, 0, {"torn": 2}),
        (2, 1, {}),
    ]
    assert counts.lost["torn"] == 2
    rings.close()


def test_a_ring_that_surprises_when_it_is_opened_costs_the_others_nothing(root, counts, make_ring, monkeypatch):
    """Neither in the scan nor in the count of live ranks."""
    make_ring(rank=0)
    for number in range(RUNS_PER_NODE_MAX + 1):
        make_ring(rank=1, run=f"run-{number}").write(record(0))
    rings = Rings(root, counts, {})

    def raising(self, rank):
        if rank == 0:
            raise SurpriseError("surprise")
        return original(self, rank)

    original = RingFile._check
    monkeypatch.setattr(RingFile, "_check", raising)
    for _ in range(5):
        readings = tick(rings)
        if readings:
            break
    assert {reading.rank for reading in readings} == {1}
    assert len(rings.runs) == RUNS_PER_NODE_MAX
    rings.close()
    for number in range(RUNS_PER_NODE_MAX + 1):
        shutil.rmtree(root / f"run-{number}")
    for _ in range(4):
        tick(rings)
    assert (list(rings.runs), rings.quarantined) == (["run-a"], 1)
    rings.close()
