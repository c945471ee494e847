import os
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.sending.spool import DroppedRange, Spool, SpooledMessage
from lockstep.contracts.errors import ConfigError

LIMIT = 64 << 10


@pytest.fixture
def spool(tmp_path: Path):
    spool = open_spool(tmp_path)
    yield spool
    spool.close()
    files = list((tmp_path / "spool").glob("*.seg"))
    assert sum(file.stat().st_size for file in files) <= max(LIMIT, spool.disk_bytes)


def open_spool(tmp_path: Path, limit_bytes: int = LIMIT) -> Spool:
    boot_id = tmp_path / "boot_id"
    if not boot_id.exists():
        boot_id.write_text(f"{uuid.UUID(int=1)}\n")
    spool = Spool(tmp_path / "spool", limit_bytes, boot_id=boot_id)
    spool.open()
    return spool


def reopen(spool: Spool) -> Spool:
    spool.close()
    return open_spool(spool._directory.parent, spool.limit_bytes)


def segments(spool: Spool) -> list[Path]:
    return sorted(spool._directory.glob("*.seg"))


def items(spool: Spool, first: int = 1) -> list[SpooledMessage | DroppedRange]:
    """Return everything from message `first` on, as a coordinator that stands there would get it."""
    found = []
    while (item := spool.read(first)) is not None:
        found.append(item)
        first = item.last + 1 if isinstance(item, DroppedRange) else item.sequence + 1
    return found


def payloads(spool: Spool, first: int = 1) -> list[bytes]:
    return [item.payload for item in items(spool, first) if isinstance(item, SpooledMessage)]


def dropped(spool: Spool, first: int = 1) -> list[tuple[int, int, int]]:
    return [(i.first, i.last, i.records) for i in items(spool, first) if isinstance(i, DroppedRange)]


def fill(spool: Spool, count: int, *, size: int = 1000, records: int = 10) -> None:
    for _ in range(count):
        spool.append("t", (spool.last + 1).to_bytes(4, "little") * (size // 4), records)


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x80
    path.write_bytes(data)


def test_messages_are_numbered_from_one_and_stay_until_freed(spool: Spool):
    """Reading takes nothing away; what is freed is gone behind, and only numbers that exist can be freed."""
    for number in range(1, 4):
        spool.append(f"topic/{number}", bytes([number]), number)
    assert [item.sequence for item in items(spool)] == [1, 2, 3]
    assert items(spool) == items(spool)
    assert spool.read(2) == SpooledMessage(2, "topic/2", b"\2", 2)
    assert (spool.read(4), spool.waiting_messages) == (None, 3)
    spool.free(2)
    assert (spool.freed, spool.waiting_messages) == (2, 1)
    spool.free(1)
    spool.free(2**63 - 1)
    assert (spool.freed, spool.waiting_messages, spool.waiting_bytes) == (3, 0, 0)


def test_a_restart_in_the_same_boot_goes_on_with_stream_and_numbers(spool: Spool):
    """What was freed does not come again; what was not has its number, and new messages follow."""
    fill(spool, 4)
    spool.free(1)
    again = reopen(spool)
    assert (again.stream_id, again.last, again.freed) == (spool.stream_id, 4, 1)
    again.append("t", b"new", 1)
    assert again.read(5) == SpooledMessage(5, "t", b"new", 1)
    assert dropped(again, 2) == []
    third = reopen(again)
    assert (third.stream_id, third.last) == (spool.stream_id, 5)
    third.free(5)
    fourth = reopen(third)
    assert (fourth.stream_id, fourth.last, segments(fourth)) == (spool.stream_id, 5, [])
    fourth.close()


@pytest.mark.parametrize("what", ["boot", "no boot", "cursor", "cut cursor", "damaged end"])
def test_where_numbers_may_have_been_given_before_another_stream_begins(spool: Spool, tmp_path: Path, what: str):
    """Its first frame covers what was freed and costs nothing; what is left follows, and nothing of it is lost."""
    fill(spool, 3)
    spool.free(1)
    spool.close()
    match what:
        case "boot":
            (tmp_path / "boot_id").write_text(str(uuid.UUID(int=2)))
        case "no boot":
            (tmp_path / "boot_id").write_text("unknown")
        case "cursor":
            damage(spool._directory / "cursor", 3)
        case "cut cursor":
            os.truncate(spool._directory / "cursor", 10)
        case "damaged end":
            fill(again := open_spool(tmp_path), 1)
            again.close()
            damage(segments(spool)[-1], 22)
    again = open_spool(tmp_path)
    assert again.stream_id not in (0, spool.stream_id)
    assert len(payloads(again, again.freed + 1)) == {"cursor": 3, "cut cursor": 3}.get(what, 2)
    assert sum(records for _, _, records in dropped(again)) == 0
    last = reopen(again)
    assert (last.stream_id == again.stream_id) == (what != "no boot")
    last.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(cut=st.integers(0, 3 * 1050), tail=st.binary(max_size=12))
def test_a_process_killed_at_any_byte_costs_the_message_that_it_wrote(tmp_path_factory, cut: int, tail: bytes):
    """Whole messages before the cut stand under their numbers, in the same stream, and the next one follows."""
    spool = open_spool(tmp_path_factory.mktemp("cut"))
    fill(spool, 3)
    whole = payloads(spool)
    spool.close()
    path = segments(spool)[0]
    path.write_bytes(path.read_bytes()[:cut])
    again = reopen(spool)
    left = payloads(again)
    assert left == whole[: len(left)]
    assert len(left) >= cut // 1050 - 1
    assert again.stream_id == spool.stream_id
    again.append("t", b"next", 1)
    assert payloads(again) == [*left, b"next"]
    assert dropped(again) == []
    again.close()


def test_a_damaged_message_costs_itself(spool: Spool):
    """The checksum of its content fails: it is read as dropped with its records, and counted once."""
    fill(spool, 3)
    spool.close()
    damage(segments(spool)[0], 20 + 1021 + 500)
    again = open_spool(spool._directory.parent)
    assert again.stream_id == spool.stream_id
    assert [dropped(again), dropped(again)] == [[(2, 2, 10)]] * 2
    assert len(payloads(again)) == 2
    assert again.lost_records == 10
    again.close()


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (8, 0), (17, 0), (22, 0), (20 + 1022 + 4, 1)])
def test_a_damaged_segment_is_counted_by_what_follows_it(spool: Spool, offset: int, left: int):
    """The next segment holds number and records of what is missing before it; the stream goes on."""
    fill(spool, 3)
    again = reopen(spool)
    fill(again, 2)
    again.close()
    damage(segments(again)[0], offset)
    third = open_spool(spool._directory.parent)
    assert third.stream_id == spool.stream_id
    assert dropped(third) == [(1 + left, 3, 10 * (3 - left))]
    assert [item.sequence for item in items(third) if isinstance(item, SpooledMessage)][left:] == [4, 5]
    assert third.lost_records == 10 * (3 - left)
    fourth = reopen(third)
    assert (dropped(fourth), fourth.lost_records) == (dropped(third), 0)
    fourth.close()


