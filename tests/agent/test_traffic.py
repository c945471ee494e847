"""Bytes over the slowest link, by operator and group size; and what the hook takes for the payload."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.agent.traffic import bus_bytes
from lockstep.contracts.marks import MARK_STRUCT, OPERATORS, MarkKind, unpack_issue

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
    assert bus_bytes(operator, MEGA, 2) == of_two * MEGA
    assert bus_bytes(operator, MEGA, 8) == of_eight * MEGA


def test_every_operator_that_is_seen_has_a_factor():
    """No collective that the hook sees lacks one; a group of one moves nothing, nor does a barrier."""
    for operator in OPERATORS:
        assert bus_bytes(operator, MEGA, 4) > 0
        assert bus_bytes(operator, MEGA, 1) == 0
    assert bus_bytes("barrier", 0, 8) == 0


@settings(deadline=None)
@given(st.sampled_from(sorted(OPERATORS)), st.integers(0, 1 << 50), st.integers(1, 1 << 20))
def test_whole_and_bounded(operator, payload_bytes, group_size):
    """Whole bytes, never negative, never above twice the payload where the payload is the whole."""
    moved = bus_bytes(operator, payload_bytes, group_size)
    assert isinstance(moved, int)
    assert moved >= 0
    if operator not in ("gather_", "scatter_"):
        assert moved <= 2 * payload_bytes


def four(count):
    return [torch.ones(count) for _ in range(4)]


# What rank 0 of four calls -> payload and bus elements, of 4 bytes each.
CALLS = {
    "all_reduce": (lambda: dist.all_reduce(torch.ones(100)), 100, 150),
    "all_gather": (lambda: dist.all_gather(four(100), torch.ones(100)), 400, 300),
    "all_gather_single": (lambda: dist.all_gather_single(torch.ones(400), torch.ones(100)), 400, 300),
    "reduce_scatter": (lambda: dist.reduce_scatter(torch.ones(100), four(100)), 400, 300),
    "reduce_scatter_single": (lambda: dist.reduce_scatter_single(torch.ones(100), torch.ones(400)), 400, 300),
    "all_to_all": (lambda: dist.all_to_all(four(100), four(100)), 400, 300),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(torch.ones(200), torch.ones(400), [50] * 4, [100] * 4),
        400,
        300,
    ),
    "broadcast": (lambda: dist.broadcast(torch.ones(100), 0), 100, 100),
    "reduce": (lambda: dist.reduce(torch.ones(100), 0), 100, 100),
    "gather": (lambda: dist.gather(torch.ones(100), four(100), 0), 100, 300),
    "scatter": (lambda: dist.scatter(torch.ones(100), four(100), 0), 100, 300),
    "send": (lambda: dist.send(torch.ones(100), 1), 100, 100),
    "recv": (lambda: dist.recv(torch.ones(100), 1), 100, 100),
    "barrier": (dist.barrier, 0, 0),
}


def issues(ring):
    marks = [mark for block in ring.blocks for mark in MARK_STRUCT.iter_unpack(block.marks)]
    return [unpack_issue(detail, argument) for _, kind, detail, _, argument in marks if kind == MarkKind.ISSUE]


def test_payload_of_every_call(watched):
    """Through torch's own calls in a group of four, the hook notes the payload that each factor is meant for."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  (after torch)

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        dist.barrier()
        for name, (call, payload, moved) in CALLS.items():
            before = len(issues(watched.ring()))
            call()
            (issued,) = issues(watched.ring())[before:]
            assert issued.payload_bytes == 4 * payload, name
            assert bus_bytes(OPERATORS[issued.operator], issued.payload_bytes, issued.group_size) == 4 * moved, name
    finally:
        dist.destroy_process_group()
