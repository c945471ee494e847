"""torchdata's StatefulDataLoader, whose state is saved with the checkpoint."""

import torch
import torchdata
from torchdata.stateful_dataloader import StatefulDataLoader
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

ledger = Ledger()
model = make_model()
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
loader = StatefulDataLoader(Tokens(ledger, STEPS), BATCH)
for batch in loader:
    ledger.batch(len(batch[0]), batch[0].numel())
    optimizer.zero_grad()
    loss_of(ledger, model, batch).backward()
    optimizer.step()
    ledger.step()
    if ledger.steps == SAVE_AFTER:
        save(ledger, {"model": model.state_dict(), "loader": loader.state_dict()})
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write(torchdata=torchdata)
