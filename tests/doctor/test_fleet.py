"""What differs between nodes."""

from lockstep.doctor.fleet_facts import compare
from lockstep.doctor.verdict import FAIL, OK, WARN
from tests.doctor.test_checks import HEALTHY


def node(host, **changed):
    return {**HEALTHY, "host": host, "versions": {"torch": "2.9", "numpy": "2.4", "nvidia driver": "570"}, **changed}


def test_nodes_that_agree():
    """One line states that."""
    (check,) = compare([node("a"), node("b"), node("c")])
    assert check.verdict == OK
    assert "3 nodes" in check.found


def test_the_odd_node_is_named():
    """A version that can stop the job fails, another one warns; nodes that lack it are named too."""
    odd = node("odd", versions={"torch": "2.8", "numpy": "2.4"})
    checks = {check.name: check for check in compare([node("a"), node("b"), odd])}
    assert checks["version of torch"].verdict == FAIL
    assert checks["version of torch"].found == "2.9 on 2 nodes, 2.8 on odd"
    assert checks["version of nvidia driver"].verdict == WARN
    assert "absent on odd" in checks["version of nvidia driver"].found
    assert "version of numpy" not in checks


def test_settings_differ_and_interfaces_may():
    """NCCL_ALGO must be alike everywhere; the interface's name may be the host's own."""
    one = node("a", environment={"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth0"})
    other = node("b", environment={"NCCL_SOCKET_IFNAME": "ens5"})
    assert [check.name for check in compare([one, other])] == ["variable NCCL_ALGO"]


def test_sizes_differ_by_more_than_firmware():
    """A node with half the memory is reported; kilobytes that a kernel keeps are not."""
    gib = 2**30
    one = node("a", memory={"total_bytes": 512 * gib})
    other = node("b", memory={"total_bytes": 512 * gib - 4096})
    half = node("c", memory={"total_bytes": 256 * gib})
    assert compare([one, other])[0].verdict == OK
    assert [check.found for check in compare([one, other, half])] == ["512 GiB on 2 nodes, 256 GiB on c"]


def test_many_odd_nodes_are_counted():
    """A list of a thousand names is of no use."""
    nodes = [node(f"n{i}") for i in range(20)] + [node(f"x{i}", versions={}) for i in range(9)]
    assert all("and 4 more" in check.found for check in compare(nodes))
