"""Network settings of the ranks."""

import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.communication_causes.settings import find_settings


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("NCCL_P2P_DISABLE", "1", True),
        ("NCCL_P2P_DISABLE", "0", False),
        ("NCCL_IB_DISABLE", "1", True),
        ("HCCL_RDMA_TC", "132", False),
        ("HCCL_RDMA_TC", "130", True),
        ("HCCL_RDMA_TC", "256", True),
        ("HCCL_RDMA_TC", "99999999999999999999", True),
        ("HCCL_RDMA_SL", "4", False),
        ("HCCL_RDMA_SL", "8", True),
        ("HCCL_RDMA_TIMEOUT", "x", True),
        ("PATH", "1", False),
    ],
)
def test_known_settings(name, value, wrong):
    """Values that disable a path or are out of range are reported; good ones and foreign variables are not."""
    found = find_settings({0: {name: value}, 1: {name: value}})
    assert [(each.cause, each.subject, each.ranks) for each in found] == (
        [("network_configuration", name, (0, 1))] if wrong else []
    )


def test_ranks_that_differ():
    """The minority is named; variables that belong to a node may differ."""
    usual = {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth0"}
    other = {"NCCL_SOCKET_IFNAME": "eth1"}
    (finding,) = find_settings({0: usual, 1: usual, 2: other})
    assert (finding.subject, finding.ranks) == ("NCCL_ALGO", (2,))
    assert "Ring on 2 ranks; not set on 1 ranks" in finding.evidence[0]


def test_nothing_given_is_not_evaluated():
    """Ranks without such variables are well; no environment at all is no evidence."""
    assert find_settings({0: {}, 1: {"HOME": "/"}}) == []
    assert isinstance(find_settings({}), NotEvaluated)


def test_what_is_not_listed_is_not_held_to_be_unset():
    """Of a rank in `partial` only what is given is known; an empty value is known not to be set, and never wrong."""
    environments = {0: {"NCCL_ALGO": "Ring"}, 1: {"NCCL_ALGO": "Ring"}, 2: {"HCCL_RDMA_TC": " "}}
    assert find_settings(environments, partial={2}) == []
    (finding,) = find_settings(environments)
    assert (finding.subject, finding.ranks) == ("NCCL_ALGO", (2,))
    (finding,) = find_settings({**environments, 2: {"NCCL_ALGO": ""}}, partial={2})
    assert (finding.subject, finding.ranks) == ("NCCL_ALGO", (2,))


def test_libraries_of_different_versions():
    """The minority is named, with or without variables; ranks that do not report it are left out."""
    versions = {0: {"NCCL": "2.21.5"}, 1: {"NCCL": "2.21.5"}, 2: {"NCCL": "2.20.3"}, 3: {}}
    for environments in ({}, {0: {}}):
        (finding,) = find_settings(environments, versions=versions)
        assert (finding.subject, finding.ranks) == ("NCCL version", (2,))
    assert isinstance(find_settings({}, versions={0: {"NCCL": "2.21.5"}}), NotEvaluated)
