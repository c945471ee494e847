"""Accelerate under its own launcher, two ranks: accumulation over two batches."""

import accelerate
import torch
from ledger import BATCH, STEPS, Ledger, Tokens, bucket_traffic, make_model
from torch.utils.data import DataLoader

ACCUMULATE = 2

accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
ledger = Ledger(accelerator.process_index)
ranks = accelerator.num_processes
model = make_model()
ledger.groups = [["world", list(range(ranks))]]
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Tokens(ranks * ACCUMULATE * STEPS), BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for tokens, targets in loader:
    ledger.batch(len(tokens), tokens.numel())
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(tokens), targets)
        accelerator.backward(loss)
        ledger.loss(loss.detach())
        if accelerator.sync_gradients:
            ledger.work()
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        ledger.step()
ledger.traffic = {"world": bucket_traffic(model)}
ledger.write(accelerate=accelerate)
accelerator.end_training()
