"""Lines of the documented form are read, hostile ones are refused and cost nothing else."""

import json
import random

import pytest

from exporter.inspector.lines import parse_line
from lockstep.contracts.errors import MalformedError
from tests.exporter.inspector.inspected import line


def changed(section: str, **values: object) -> bytes:
    document = json.loads(line())
    document[section] |= values
    return json.dumps(document).encode()


def test_a_collective():
    """Times in ns, and bytes over the slowest link from bus bandwidth and time."""
    one = parse_line(line(3, time_us=250, sequence=7))
    assert one is not None
    assert (one.communicator, one.name, one.communicator_rank, one.rank_count) == ("0x8f1c", "dp", 3, 4)
    assert (one.hostname, one.pid, one.operation, one.sequence) == ("worker-0", 100, "AllReduce", 7)
    assert (one.size_bytes, one.duration_ns) == (1 << 20, 250_000)
    assert one.bus_bytes == pytest.approx(20e9 * 250e-6)


def test_a_format_without_names_of_communicators():
    """Version 4.0 has no comm_name and no algorithm."""
    document = json.loads(line())
    del document["header"]["comm_name"], document["coll_perf"]["coll_algo"], document["coll_perf"]["coll_proto"]
    one = parse_line(json.dumps(document).encode())
    assert one is not None
    assert (one.name, one.operation) == ("", "AllReduce")


def test_point_to_point_and_lost_records():
    """A send is no collective; what the plugin's own buffer lost is a number."""
    document = json.loads(line())
    del document["coll_perf"]
    p2p = {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 2, "p2p_msg_size_bytes": 8, "p2p_exec_time_us": 5}
    one = parse_line(json.dumps(document | {"p2p_perf": p2p | {"p2p_busbw_gbs": 1.0}}).encode())
    assert one is not None
    assert (one.operation, one.is_collective, one.duration_ns) == ("Send", False, 5_000)
    lost = {"coll_records": 4, "coll_dropped_since_last_dump": 3, "p2p_dropped_since_last_dump": 2}
    one = parse_line(json.dumps(document | {"dump_stats": lost}).encode())
    assert one is not None
    assert (one.operation, one.dropped) == ("", 5)
    assert parse_line(json.dumps(document | {"proxy_perf": {}}).encode()) is None


def test_what_is_unknown_is_skipped():
    """Verbose traces, new fields, and an operation of a later NCCL."""
    one = parse_line(changed("coll_perf", coll="AllToAllV", event_trace_ts={"kernel_events": [{"channel_id": 0}]}))
    assert one is not None
    assert one.operation == "other"
    one = parse_line(line(coll_busbw_gbs="nan"))
    assert one is not None
    assert one.bus_bytes is None


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b"", id="empty"),
        pytest.param(line()[:-30], id="truncated"),
        pytest.param(line() + line(), id="two in one"),
        pytest.param(b"\xff\xfe" + line(), id="no UTF-8 before"),
        pytest.param(line().replace(b"worker-0", b"worker-\xc3"), id="no UTF-8 within"),
        pytest.param(line().replace(b"10.5", b"NaN").replace(b"20.0", b"NaN"), id="NaN"),
        pytest.param(line().replace(b"20.0", b"1e999"), id="infinite"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"42", id="no object"),
        pytest.param(line(4), id="rank outside of its communicator"),
        pytest.param(line(-1), id="negative rank"),
        pytest.param(line(time_us="100"), id="time as text"),
        pytest.param(line(time_us=-5), id="negative time"),
        pytest.param(line(time_us=1 << 62), id="time of an age"),
        pytest.param(line(sequence=1 << 70), id="number beyond 64 bits"),
        pytest.param(line(hostname="x" * 5000), id="long name"),
        pytest.param(changed("header", id=None), id="no communicator"),
        pytest.param(changed("header", n_ranks=0), id="no ranks"),
        pytest.param(changed("coll_perf", coll=["AllReduce"]), id="wrong type"),
    ],
)
def test_hostile_lines(hostile: bytes):
    """Each is refused with one error."""
    with pytest.raises(MalformedError, match="NCCL Inspector"):
        parse_line(hostile)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_lines_are_read_or_refused(seed: int):
    """Bytes changed at random: no other exception."""
    chance, whole = random.Random(seed), line()
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            parse_line(bytes(damaged))
        except MalformedError:
            continue