def test_a_segment_removed_by_someone_else_is_counted(spool: Spool):
    """While it is read, each message of it is missing; after a restart the range is."""
    fill(spool, 20)
    assert len(segments(spool)) > 2
    second = int(segments(spool)[1].stem)
    third = int(segments(spool)[2].stem)
    segments(spool)[1].unlink()
    assert sum(records for _, _, records in dropped(spool)) == 10 * (third - second)
    again = reopen(spool)
    assert dropped(again) == [(second, third - 1, 10 * (third - second))]
    again.close()


def test_beyond_the_limit_the_oldest_make_way(spool: Spool):
    """The newest messages fit the limit; wherever a coordinator stands, what it lacks is counted to the record."""
    fill(spool, 200)
    assert spool.disk_bytes <= LIMIT
    first = items(spool)[1].sequence
    assert dropped(spool) == [(1, first - 1, 10 * (first - 1))]
    assert payloads(spool)[0][:4] == first.to_bytes(4, "little")
    for position in (1, 2, first - 2):
        assert dropped(spool, position + 1) == [(position + 1, first - 1, 10 * (first - 1 - position))]
    assert spool.lost_records == 10 * (first - 1)
    again = reopen(spool)
    assert dropped(again, 3) == [(3, first - 1, 10 * (first - 3))]
    fill(again, 100)
    first = items(again)[1].sequence
    assert dropped(again, 3) == [(3, first - 1, 10 * (first - 3))]
    again.close()


def test_what_every_coordinator_has_in_memory_is_not_counted_by_us(spool: Spool):
    """It is lost only if one of them falls back behind it, and then the frame has it."""
    fill(spool, 20)
    spool.free(5)
    spool.received = 12
    fill(spool, 180)
    first = items(spool)[1].sequence
    assert spool.lost_records == 10 * (first - 1 - 12)
    assert dropped(spool, 6) == [(6, first - 1, 10 * (first - 6))]
    assert dropped(spool, 1) == [(1, first - 1, 10 * (first - 6))]


