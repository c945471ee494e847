"""Bytes over the slowest link, by operator and group size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.contracts.bus_bytes import bus_bytes
from lockstep.contracts.marks import OPERATORS

MEGA = 1_000_000


@pytest.mark.parametrize(
    ("operator", "of_two", "of_eight"),
    [
        ("allreduce_", 1.0, 1.75),
        ("allreduce_coalesced_", 1.0, 1.75),
        ("_allgather_base_", 0.5, 0.875),
        ("allgather_", 0.5, 0.875),
        ("_reduce_scatter_base_", 0.5, 0.875),
        ("reduce_scatter_", 0.5, 0.875),
        ("alltoall_base_", 0.5, 0.875),
        ("broadcast_", 1.0, 1.0),
        ("reduce_", 1.0, 1.0),
        ("send", 1.0, 1.0),
        ("recv_", 1.0, 1.0),
        ("gather_", 1.0, 7.0),
        ("scatter_", 1.0, 7.0),
    ],
)
def test_factors(operator, of_two, of_eight):
    """The factors are those of nccl-tests; of gather and scatter only a rank's own part is known."""
    index = OPERATORS.index(operator)
    assert bus_bytes(index, MEGA, 2) == of_two * MEGA
    assert bus_bytes(index, MEGA, 8) == of_eight * MEGA


def test_every_operator_that_is_seen_has_a_factor():
    """No collective that the hook sees lacks one; a group of one moves nothing, nor does a barrier."""
    for operator in range(len(OPERATORS)):
        assert bus_bytes(operator, MEGA, 4) > 0
        assert bus_bytes(operator, MEGA, 1) == 0
    assert bus_bytes(OPERATORS.index("barrier"), 0, 8) == 0


@settings(deadline=None)
@given(st.sampled_from(sorted(OPERATORS)), st.integers(0, 1 << 50), st.integers(1, 1 << 20))
def test_whole_and_bounded(operator, payload_bytes, group_size):
    """Whole bytes, never negative, never above twice the payload where the payload is the whole."""
    moved = bus_bytes(OPERATORS.index(operator), payload_bytes, group_size)
    assert isinstance(moved, int)
    assert moved >= 0
    if operator not in ("gather_", "scatter_"):
        assert moved <= 2 * payload_bytes
