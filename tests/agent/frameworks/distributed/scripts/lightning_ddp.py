"""Lightning's Trainer with two devices: its script launcher starts this script again, or its spawn launcher forks."""

import os
import sys

import lightning
import torch
from ledger import BATCH, STEPS, Ledger, Tokens, bucket_traffic, make_model
from torch.utils.data import DataLoader

RANKS = 2


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = make_model()
        self.ledger = None

    def training_step(self, batch, _index):
        tokens, targets = batch
        self.ledger.batch(len(tokens), tokens.numel())
        self.ledger.work()
        loss = torch.nn.functional.cross_entropy(self.model(tokens), targets)
        self.ledger.loss(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Keeper(lightning.Callback):
    def setup(self, trainer, module, **_more):
        module.ledger = Ledger(trainer.global_rank)
        module.ledger.groups = [["world", list(range(RANKS))]]

    def on_train_batch_end(self, _trainer, module, *_others):
        module.ledger.step()

    def on_train_end(self, trainer, module):
        count, size = bucket_traffic(trainer.strategy.model)
        module.ledger.traffic = {"world": [count + 1, size + 8]}  # whether a rank was terminated, an int64
        module.ledger.write(lightning=lightning)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=sys.argv[1],
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Keeper()],
        default_root_dir=os.environ["LEDGERS"],
    )
    trainer.fit(Module(), DataLoader(Tokens(RANKS * STEPS), BATCH))
