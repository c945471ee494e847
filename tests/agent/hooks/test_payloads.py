"""What the hook takes for the payload of a collective, and the bytes over the slowest link that follow."""

import pytest
import torch
import torch.distributed as dist

from lockstep.contracts.bus_bytes import bus_bytes
from lockstep.contracts.marks import MARK_STRUCT, MarkKind, unpack_issue

pytestmark = pytest.mark.torch


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
            assert bus_bytes(issued.operator, issued.payload_bytes, issued.group_size) == 4 * moved, name
    finally:
        dist.destroy_process_group()
