"""Event files of tensorboardX, parsed as they lie on disk, and read back by TensorBoard's own reader."""

import struct

import pytest
from tensorboardX.proto.event_pb2 import Event

from lockstep.contracts.errors import ConfigError, PeerError
from lockstep.trackers.tracker import TrackerOptions, open_tracker
from tests.trackers.samples import BEGIN, interval, notes_of, points_of
from tests.trackers.samples import incident as incident_answer


def write(folder, points, notes=()):
    tracker = open_tracker("tensorboard", TrackerOptions(run="a/job", address=str(folder)))
    tracker.log_points(points)
    if notes:
        tracker.log_incidents(notes, notes)
    tracker.close(is_over=True)


def scalars(folder):
    """Return (tag, step, value, time) of each scalar in the event files of a folder, in the files' order."""
    found = []
    for path in sorted(folder.glob("events.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):  # a record: its length, a checksum, the event, a checksum
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            found += [
                (each.tag, event.step, each.simple_value, event.wall_time)
                for each in event.summary.value
                if each.HasField("simple_value")
            ]
    return found


def test_each_attempt_is_a_folder_and_a_restart_adds_a_file(tmp_path):
    """Steps count from 0 in each attempt; the run's name is one folder, whatever it contains."""
    write(tmp_path, points_of(interval(0), interval(0, begin=BEGIN + 90, attempt=1)))
    write(tmp_path, points_of(interval(10)))
    (run,) = tmp_path.iterdir()
    assert run.name == "a%2Fjob"
    steps = [
        (step, wall_time) for tag, step, _, wall_time in scalars(run / "attempt-0") if tag == "lockstep/step_seconds"
    ]
    assert steps == [(9, BEGIN + 1), (19, BEGIN + 2)]
    assert len(list((run / "attempt-0").iterdir())) == 2
    assert {step for _, step, _, _ in scalars(run / "attempt-1")} == {9}


def test_a_folder_that_cannot_be_written_is_a_refusal(tmp_path):
    """The forwarder tries again; nothing is noted as sent."""
    (tmp_path / "file").write_text("")
    tracker = open_tracker("tensorboard", TrackerOptions(run="job", address=str(tmp_path / "file")))
    with pytest.raises(PeerError, match=r"tensorboard folder .*file/job: got .*, expected a folder to write to"):
        tracker.log_points(points_of(interval(0)))
    with pytest.raises(ConfigError, match="--address: got nothing, expected the folder"):
        open_tracker("tensorboard", TrackerOptions(run="job"))


@pytest.mark.frameworks
def test_tensorboard_reads_figures_and_incidents_back(tmp_path):
    """By the reader that TensorBoard itself uses."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415  (an extra)

    write(tmp_path, points_of(interval(0, mfu_ratio=0.41), interval(10)), notes_of(incident_answer()))
    events = EventAccumulator(str(tmp_path / "a%2Fjob" / "attempt-0"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {
        "lockstep/step_seconds",
        "lockstep/compute_seconds",
        "lockstep/dp_wait_seconds",
        "lockstep/mfu_ratio",
    } <= set(tags)
    assert [(each.step, each.wall_time) for each in events.Scalars("lockstep/step_seconds")] == [
        (9, BEGIN + 1),
        (19, BEGIN + 2),
    ]
    assert events.Scalars("lockstep/mfu_ratio")[0].value == pytest.approx(0.41)
    (tag,) = events.Tags()["tensors"]
    assert tag.startswith("lockstep/incidents/job-1")
    (text,) = events.Tensors(tag)
    shown = text.tensor_proto.string_val[0].decode()
    assert "slow rank of rank 2 on node-3: data" in shown
    assert "http://c:9856/incidents/job-1" in shown
    assert text.step == 40