def test_dropped_messages_are_forgotten_when_they_are_committed(spool: Spool):
    """Behind what is freed nothing is counted any more, and the file is gone."""
    fill(spool, 200)
    first = items(spool)[1].sequence
    spool.free(10)
    assert dropped(spool, 1) == [(1, first - 1, 10 * (first - 11))]
    spool.free(first - 1)
    assert dropped(spool, 1) == [(1, first - 1, 0)]
    assert not (spool._directory / "dropped").exists()


def test_dropped_messages_beyond_the_entries_that_are_kept_count_as_one(tmp_path: Path):
    """Memory and file have an end: a coordinator inside the last range counts all of it, too many rather than too few."""
    spool = open_spool(tmp_path)
    for _ in range(20_000):
        spool.append("t", b"", 1)
    first = items(spool)[1].sequence
    assert dropped(spool, 101) == [(101, first - 1, first - 101)]
    assert (spool._directory / "dropped").stat().st_size <= LIMIT // 16 + 4
    assert dropped(spool, first - 1)[0][2] > 1
    spool.close()


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 20, bytes(20)])
def test_a_damaged_record_of_what_was_dropped_makes_one_range(spool: Spool, content: bytes):
    """Wherever a coordinator stands in it, it counts the whole: too many rather than too few."""
    fill(spool, 200)
    first = items(spool)[1].sequence
    (spool._directory / "dropped").write_bytes(content)
    again = reopen(spool)
    assert dropped(again, 3) == [(3, first - 1, 10 * (first - 1))]
    again.close()


def test_a_message_larger_than_the_spool_is_counted(spool: Spool):
    """It takes a number without content, and nothing else goes with it."""
    spool.append("t", b"small", 1)
    spool.append("t", b"x" * LIMIT, 7)
    spool.append("t", b"next", 1)
    assert payloads(spool) == [b"small", b"next"]
    assert dropped(spool) == [(2, 2, 7)]
    assert spool.lost_records == 7


@pytest.mark.parametrize("taken", [0, 5])
def test_a_disk_that_takes_nothing_costs_the_messages(spool: Spool, monkeypatch: pytest.MonkeyPatch, taken: int):
    """A full disk is a count and a range without content, whether it refuses or takes a part; the next one stands."""
    spool.append("t", b"before", 1)
    real = os.write

    def write(file: int, data: bytes) -> int:
        if not taken:
            raise OSError("full")
        return real(file, data[:taken])

    monkeypatch.setattr(os, "write", write)
    spool.append("t", b"lost", 3)
    spool.append("t", b"lost", 4)
    monkeypatch.undo()
    assert spool.last == 1
    spool.append("t", b"after", 1)
    assert (payloads(spool), dropped(spool), spool.lost_records) == ([b"before", b"after"], [(2, 3, 7)], 7)
    again = reopen(spool)
    assert (payloads(again), dropped(again)) == ([b"before", b"after"], [(2, 3, 7)])
    assert (again.stream_id, again.lost_records) == (spool.stream_id, 0)
    again.close()


def test_a_refused_message_is_read_as_dropped(spool: Spool):
    """Until it is freed; another process tries it again."""
    fill(spool, 3)
    spool.refuse(2)
    assert dropped(spool) == [(2, 2, 10)]
    again = reopen(spool)
    assert dropped(again) == []
    again.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(actions=st.lists(st.one_of(st.integers(0, 3000), st.sampled_from(["restart", "free"])), max_size=60))
def test_no_order_of_writes_frees_and_restarts_loses_a_record(tmp_path_factory, actions: list):
    """From what is freed on, every message is there under its number or counted in a range, exactly."""
    spool = open_spool(tmp_path_factory.mktemp("any"), 16 << 10)
    records = [0]
    for action in actions:
        if action == "restart":
            spool = reopen(spool)
        elif action == "free":
            spool.free(spool.freed + (spool.last - spool.freed) // 2)
        else:
            records.append(action % 7)
            spool.append("t", bytes(action), action % 7)
        assert spool.disk_bytes == sum(path.stat().st_size for path in segments(spool)) <= 16 << 10
        assert 0 <= spool.waiting_bytes <= spool.disk_bytes
    assert spool.last == len(records) - 1
    following = spool.freed + 1
    for item in items(spool, following):
        first, last = (item.first, item.last) if isinstance(item, DroppedRange) else (item.sequence, item.sequence)
        assert first == following
        assert item.records == sum(records[first : last + 1])
        following = last + 1
    assert following == spool.last + 1
    spool.close()


def test_two_exporters_do_not_share_a_spool(spool: Spool):
    """The error names the key to change."""
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
