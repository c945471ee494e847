"""DistributedDataParallel, one bucket; rank 0 alone saves."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from workload import (
    BATCH,
    COLLECT_AFTER,
    SAVE_AFTER,
    STEPS,
    Ledger,
    Tokens,
    loss_of,
    make_model,
    save,
    slow_optimizer,
)

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=RANKS)
ledger = Ledger()
model = make_model()
ledger.traffic = (1, sum(parameter.nbytes for parameter in model.parameters()))
model = DistributedDataParallel(model)
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
dataset = Tokens(ledger, RANKS * STEPS)
sampler = DistributedSampler(dataset, shuffle=False)
for batch in DataLoader(dataset, BATCH, sampler=sampler):
    ledger.batch(len(batch[0]), batch[0].numel())
    optimizer.zero_grad()
    loss_of(ledger, model, batch).backward()
    optimizer.step()
    ledger.step()
    if ledger.steps == SAVE_AFTER and RANK == 0:
        save(ledger, {"model": model.module.state_dict()})
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write()
dist.destroy_process_group()
