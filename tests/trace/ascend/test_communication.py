import json

import numpy as np
import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend.communication import bytes_of_mb, load_communication, ns_of_ms
from lockstep.trace.ascend.matrix import load_matrix
from lockstep.trace.ascend.operators import load_operators
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
    assert found.link_bandwidth[0] == pytest.approx(24.2778e9, rel=1e-5)
    assert found.large_packet_ratio[0] == 1.0
    assert (found.packet_link[0], found.packet_bytes[0], found.packet_count[0]) == (0, 20_971_520, 1)


def test_bandwidths_are_those_that_the_vendor_computed():
    """Size over time is what the file gives as bandwidth, for every link of size and time that digits allow."""
    found = load_communication(TABLES / "communication.json")
    document = json.loads((TABLES / "communication.json").read_text())
    vendor = {
        (operator.split("@")[0], kind): link["Bandwidth(GB/s)"]
        for operators in document["step2"].values()
        for operator, entry in operators.items()
        if operator != "Total Op Info"
        for kind, link in entry["Communication Bandwidth Info"].items()
    }
    for link in range(len(found.link_type)):
        expected = vendor[found.named[found.link_operator[link]].operator, found.link_type[link]]
        assert found.link_bandwidth[link] / 1e9 == pytest.approx(expected, rel=1e-2, abs=1e-3)


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


def test_matrices_of_ranks_and_clusters():
    """Links have source, target and transport; the vendor's bandwidth follows from size and time."""
    found = load_matrix(TABLES / "communication_matrix.json")
    assert (len(found), found.dropped_count) == (111, 0)
    assert (found.source[1], found.target[1], found.transport[1]) == (0, 8, "RDMA")
    assert found.bandwidth[1] == pytest.approx(24.2778e9, rel=1e-5)
    found = load_matrix(CLUSTER / "cluster_communication_matrix.json")
    assert {(int(s), int(t)) for s, t in zip(found.source, found.target, strict=True)} >= {(0, 8), (9, 9), (1, 0)}


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
    assert np.isnan(found.link_bandwidth[0])
    assert found.packet_bytes.tolist() == [ABSENT, 2_000_000]
    assert found.packet_count.tolist() == [1, ABSENT]


@pytest.mark.parametrize("load", [load_communication, load_matrix])
@pytest.mark.parametrize(
    "content",
    ["", "[]", "1", '{"step1": 3}', '{"step1": {"p2p": []}}', "[" * 100_000, '{"a": {"b": {"c": ' + "[" * 10**6],
)
def test_other_json_is_refused_by_name(tmp_path, load, content):
    """The error names the file."""
    path = tmp_path / "communication.json"
    path.write_text(content)
    with pytest.raises(MalformedError, match=rf"JSON in {path}"):
        load(path)
    with pytest.raises(MalformedError, match="size in "):
        load(path, max_bytes=-1)


def test_deep_entries_are_refused(tmp_path):
    """What is nested beyond reason ends in the file's error, not in the interpreter's."""
    path = tmp_path / "communication.json"
    deep = "[" * 100_000 + "]" * 100_000
    path.write_text('{"step1": {"p2p": {"a@1": {"x": %s}}}}' % deep)  # noqa: UP031 - braces of JSON
    with pytest.raises(MalformedError):
        load_communication(path)


def test_links_of_no_pair_are_dropped(tmp_path):
    """A link between no ranks shows nothing."""
    path = tmp_path / "communication_matrix.json"
    path.write_text(json.dumps({"step1": {"p2p": {"a@1": {"0-1": {"Transit Size(MB)": 1}, "x": {}}}}}))
    found = load_matrix(path)
    assert (len(found), found.dropped_count, found.bytes.tolist()) == (1, 1, [1_000_000])
    assert found.duration_ns.tolist() == [ABSENT]


def test_operators():
    """Host and device times, names and stacks are those of the file."""
    found = load_operators(TABLES / "operator_details.csv")
    assert (len(found), found.dropped_count) == (2, 0)
    assert [found.names[code] for code in found.name] == ["aten::empty", "aten::zero_"]
    assert found.host_self_ns.tolist() == [66_250, 221_160]
    assert found.shape_texts[found.shapes[1]] == "232138240"
    assert "\n" in found.stacks[found.stack[0]]
    assert ";" not in found.stacks[found.stack[0]]
