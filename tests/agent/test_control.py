"""The control block's reader on files that come, change and go."""

import os

import pytest

from lockstep.agent.control import LOOK_INTERVAL_NS, ControlReader
from lockstep.agent.descriptors import HIGH_DESCRIPTOR
from lockstep.contracts.control_block import CONTROL_BYTES, ORDER_OFFSET
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.paths import control_path
from tests.agent.orders import ControlBlock

US = frozenset({os.geteuid()})


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def reader(run):
    return ControlReader(control_path(run), US)


def test_value_is_returned_once(run, reader):
    """A value is new once; the next one again."""
    block = ControlBlock(run)
    assert reader.poll(0) is None
    block.store({"a": 1})
    assert reader.poll(1) == {"a": 1}
    assert reader.poll(2) is None
    block.store({"a": 2})
    assert reader.poll(3) == {"a": 2}


def test_late_file_is_found_within_the_interval(run, reader):
    """A file that appears is looked for once per interval, not at every step."""
    assert reader.poll(0) is None
    ControlBlock(run).store(5)
    assert reader.poll(LOOK_INTERVAL_NS - 1) is None
    assert reader.poll(LOOK_INTERVAL_NS) == 5


def test_replaced_file_is_followed(run, reader):
    """An exporter that starts again makes a new file; the reader lets go of the old one."""
    former = ControlBlock(run)
    former.store(1)
    assert reader.poll(0) == 1
    former.path.unlink()
    ControlBlock(run).store(2)
    assert reader.poll(1) is None
    number = reader._file
    assert reader.poll(LOOK_INTERVAL_NS) == 2
    assert reader._file == number


def test_half_written_value_is_met_later(run, reader):
    """A value whose checksum is wrong is no value; when it is whole it is new."""
    block = ControlBlock(run)
    assert reader.poll(0) is None
    block.store({"a": 1})
    position = ORDER_OFFSET + 18
    whole = block.path.read_bytes()[position]
    block.overwrite(position, bytes([whole ^ 1]))
    assert reader.poll(1) is None
    block.overwrite(position, bytes([whole]))
    assert reader.poll(2) == {"a": 1}


@pytest.mark.parametrize("size", [0, ORDER_OFFSET, ORDER_OFFSET + 4, ORDER_OFFSET + 8, ORDER_OFFSET + 20])
def test_block_that_is_cut_is_no_block(run, reader, size):
    """What is left of it holds nothing new, and what the exporter puts in its place is followed."""
    block = ControlBlock(run)
    block.store({"a": 1})
    assert reader.poll(0) == {"a": 1}
    block.store({"a": 2})
    os.truncate(block.path, size)
    assert reader.poll(1) is None
    assert reader.poll(LOOK_INTERVAL_NS) is None
    block.path.unlink()
    ControlBlock(run).store({"a": 3})
    assert reader.poll(2 * LOOK_INTERVAL_NS) == {"a": 3}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", MalformedError),
        (b"x" * CONTROL_BYTES, MalformedError),
        (b"LKSTCTRL" + bytes([9, 0, 0, 0]) + bytes(CONTROL_BYTES), ContractVersionError),
    ],
)
def test_foreign_file_is_refused_once(run, reader, data, error):
    """What is no control block of this version is named once and then left alone."""
    ControlBlock(run).path.write_bytes(data)
    with pytest.raises(error):
        reader.poll(0)
    assert reader.poll(LOOK_INTERVAL_NS) is None


def test_link_is_not_followed(run, reader, tmp_path):
    """A symbolic link is no control block."""
    path = ControlBlock(run).path
    elsewhere = tmp_path / "elsewhere" / "run"
    ControlBlock(elsewhere).store(1)
    path.unlink()
    path.symlink_to(control_path(elsewhere))
    assert reader.poll(0) is None


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_refused_and_blocks_no_one(run, reader, kind):
    """Opening a pipe to read waits for a writer: the training thread must not."""
    path = ControlBlock(run).path
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(MalformedError, match="expected an ordinary file"):
        reader.poll(0)
    assert reader.poll(LOOK_INTERVAL_NS) is None


def test_block_in_the_directory_of_an_untrusted_user_is_refused(run):
    """Who owns the directory can replace the block, and could have this process profiled."""
    block = ControlBlock(run)
    block.store(1)
    reader = ControlReader(block.path, frozenset({os.geteuid() + 1}))
    with pytest.raises(MalformedError, match=f"owner of the exporter's directory.*got uid {os.geteuid()}"):
        reader.poll(0)
    assert reader.poll(LOOK_INTERVAL_NS) is None


def test_descriptor_is_out_of_the_trainings_way(run, reader):
    """The numbers that the training's own files get are not taken."""
    ControlBlock(run).store(1)
    assert reader.poll(0) == 1
    assert reader._file >= HIGH_DESCRIPTOR
