"""Mixed precision with a gradient scaler, which skips the optimizer's step where a gradient overflowed."""

import torch
from torch.utils.data import DataLoader
from workload import BATCH, COLLECT_AFTER, STEPS, Ledger, Tokens, loss_of, make_model, slow_optimizer

OVERFLOW_IN = (5, 18)

ledger = Ledger()
model = make_model()
optimizer = slow_optimizer(ledger, torch.optim.SGD(model.parameters(), lr=0.1))
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for batch in DataLoader(Tokens(ledger, STEPS), BATCH):
    ledger.batch(len(batch[0]), batch[0].numel())
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(ledger, model, batch)
    if ledger.steps in OVERFLOW_IN:
        loss = loss * float("inf")
        ledger.note("skipped")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    ledger.step()
    scaler.update()
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write()
