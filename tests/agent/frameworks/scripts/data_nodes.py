"""torchdata's nodes: an iterator of its own instead of a DataLoader."""

import torch
import torchdata
from torch.utils.data import default_collate
from torchdata.nodes import Batcher, Loader, Mapper, MapStyleWrapper
from workload import BATCH, COLLECT_AFTER, STEPS, Ledger, Tokens, loss_of, make_model, slow_optimizer

ledger = Ledger()
model = make_model()
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
dataset = Tokens(ledger, STEPS)
node = Mapper(Batcher(MapStyleWrapper(dataset, range(len(dataset))), BATCH), default_collate)
for batch in Loader(node):
    ledger.batch(len(batch[0]), batch[0].numel())
    optimizer.zero_grad()
    loss_of(ledger, model, batch).backward()
    optimizer.step()
    ledger.step()
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write(torchdata=torchdata)
