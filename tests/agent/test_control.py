"""The control block's reader on files that come, change and go."""

import pytest

from lockstep.agent.control import LOOK_INTERVAL_NS, ControlReader
from lockstep.contracts.control import CONTROL_BYTES, ORDER_OFFSET
from lockstep.contracts.errors import ContractVersionError, MalformedError
from tests.agent.orders import ControlBlock


@pytest.fixture
def reader(tmp_path):
    return ControlReader(tmp_path / "control")


def test_value_is_returned_once(tmp_path, reader):
    """A value is new once; the next one again."""
    block = ControlBlock(tmp_path)
    assert reader.poll(0) is None
    block.store({"a": 1})
    assert reader.poll(1) == {"a": 1}
    assert reader.poll(2) is None
    block.store({"a": 2})
    assert reader.poll(3) == {"a": 2}


def test_late_file_is_found_within_the_interval(tmp_path, reader):
    """A file that appears is looked for once per interval, not at every step."""
    assert reader.poll(0) is None
    ControlBlock(tmp_path).store(5)
    assert reader.poll(LOOK_INTERVAL_NS - 1) is None
    assert reader.poll(LOOK_INTERVAL_NS) == 5


def test_replaced_file_is_followed(tmp_path, reader):
    """An exporter that starts again makes a new file; the reader lets go of the old one."""
    ControlBlock(tmp_path).store(1)
    assert reader.poll(0) == 1
    (tmp_path / "control").unlink()
    ControlBlock(tmp_path).store(2)
    assert reader.poll(1) is None
    assert reader.poll(LOOK_INTERVAL_NS) == 2


def test_half_written_value_is_met_later(tmp_path, reader):
    """A value whose checksum is wrong is no value; when it is whole it is new."""
    block = ControlBlock(tmp_path)
    assert reader.poll(0) is None
    block.store({"a": 1})
    position = ORDER_OFFSET + 18
    whole = block._map[position]
    block._map[position] = whole ^ 1
    assert reader.poll(1) is None
    block._map[position] = whole
    assert reader.poll(2) == {"a": 1}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", MalformedError),
        (b"x" * CONTROL_BYTES, MalformedError),
        (b"LKSTCTRL" + bytes([9, 0, 0, 0]) + bytes(CONTROL_BYTES), ContractVersionError),
    ],
)
def test_foreign_file_is_refused_once(tmp_path, reader, data, error):
    """What is no control block of this version is named once and then left alone."""
    (tmp_path / "control").write_bytes(data)
    with pytest.raises(error):
        reader.poll(0)
    assert reader.poll(LOOK_INTERVAL_NS) is None


def test_link_is_not_followed(tmp_path, reader):
    """A symbolic link in a shared directory is nobody's control block."""
    ControlBlock(tmp_path / "elsewhere").store(1)
    (tmp_path / "control").symlink_to(tmp_path / "elsewhere" / "control")
    assert reader.poll(0) is None
