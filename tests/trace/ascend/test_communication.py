import json

import numpy as np
import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend.communication import bytes_of_mb, load_communication, ns_of_ms
from lockstep.trace.columns import ABSENT
from tests.trace.ascend.recordings import CLUSTER, TABLES


def test_a_ranks_file():
    """Operators, times and links are those of the file; totals are left out."""
    found = load_communication(TABLES / "communication.json")
    assert (len(found), found.dropped_count) == (28, 0)
    first = found.named[0]
    assert (first.step, first.kind, first.operator, first.group) == (
        2,
        "p2p",
        "hcom_send__822_0",
        "13337953553061386822",
    )
    assert (first.rank, first.ranks) == (ABSENT, ())
    assert (found.start_ns[0], found.elapse_ns[0], found.transit_ns[0]) == (1695115378810042500, 896_487, 863_815)
    assert (found.link_type[0], found.link_bytes[0], found.link_ns[0]) == ("RDMA", 20_971_520, 863_815)
    assert found.large_packet_ratio[0] == 1.0
    assert (found.packet_link[0], found.packet_bytes[0], found.packet_count[0]) == (0, 20_971_520, 1)


def test_transit_comes_from_the_links_where_the_file_has_zero():
    """The recording has collectives whose transit time is 0 though their links moved megabytes; SDMA counts once."""
    found = load_communication(TABLES / "communication.json")
    row = next(i for i, each in enumerate(found.named) if each.operator == "hcom_allReduce__483_2")
    links = [found.link_type[i] for i in np.flatnonzero(found.link_operator == row)]
    assert links == ["HCCS", "SDMA"]
    assert found.transit_ns[row] == 0
    assert found.link_transit_ns[row] == 7_653_890


def test_a_clusters_file_has_an_entry_for_each_rank():
    """The group's ranks stand outside, the rank inside."""
    found = load_communication(CLUSTER / "cluster_communication.json")
    assert [(each.operator, each.rank, each.ranks) for each in found.named[:3]] == [
        ("hcom_send__822_0", 0, ()),
        ("hcom_send__822_0", 1, ()),
        ("hcom_broadcast__483_0", 0, tuple(range(8))),
    ]
    found = load_communication(TABLES / "cluster_communication_2rank.json")
    assert [(each.step, each.rank, each.ranks) for each in found.named[:2]] == [
        (ABSENT, 0, (0, 1)),
        (ABSENT, 1, (0, 1)),
    ]
    assert found.elapse_ns[:2].tolist() == [121_736_944, 20_798_642]


def _entry(**links):
    times = {"Start Timestamp(us)": 1.5, "Elapse Time(ms)": 1, "Transit Time(ms)": 0}
    return {"Communication Time Info": times, "Communication Bandwidth Info": links}


def test_numbers_beyond_all_measure_are_unknown():
    """A damaged file's: no time, no size, and no warning."""
    assert ns_of_ms([1e308, -1.0, 2.5]).tolist() == [ABSENT, ABSENT, 2_500_000]
    assert bytes_of_mb([1e308, -1.0, 2.5]).tolist() == [ABSENT, ABSENT, 2_500_000]


def test_bad_entries_are_dropped_and_counted(tmp_path):
    """One operator of another form costs itself, one odd number only that number."""
    odd = {
        "Transit Size(MB)": 2,
        "Transit Time(ms)": 1e300,
        "Size Distribution": {"x": [1, 2], "2": [1e300, 1], "3": [1]},
    }
    path = tmp_path / "communication.json"
    operators = {"a@1": _entry(HCCS=odd), "b@1": [], "c@1": {"Communication Time Info": 3}, "d@1": _entry(HCCS={})}
    path.write_text(json.dumps({"step7": {"collective": operators}}))
    found = load_communication(path)
    assert ([each.operator for each in found.named], found.dropped_count) == (["a", "d"], 2)
    assert (found.link_bytes.tolist(), found.link_ns.tolist()) == ([2_000_000], [ABSENT])
    assert found.packet_bytes.tolist() == [ABSENT, 2_000_000]
    assert found.packet_count.tolist() == [1, ABSENT]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "1", '{"step1": 3}', '{"step1": {"p2p": []}}', "[" * 100_000, '{"a": {"b": {"c": ' + "[" * 10**6],
)
def test_other_json_is_refused_by_name(tmp_path, content):
    """The error names the file."""
    path = tmp_path / "communication.json"
    path.write_text(content)
    with pytest.raises(MalformedError, match=rf"JSON in {path}"):
        load_communication(path)
    with pytest.raises(MalformedError, match="size in "):
        load_communication(path, max_bytes=-1)


def test_deep_entries_are_refused(tmp_path):
    """What is nested beyond reason ends in the file's error, not in the interpreter's."""
    path = tmp_path / "communication.json"
    deep = "[" * 100_000 + "]" * 100_000
    path.write_text('{"step1": {"p2p": {"a@1": {"x": %s}}}}' % deep)  # noqa: UP031 - braces of JSON
    with pytest.raises(MalformedError):
        load_communication(path)
