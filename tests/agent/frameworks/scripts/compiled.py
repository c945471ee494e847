"""A compiled model, by the backend named in the second argument; a third one makes a batch short: dynamo compiles again."""

import sys

import torch
from torch.utils.data import DataLoader
from workload import BATCH, COLLECT_AFTER, STEPS, Ledger, Tokens, loss_of, make_model, slow_optimizer

backend, *short = sys.argv[2:]
SHORT_AFTER = 12 if short else None

ledger = Ledger()
model = torch.compile(make_model(), backend=backend)
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
for tokens, targets in DataLoader(Tokens(ledger, STEPS), BATCH):
    ledger.batch(len(tokens), tokens.numel())
    rows = BATCH // 2 if ledger.steps == SHORT_AFTER else BATCH
    optimizer.zero_grad()
    loss = loss_of(ledger, model, (tokens[:rows], targets[:rows]))
    loss.backward()
    optimizer.step()
    ledger.step()
    ledger.losses.append(loss.item())
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write()
