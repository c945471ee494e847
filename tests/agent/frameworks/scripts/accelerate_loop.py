"""Accelerate: prepared model, optimizer and loaders, accumulation over two batches, evaluation, a saved state."""

import sys
from pathlib import Path

import accelerate
import torch
from torch.utils.data import DataLoader
from workload import (
    BATCH,
    COLLECT_AFTER,
    EVALUATE_AFTER,
    SAVE_AFTER,
    STEPS,
    Ledger,
    Tokens,
    evaluate,
    loss_of,
    make_model,
    slow_optimizer,
)

ACCUMULATE = 2

ledger = Ledger()
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
model = make_model()
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
loader, validation = DataLoader(Tokens(ledger, STEPS * ACCUMULATE), BATCH), DataLoader(Tokens(ledger, 3), BATCH)
model, optimizer, loader, validation = accelerator.prepare(model, optimizer, loader, validation)
for batch in loader:
    ledger.batch(len(batch[0]), batch[0].numel())
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(ledger, model, batch))
        optimizer.step()
        if accelerator.sync_gradients:
            ledger.step()
        optimizer.zero_grad()
    if not accelerator.sync_gradients:
        continue
    if ledger.steps == EVALUATE_AFTER:
        model.eval()
        evaluate(ledger, model, validation)
        model.train()
    if ledger.steps == SAVE_AFTER:
        ledger.note("checkpoint")
        accelerator.save_state(Path(sys.argv[1]).with_name("state"))
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write(accelerate=accelerate)
