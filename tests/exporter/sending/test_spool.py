import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.sending.spool import Spool
from lockstep.contracts.errors import ConfigError

LIMIT = 64 << 10


@pytest.fixture
def spool(tmp_path: Path):
    spool = Spool(tmp_path / "spool", LIMIT)
    spool.open()
    yield spool
    spool.close()
    files = list((tmp_path / "spool").glob("*.seg"))
    assert sum(file.stat().st_size for file in files) <= max(LIMIT, spool.disk_bytes)


def drain(spool: Spool) -> list[bytes]:
    payloads = []
    while (message := spool.peek()) is not None:
        payloads.append(message.payload)
        spool.acknowledge()
    return payloads


def reopen(spool: Spool) -> Spool:
    spool.close()
    again = Spool(spool._directory, LIMIT)
    again.open()
    return again


def segments(spool: Spool) -> list[Path]:
    return sorted(spool._directory.glob("*.seg"))


def test_messages_come_out_in_the_order_they_went_in(spool: Spool):
    """A message is the same until it is acknowledged, then it is the next one."""
    for number in range(3):
        assert spool.append(f"topic/{number}", bytes([number]), number) == 0
    first = spool.peek()
    assert first == spool.peek()
    assert first is not None
    assert (first.topic, first.payload, first.records) == ("topic/0", b"\0", 0)
    assert drain(spool) == [b"\0", b"\1", b"\2"]
    assert (spool.peek(), spool.waiting_bytes) == (None, 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=3000), st.none()), max_size=40), st.integers(0, 2**32))
def test_no_order_of_writes_reads_and_restarts_loses_a_message(tmp_path: Path, actions: list, seed: int):
    """Below the limit, what comes out is what went in, whatever happens in between (None: restart and read one)."""
    spool = Spool(tmp_path / f"spool-{seed}-{len(actions)}-{os.urandom(4).hex()}", 1 << 20)
    spool.open()
    wrote: list[bytes] = []
    read: list[bytes] = []
    for action in actions:
        if action is None:
            spool.close()
            spool = Spool(spool._directory, 1 << 20)
            spool.open()
            message = spool.peek()
            if message is not None:
                read.append(message.payload)
                spool.acknowledge()
        else:
            wrote.append(action)
            spool.append("t", action, 1)
    read += drain(spool)
    spool.close()
    assert read == wrote


def test_what_waits_survives_a_restart(spool: Spool):
    """Acknowledged messages do not come again, the others do, with what is added behind them."""
    for number in range(4):
        spool.append("t", bytes([number]), 1)
    spool.peek()
    spool.acknowledge()
    again = reopen(spool)
    again.append("t", b"\4", 1)
    assert drain(again) == [b"\1", b"\2", b"\3", b"\4"]
    again.close()


def test_a_cut_tail_costs_the_last_message_only(spool: Spool):
    """A machine that went down in mid-write leaves a segment whose whole frames are still sent."""
    for number in range(3):
        spool.append("t", bytes([number]) * 100, 1)
    spool.close()
    path = segments(spool)[-1]
    os.truncate(path, path.stat().st_size - 10)
    again = reopen(spool)
    again.append("t", b"new", 1)
    assert drain(again) == [b"\0" * 100, b"\1" * 100, b"new"]
    again.close()


@pytest.mark.parametrize("offset", [0, 8, 20])
def test_a_damaged_frame_ends_its_segment_and_hides_nothing_behind(spool: Spool, offset: int):
    """A flipped bit is found by the checksum; the next segment is read."""
    spool.append("t", b"damaged", 1)
    spool.close()
    path = segments(spool)[-1]
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x80
    path.write_bytes(data)
    again = reopen(spool)
    again.append("t", b"good", 1)
    assert drain(again) == [b"good"]
    again.close()


def test_a_damaged_cursor_sends_again_rather_than_losing(spool: Spool):
    """Without a cursor everything on disk is sent."""
    spool.append("t", b"a", 1)
    spool.append("t", b"b", 1)
    spool.peek()
    spool.acknowledge()
    spool.close()
    (spool._directory / "cursor").write_bytes(b"nonsense that is long enough")
    again = reopen(spool)
    assert drain(again) == [b"a", b"b"]
    again.close()


def test_beyond_the_limit_the_oldest_go_and_their_records_are_counted(spool: Spool):
    """The newest messages fit the limit, and every record is either waiting or counted as dropped."""
    lost = sum(spool.append("t", number.to_bytes(4, "little") * 250, 10) for number in range(200))
    assert spool.disk_bytes <= LIMIT
    left = [int.from_bytes(payload[:4], "little") for payload in drain(spool)]
    assert left == list(range(200 - len(left), 200))
    assert lost == 10 * (200 - len(left)) > 0


def test_acknowledged_records_that_make_room_are_not_lost(spool: Spool):
    """Only what was not delivered counts as dropped."""
    for _ in range(5):
        spool.append("t", b"x" * 1000, 1)
        spool.peek()
        spool.acknowledge()
    assert sum(spool.append("t", b"y" * 1000, 1) for _ in range(55)) == 0


def test_a_message_under_way_may_have_to_make_room(spool: Spool):
    """A message dropped between sending and acknowledgement leaves the next one first."""
    spool.append("t", b"first" * 200, 1)
    spool.peek()
    for number in range(200):
        spool.append("t", bytes([number]) * 1000, 1)
    message = spool.peek()
    assert message is not None
    spool.acknowledge()
    assert drain(spool)[-1] == bytes([199]) * 1000


def test_an_acknowledgement_of_a_dropped_message_takes_nothing_else(spool: Spool):
    """The broker's answer to a message that is gone meanwhile does not take the next one."""
    spool.append("t", b"first" * 200, 1)
    spool.peek()
    for number in range(200):
        spool.append("t", bytes([number]) * 1000, 1)
    waiting = spool.waiting_bytes
    spool.acknowledge()
    assert spool.waiting_bytes == waiting


def test_a_message_larger_than_the_spool_is_counted(spool: Spool):
    """It is dropped, and takes nothing with it."""
    spool.append("t", b"small", 1)
    assert spool.append("t", b"x" * (LIMIT + 1), 7) == 7
    assert drain(spool) == [b"small"]


def test_a_disk_that_takes_nothing_costs_the_message(spool: Spool, monkeypatch: pytest.MonkeyPatch):
    """A full disk is a count and a line in the log; the frame written in part is cut off, and the next one stands."""
    spool.append("t", b"before", 1)
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:5]))
    assert spool.append("t", b"lost", 3) == 3
    monkeypatch.undo()
    spool.append("t", b"after", 1)
    assert drain(spool) == [b"before", b"after"]


def test_a_segment_removed_by_somebody_is_passed(spool: Spool):
    """A file that vanished under us costs its messages and nothing else."""
    spool.append("t", b"gone", 1)
    spool.close()
    again = Spool(spool._directory, LIMIT)
    again.open()
    segments(again)[0].unlink()
    again.append("t", b"here", 1)
    assert drain(again) == [b"here"]
    again.close()


def test_two_exporters_do_not_share_a_spool(spool: Spool):
    """The second one is told which key to change."""
    other = Spool(spool._directory, LIMIT)
    with pytest.raises(ConfigError, match=r"spool_directory.*no other exporter"):
        other.open()


def test_a_place_that_is_no_directory_of_ours_is_refused(tmp_path: Path):
    """A link or a file under the configured name is an error, not followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file", "file/below"):
        with pytest.raises(ConfigError, match="spool_directory"):
            Spool(tmp_path / name, LIMIT).open()
