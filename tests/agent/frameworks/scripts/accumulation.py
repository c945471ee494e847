"""Gradient accumulation by hand: three backwards per optimizer step."""

import torch
from torch.utils.data import DataLoader
from workload import BATCH, COLLECT_AFTER, STEPS, Ledger, Tokens, loss_of, make_model, slow_optimizer

ACCUMULATE = 3

ledger = Ledger()
model = make_model()
optimizer = slow_optimizer(ledger, torch.optim.SGD(model.parameters(), lr=0.1))
for index, batch in enumerate(DataLoader(Tokens(ledger, STEPS * ACCUMULATE), BATCH), start=1):
    ledger.batch(len(batch[0]), batch[0].numel())
    (loss_of(ledger, model, batch) / ACCUMULATE).backward()
    if index % ACCUMULATE == 0:
        optimizer.step()
        ledger.step()
        optimizer.zero_grad()
        if ledger.steps == COLLECT_AFTER:
            ledger.collect()
ledger.write()
