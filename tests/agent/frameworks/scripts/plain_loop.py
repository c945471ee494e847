"""A loop as in the first tutorial: evaluation, a checkpoint and a garbage collection on the way."""

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
    save,
    slow_optimizer,
)

ledger = Ledger()
model = make_model()
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
validation = DataLoader(Tokens(ledger, 3), BATCH)
for batch in DataLoader(Tokens(ledger, STEPS), BATCH, shuffle=False):
    ledger.batch(len(batch[0]), batch[0].numel())
    optimizer.zero_grad()
    loss = loss_of(ledger, model, batch)
    loss.backward()
    optimizer.step()
    ledger.step()
    if ledger.steps == EVALUATE_AFTER:
        model.eval()
        evaluate(ledger, model, validation)
        model.train()
    if ledger.steps == SAVE_AFTER:
        save(ledger, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write()
