"""The recorder: nothing is lost that need not be, what is lost is counted, and the disk never takes more than its quota."""

import asyncio
import contextlib
import time

import aiohttp
import pytest

from coordinator.decide import events as ev
from coordinator.intake.streams import Receipt
from coordinator.record import recorder as recorder_module
from coordinator.record import steplog
from coordinator.record.journal import CoordinatorStart
from coordinator.record.recorder import Recorder
from coordinator.record.recording import parts_of, read_parts
from coordinator.record.replay import replay
from coordinator.settings.policy import Policy
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.rows import split_columns
from tests.coordinator.conftest import announce, running, until
from tests.coordinator.scenarios import START_UNIX_S, Scenario, generate
from tests.support.servers import WAIT_S, free_port

NOW = START_UNIX_S
MADE = generate(Scenario(degrees="dp=4", steps=40))
START = CoordinatorStart(policy=Policy(), domains="", order="tp-cp-ep-dp-pp")


def make(directory, **more):
    return Recorder(directory, START, NOW, **({"quota_bytes": 1 << 30} | more))


def receive_steps(recorder, first, last):
    for step in range(first, last):
        recorder.receive((MADE.batch(step, step + 1),), NOW + step)


def flush(recorder):
    return asyncio.run(recorder.flush())


def steps_of(directory):
    return next(log.columns["step"].tolist() for log in steplog.read(directory))[::4]


def test_what_was_received_comes_back_as_it_came(tmp_path):
    """Batches byte by byte, announcements whole, events and ticks, each at its time and in its place, over two parts."""
    recorder = make(tmp_path)
    batches = (MADE.batch(0, 1, ranks=(0, 1)), MADE.batch(0, 1, ranks=(2, 3), node="n1"))
    again = announce(0, 1, 2, 3, heartbeat_s=NOW + 9)
    changed = announce(0, 1, 2, 3, state="finished")
    asked = ev.CaptureRequestedEvent(unix_s=NOW + 4.25, cause_id="api", ranks=(1, 2), steps=3)
    received = [
        (announce(0, 1, 2, 3), NOW + 0.1, ""),
        (batches, NOW + 1.0000001, ""),
        (ev.TickEvent(unix_s=0.0, cause_id="tick"), NOW + 2, ""),
        ((batches[1],), NOW + 2, ""),
        (again, NOW + 3.3, ""),
        (asked, NOW + 4.25, "job"),
        (changed, NOW + 5, ""),
    ]
    for number, (what, now_s, run) in enumerate(received):
        recorder.receive(what, now_s, run)
        if number == 3:
            assert flush(recorder)
    assert flush(recorder)
    assert len(parts_of(tmp_path)) == 2
    start, *entries = read_parts(parts_of(tmp_path))
    assert start.what == START
    assert [(entry.unix_s, entry.run) for entry in entries] == [(now_s, run) for _, now_s, run in received]
    for entry, (what, _, _) in zip(entries, received, strict=True):
        if isinstance(what, tuple):
            assert [(b.run, b.node, b.count) for b in entry.what] == [(b.run, b.node, b.count) for b in what]
            assert [split_columns(b.layout, b.records) for b in entry.what] == [
                split_columns(b.layout, b.records) for b in what
            ]
        else:
            assert entry.what == what


def test_a_later_part_alone_shows_who_there_is(tmp_path):
    """With the first part gone, the head of the next one has the thresholds and each node's announcement."""
    recorder = make(tmp_path)
    recorder.receive(announce(0, 1, 2, 3), NOW)
    flush(recorder)
    receive_steps(recorder, 0, 2)
    recorder.receive(announce(0, 1, 2, 3, heartbeat_s=NOW + 9), NOW + 9)
    flush(recorder)
    parts_of(tmp_path)[0].unlink()
    what = [entry.what for entry in read_parts(parts_of(tmp_path))]
    assert what[:2] == [START, announce(0, 1, 2, 3)]
    assert what[-1] == announce(0, 1, 2, 3, heartbeat_s=NOW + 9)


def test_a_recording_is_a_step_log(tmp_path):
    """Any reader of step logs can read it: rows by run, in order of arrival, columns that no one sent as null."""
    recorder = make(tmp_path)
    receive_steps(recorder, 0, 12)
    recorder.receive(ev.TickEvent(unix_s=NOW, cause_id="tick"), NOW + 20)
    flush(recorder)
    (log,) = steplog.read(tmp_path)
    assert (log.run, log.count) == ("job", 48)
    assert log.columns["duration_ns"][:4] == pytest.approx(MADE.duration[0] * 1e9, abs=1)
    assert log.columns["dp_wait_ns"][:4] == pytest.approx(MADE.waits["dp"][0] * 1e9, abs=1)


def test_the_oldest_parts_go_when_the_quota_is_reached(tmp_path):
    """The directory stays within its quota, but for the part just written; the youngest rows stay."""
    recorder = make(tmp_path, quota_bytes=25_000)
    for step in range(0, 40, 4):
        receive_steps(recorder, step, step + 4)
        flush(recorder)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 25_000
    assert 1 < len(parts_of(tmp_path)) < 10
    assert steps_of(tmp_path)[-1] == 39
    assert steps_of(tmp_path)[0] > 0


