"""Dumps of torch's Flight Recorder: those of real ranks, and what is none."""

import os
import pickle
import subprocess
import sys

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.flight_recorder import DUMP_MAX_BYTES, last_of_groups, parse_dump
from tests.support import flight_job

ENTRY = {
    "process_group": ("1", "mesh_dp"), "collective_seq_id": 7, "profiling_name": "nccl:all_reduce", "is_p2p": False,
    "input_sizes": [[2, 3]], "input_dtypes": ["Float"], "state": "started", "retired": False, "time_created_ns": 5,
}  # fmt: skip


def dumped(*entries, version="2.10"):
    return {"version": version, "entries": list(entries)}


def parse(value):
    return parse_dump(pickle.dumps(value, protocol=2), where="test")


@pytest.mark.torch
def test_both_forms_of_a_real_dump_hold_the_same(tmp_path):
    """What torch writes by itself is read as pickle's own reader reads it."""
    command = [sys.executable, flight_job.__file__, str(tmp_path / "store"), str(tmp_path / "rank_"), "operation"]
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
    for rank, last in ((0, ("all_reduce", "Float [8]")), (1, ("all_gather", "Float [8]"))):
        data = (tmp_path / f"rank_{rank}").read_bytes()
        entries = parse_dump(data, where="pickle")
        assert entries == parse_dump((tmp_path / f"rank_{rank}.json").read_bytes(), where="JSON")
        of_group = [entry for entry in entries if entry.description == flight_job.GROUP]
        assert [entry.sequence for entry in of_group] == list(range(1, flight_job.BEFORE + 2))
        assert (of_group[-1].operation, of_group[-1].tensors) == last
        loaded = [each for each in pickle.loads(data)["entries"] if not each["is_p2p"]]
        assert [each["collective_seq_id"] for each in loaded] == [entry.sequence for entry in entries]
        assert [each["profiling_name"] for each in loaded] == [f"gloo:{entry.operation}" for entry in entries]


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_pickle_of_plain_values_is_read(protocol):
    """With frames and short texts of later protocols refused or read, never guessed."""
    data = pickle.dumps(dumped(ENTRY), protocol=protocol)
    if protocol == 4:
        with pytest.raises(MalformedError, match="opcode"):
            parse_dump(data, where="test")
        return
    (entry,) = parse_dump(data, where="test")
    assert (entry.group, entry.description, entry.sequence) == ("1", "mesh_dp", 7)
    assert (entry.operation, entry.tensors, entry.state) == ("all_reduce", "Float [2, 3]", "started")


class Calls:
    """Unpickled by pickle, it runs a command."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.system, (f"touch {self._path}",)


def test_nothing_of_a_pickle_is_called(tmp_path):
    """A pickle may name any function of Python; here it names none."""
    with pytest.raises(MalformedError, match="opcode b'c'"):
        parse(dumped(Calls(tmp_path / "called")))
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends at byte 0"),
        (b"\x80\x02.", "IndexError"),
        (b"\x80\x02" + b"]" * 1_000_001, "more than 1000000 values"),
        (b"\x80\x02" + b"(" * 100 + b"tttt.", "got 'NoneType'|version"),
        (b"\x80\x02u.", "IndexError"),
        (b"\x80\x02h\x07.", "KeyError"),
        (b"\x80\x02]r\xff\xff\xff\xff.", "version"),
        (b"{" * 3, "JSONDecodeError"),
        (b'{"a":' * 100_000, "RecursionError"),
        (b" " * (DUMP_MAX_BYTES + 1), "at most"),
        (pickle.dumps(dumped(version="1.5"), protocol=2), "expected 2.x"),
        (pickle.dumps({"version": "2.4", "entries": {}}, protocol=2), "expected up to"),
    ],
)
def test_what_is_no_dump_is_refused(data, message):
    """Whatever a training wrote, and whatever its size: an error that names what was found."""
    with pytest.raises(MalformedError, match=message):
        parse_dump(data, where="test")


def test_a_dump_that_is_cut_anywhere_is_refused():
    """Torch may still be writing it."""
    data = pickle.dumps(dumped(ENTRY, ENTRY), protocol=2)
    for length in range(len(data)):
        with pytest.raises(MalformedError):
            parse_dump(data[:length], where="test")


@pytest.mark.parametrize(
    "change",
    [{"process_group": "1"}, {"collective_seq_id": None}, {"is_p2p": True}, {"is_p2p": None}, {"process_group": ["1"]}],
)
def test_entries_without_a_place_in_a_group_are_left_out(change):
    """Sends and receives have sequence numbers of their own."""
    assert parse(dumped(ENTRY | change)) == []


def test_texts_and_sizes_are_bounded():
    """They come from the training, and go into messages."""
    long = ENTRY | {"profiling_name": "x" * 1000, "input_sizes": [list(range(1000))] * 9, "input_dtypes": ["F\n"] * 9}
    (entry,) = parse(dumped(long | {"state": 3}))
    assert max(map(len, (entry.operation, entry.tensors))) <= 64
    assert "\n" not in entry.tensors
    assert entry.state == ""


def test_the_last_collectives_of_the_groups_in_use_are_kept():
    """Of many groups those that issued one last; each in its own order."""
    entries = parse(
        dumped(
            *(
                ENTRY | {"process_group": (str(group), ""), "collective_seq_id": number, "time_created_ns": group}
                for group in range(5)
                for number in (3, 1, 2)
            )
        )
    )
    kept = list(last_of_groups(entries, groups=2, each=2))
    assert [(entry.group, entry.sequence) for entry in kept] == [("4", 2), ("4", 3), ("3", 2), ("3", 3)]
