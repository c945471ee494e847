"""Which series joins which machine, and which joins none."""

from collections import Counter
from dataclasses import replace

import pytest

from coordinator.evidence.catalogue import load_catalogue
from coordinator.evidence.join import PARTS_MAX, collect, host_matchers, joins_of, match_host, split_by
from coordinator.evidence.machines import Machine
from coordinator.evidence.prometheus import InstantSeries

SOURCES = load_catalogue().sources
DCGM, NODE, AMD, INSPECTOR = (SOURCES[name] for name in ("dcgm", "node", "amd", "inspector"))
QUIET = {"ambiguous": 0}


def machine(rank, *, host="n0", uuid="", local_rank=None, suspect=False):
    local_rank = rank if local_rank is None else local_rank
    return Machine(ranks=(rank,), is_suspect=suspect, hosts=frozenset({host}), local_rank=local_rank, uuid=uuid)


ONE, TWO = machine(0, uuid="GPU-0"), machine(1, host="n1", uuid="GPU-1", local_rank=0)


def joined(source, machines, *series):
    """Return values by rank, and what was refused."""
    refused = Counter()
    values = {}
    for join in joins_of(source, machines):
        own = [InstantSeries(labels, value) for labels, value in series]
        values = {each.ranks[0]: value for each, value in collect(join, own, refused).items()} | values
    return values, {reason: count for reason, count in refused.items() if count}


def gpu(uuid, host, index="0", **more):
    return {"UUID": uuid, "Hostname": host, "gpu": index, **more}


def test_a_device_with_a_uuid_is_joined_by_it_whatever_its_number():
    """The scheduler renumbers devices; the exporter of a pod calls its host as it likes."""
    values, refused = joined(DCGM, [ONE, TWO], (gpu("GPU-0", "dcgm-exporter-x7", "5"), 1.0), (gpu("GPU-1", "n1"), 2.0))
    assert (values, refused) == ({0: 1.0, 1: 2.0}, {})


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([(gpu("GPU-0", "n1"), 1.0)], {"foreign": 1}),
        ([(gpu("GPU-0", "n0"), 1.0), (gpu("GPU-0", "n7"), 9.0)], {"ambiguous": 2}),
        ([(gpu("GPU-0", "n0"), 1.0), (gpu("GPU-0", "n0", "3"), 9.0)], {"ambiguous": 2}),
        ([(gpu("GPU-9", "n0"), 1.0)], {"foreign": 1}),
        ([({}, 1.0)], {"foreign": 1}),
        ([(gpu("GPU-0", "n0"), None)], {"invalid": 1}),
    ],
    ids=["a device of another host", "two hosts", "two places", "another device", "no label", "no number"],
)
def test_a_label_that_lies_joins_nothing(series, expected):
    """What contradicts the announced device, or another series, is counted and not used."""
    assert joined(DCGM, [ONE, TWO], *series) == ({}, expected)


def test_one_device_published_twice_is_one_device():
    """Two scrape jobs of one exporter differ in nothing that names the device."""
    series = [(gpu("GPU-0", "n0", job=job), value) for job, value in (("a", 1.0), ("b", 3.0))]
    assert joined(DCGM, [ONE], *series) == ({0: 2.0}, {})


def test_without_a_uuid_host_and_local_rank_join():
    """With a domain or a port at either name, and never by the number alone."""
    two = [machine(0, host="n0.lan"), machine(1, host="n1", local_rank=0)]
    labels = [{"hostname": host, "gpu_id": "0"} for host in ("n0", "n1.lan", "n2")]
    by_host = joins_of(AMD, two)[0]
    refused = Counter()
    values = collect(by_host, [InstantSeries(each, float(at)) for at, each in enumerate(labels)], refused)
    assert ({each.ranks[0]: value for each, value in values.items()}, refused["foreign"]) == ({0: 0.0, 1: 1.0}, 1)
    assert match_host("n1:9100", two) is two[1]
    assert match_host("n1.other.lan", [machine(0, host="n1.lan")]) is None
    assert match_host("n1", [machine(0, host="n1"), machine(1, host="n1.lan")]) is None


def test_else_the_pod_joins():
    """In a pod the host's name is the pod's."""
    pod = machine(3, host="job-worker-1", local_rank=2)
    labels = {"hostname": "node-a", "gpu_id": "2", "pod": "job-worker-1"}
    values, _ = joined(AMD, [pod], (labels, 5.0))
    assert values == {3: 5.0}
    assert joined(AMD, [pod], (labels | {"gpu_id": "1"}, 5.0))[0] == {}


def test_hosts_are_joined_by_the_instance_that_was_resolved():
    """An instance is text of a label: what could leave the matcher is not asked for."""
    hosts = {machine(0): "10.0.0.1:9100", machine(1, host="n1"): '"} or up{x="'}
    (join,) = joins_of(NODE, list(hosts), hosts)
    assert join.matchers == 'instance=~"10\\\\.0\\\\.0\\\\.1:9100"'
    values = collect(join, [InstantSeries({"instance": "10.0.0.1:9100"}, 1.0)], Counter())
    assert {each.ranks[0] for each in values} == {0}


def test_a_name_that_is_more_than_a_name_is_not_asked_for():
    """Host names and UUIDs come from the bus."""
    hostile = [machine(0, host='n0"} or up{a="', uuid='GPU-"'), machine(1, host="n1.*")]
    assert host_matchers("Hostname", hostile) == ""
    assert joins_of(DCGM, hostile) == []


def test_series_of_ranks_are_joined_by_run_and_rank():
    """Only those of the incident's run and of its ranks are asked for; another run's join nothing."""
    two = [replace(machine(3), run="job"), replace(machine(12), run="job")]
    (join,) = joins_of(INSPECTOR, two)
    assert join.matchers == 'run="job",rank=~"3|12"'
    values, refused = joined(INSPECTOR, two, ({"run": "job", "rank": "12"}, 1.0), ({"run": "other", "rank": "3"}, 2.0))
    assert (values, refused) == ({12: 1.0}, {"foreign": 1})
    assert joins_of(INSPECTOR, [replace(machine(3), run='job"} or up{a="')]) == []


def test_series_are_split_by_labels_whatever_they_hold():
    """Communicator and operation are text from anywhere: no line of text, too long, or too many, and it is refused."""
    refused = Counter()
    labels = [{"communicator": "dp", "operation": "AllReduce"}, {"communicator": "tp"}]
    labels += [{"communicator": "dp\n<b>"}, {"communicator": "x" * 10_000}, {"communicator": "\u202e"}]
    labels += [{"communicator": str(number)} for number in range(PARTS_MAX)]
    parts = split_by(("communicator", "operation"), [InstantSeries(each, 1.0) for each in labels], refused)
    assert list(parts)[:2] == ["dp AllReduce", "tp "]
    assert (len(parts), refused["invalid"]) == (PARTS_MAX, 3 + 2)
    assert list(split_by((), [InstantSeries({}, 1.0)] * 3, refused)) == [""]