def test_a_full_queue_costs_what_comes_last_and_is_counted(tmp_path):
    """Records beyond the bound are dropped and counted; announcements are kept, and there is room again after a part."""
    size = 10 * len(MADE.batch(0, 1).records)
    recorder = make(tmp_path, pending_max_bytes=size)
    receive_steps(recorder, 0, 15)
    recorder.receive(announce(0, 1, 2, 3), NOW + 15)
    assert recorder.counts() == {"written": 0, "dropped": 5 * 4}
    flush(recorder)
    receive_steps(recorder, 20, 25)
    flush(recorder)
    assert recorder.counts() == {"written": 15 * 4, "dropped": 5 * 4}
    assert steps_of(tmp_path) == [*range(10), *range(20, 25)]
    assert announce(0, 1, 2, 3) in [entry.what for entry in read_parts(parts_of(tmp_path))]


def test_a_disk_that_fails_costs_nothing_while_memory_lasts(tmp_path, monkeypatch):
    """What could not be written is written later, in its order, reported once."""
    recorder = make(tmp_path)
    recorder.receive(announce(0, 1, 2, 3), NOW)
    receive_steps(recorder, 0, 2)
    full = monkeypatch.context()
    with full as patch:
        patch.setattr(recorder_module, "write_part", _fail)
        assert not flush(recorder)
        receive_steps(recorder, 2, 4)
        assert not flush(recorder)
    assert parts_of(tmp_path) == []
    assert flush(recorder)
    assert [type(entry.what).__name__ for entry in read_parts(parts_of(tmp_path))] == [
        "CoordinatorStart",
        "NodeAnnouncement",
        *["tuple"] * 4,
    ]
    assert recorder.counts() == {"written": 16, "dropped": 0}


def _fail(*_):
    raise OSError(28, "No space left on device")


def test_a_bug_of_ours_costs_a_part_and_is_counted(tmp_path, monkeypatch):
    """Whatever goes wrong in writing, the coordinator goes on and the recorder begins another part."""
    recorder = make(tmp_path)
    receive_steps(recorder, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "write_part", lambda *_: {}["bug"])
        assert flush(recorder)
    receive_steps(recorder, 2, 4)
    assert flush(recorder)
    assert recorder.counts() == {"written": 8, "dropped": 8}


def test_nothing_but_ticks_is_no_part(tmp_path):
    """An idle night writes no files."""
    recorder = make(tmp_path)
    flush(recorder)
    for second in range(100):
        recorder.receive(ev.TickEvent(unix_s=0.0, cause_id="tick"), NOW + second)
    assert flush(recorder)
    assert len(parts_of(tmp_path)) == 1


def test_another_recorder_goes_on_after_the_first(tmp_path):
    """A second coordinator on the same directory: its parts follow, even with the clock set back; leftovers go."""
    first = make(tmp_path)
    receive_steps(first, 5, 10)
    flush(first)
    (tmp_path / "steps-00000000000000000001.parquet.partial").write_text("half")
    second = Recorder(tmp_path, START, NOW - 3600, quota_bytes=1 << 30)
    receive_steps(second, 10, 12)
    flush(second)
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".parquet", ".parquet"]
    kinds = [type(entry.what).__name__ for entry in read_parts(parts_of(tmp_path))]
    assert kinds == ["CoordinatorStart", *["tuple"] * 5, "CoordinatorStart", *["tuple"] * 2]


def test_a_directory_that_is_a_file_is_named(tmp_path):
    """The setting is named before anything starts."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="record_directory: got"):
        make(tmp_path / "file")


async def test_parts_are_written_when_due_and_at_the_end(tmp_path):
    """Many rows make a part at once, few after `part_seconds`, and the rest when it is asked to stop."""
    recorder = make(tmp_path, part_rows=20, part_seconds=0.05)
    task = asyncio.create_task(recorder.keep_writing())
    receive_steps(recorder, 0, 6)
    await until(lambda: recorder.written == 24)
    receive_steps(recorder, 6, 7)
    await until(lambda: recorder.written == 28)
    receive_steps(recorder, 7, 8)
    recorder.stop()
    await asyncio.wait_for(task, WAIT_S)
    assert steps_of(tmp_path) == list(range(8))
    with contextlib.suppress(asyncio.CancelledError):
        task.cancel()


async def test_a_coordinator_records_what_it_receives_until_its_end(tmp_path):
    """Records, announcements and time reach the directory, the metric counts them, and a replay evaluates as many steps."""
    settings = {"record_directory": str(tmp_path), "record_quota_bytes": 1 << 20, "broker_port": free_port()}
    async with running(**settings) as coordinator:
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=time.time()), None)
        for step in range(30):
            coordinator._on_message(MADE.batch(step, step + 1), Receipt(step + 1))
        coordinator.on_tick(time.time())
        assert coordinator._runs.detection.steps == 30
        assert await coordinator._recorder.flush()
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client,
            client.get("/metrics") as response,
        ):
            text = await response.text()
        assert 'lockstep_coordinator_records_recorded_total{state="written"} 120.0' in text
        assert 'lockstep_coordinator_records_recorded_total{state="dropped"} 0.0' in text
        for step in range(30, 34):
            coordinator._on_message(MADE.batch(step, step + 1), Receipt(step + 1))
    replayed = replay(read_parts(parts_of(tmp_path)))
    assert replayed.evaluated_steps == 34
    assert replayed.nodes == {"job": dict.fromkeys(range(4), "n0")}
