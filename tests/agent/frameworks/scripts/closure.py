"""LBFGS: the optimizer itself calls forward and backward, several times in one step."""

import torch
from torch.utils.data import DataLoader
from workload import BATCH, COLLECT_AFTER, STEPS, Ledger, Tokens, loss_of, make_model, slow_optimizer

ledger = Ledger()
model = make_model()
optimizer = slow_optimizer(ledger, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))
for batch in DataLoader(Tokens(ledger, STEPS), BATCH):
    ledger.batch(len(batch[0]), batch[0].numel())

    def closure(batch=batch):
        optimizer.zero_grad()
        loss = loss_of(ledger, model, batch)
        loss.backward()
        return loss

    optimizer.step(closure)
    ledger.step()
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write()
