"""Marks of a real training, gloo's own thread included, through a ring in a file to step records."""

import gc
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

from lockstep.accounting.block_reader import BlockReader
from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import BLOCK_BYTES, pack_call_site
from lockstep.contracts.records import MISSING, Flag
from tests.accounting.played import named
from tests.agent.mark_buffers import WRITERS, Ring
from tests.agent.rings import unaccounted_ns

pytestmark = pytest.mark.torch

STEPS = 24
SITE = pack_call_site("allreduce_", synchronous=False, domain=3, slot=0, group_size=2)


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def reduce_gradient(buffer, gradient):
    """Reduce asynchronously and wait; gloo's thread notes the end."""
    ordinal = buffer.issue(SITE, gradient.numel() * gradient.element_size())
    work = dist.all_reduce(gradient, async_op=True)
    future = work.get_future().then(lambda _future: buffer.done(ordinal))
    buffer.wait_begin()
    work.wait()
    buffer.wait_end()
    future.wait()


def train(buffer):
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    handles = [
        register_optimizer_step_pre_hook(lambda optimizer, _args, _kwargs: buffer.optimizer_begin(optimizer)),
        register_optimizer_step_post_hook(lambda _optimizer, _args, _kwargs: buffer.optimizer_end()),
    ]
    gc.callbacks.append(buffer.collect)
    batches = iter(DataLoader(TensorDataset(torch.ones(STEPS * 4, 64)), batch_size=4))
    for step in range(STEPS):
        buffer.data_begin()
        (batch,) = next(batches)
        buffer.data_end()
        buffer.batch(len(batch), MISSING, MISSING)
        loss = model(batch).sum()
        buffer.backward_begin()
        loss.backward()
        buffer.backward_end()
        reduce_gradient(buffer, model.weight.grad)
        if step == STEPS // 2:
            gc.collect()
            buffer.flag(int(Flag.CHECKPOINT))
        optimizer.step()
    gc.callbacks.remove(buffer.collect)
    for handle in handles:
        handle.remove()


def fetch_of(ring, first, count):
    return ring.bytes()[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", WRITERS)
def test_a_real_training_has_its_steps(name, tmp_path):
    """Each optimizer step is one record whose parts sum to it, with its batch, collective, collection and flag."""
    ring = Ring(tmp_path, name, block_count=64, real_clock=True)
    ring.buffer.begin()
    train(ring.buffer)
    ring.buffer.finish()
    builder = StepBuilder()
    blocks = BlockReader(64).read(partial(fetch_of, ring)).blocks
    steps = [step for block in blocks for step in builder.add(block)]
    records = [named(step.record) for step in steps]
    assert builder.has_finished
    assert [record["step"] for record in records] == list(range(STEPS))
    for record in records:
        assert unaccounted_ns(record) == 0
        assert (record["dp_count"], record["dp_bytes"], record["samples"]) == (1, 64 * 8 * 4, 4)
        assert 0 < record["dp_shortest_ns"] <= record["end_ns"] - record["start_ns"]
        assert min(record["forward_ns"], record["backward_ns"], record["optimizer_ns"], record["cpu_ns"]) > 0
    assert [record["step"] for record in records if record["flags"] & Flag.CHECKPOINT] == [STEPS // 2]
    assert records[STEPS // 2]["gc_full_count"] == 1
    ring.close()
