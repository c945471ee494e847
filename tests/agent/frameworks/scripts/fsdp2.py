"""fully_shard on every block and on the root, saved by torch.distributed.checkpoint."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from workload import (
    BATCH,
    COLLECT_AFTER,
    SAVE_AFTER,
    SEQUENCE,
    STEPS,
    VOCABULARY,
    Ledger,
    Tokens,
    loss_of,
    slow_optimizer,
)

WIDTH, BLOCKS = 16 * SEQUENCE, 2

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=RANKS)
ledger = Ledger()
blocks = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)]
head = torch.nn.Linear(WIDTH, VOCABULARY)
embedding = torch.nn.Embedding(VOCABULARY, 16)
model = torch.nn.Sequential(embedding, torch.nn.Flatten(), *blocks, head)
sharded = [sum(parameter.nbytes for parameter in block.parameters()) for block in blocks]
root = sum(parameter.nbytes for layer in (embedding, head) for parameter in layer.parameters())
# Blocks are gathered in forward and again in backward, the root's own once; each one's gradients are scattered once.
ledger.traffic = (3 * BLOCKS + 2, 3 * sum(sharded) + 2 * root)
mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
for block in blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
dataset = Tokens(ledger, RANKS * STEPS)
sampler = DistributedSampler(dataset, shuffle=False)
for batch in DataLoader(dataset, BATCH, sampler=sampler):
    ledger.batch(len(batch[0]), batch[0].numel())
    optimizer.zero_grad()
    loss_of(ledger, model, batch).backward()
    optimizer.step()
    ledger.step()
    if ledger.steps == SAVE_AFTER:
        ledger.note("checkpoint")
        dcp.save({"model": model.state_dict()}, checkpoint_id=Path(sys.argv[2]).with_name("checkpoint"))
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write()
dist.destroy_process_group()
