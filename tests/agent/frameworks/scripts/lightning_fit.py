"""Lightning's Trainer: automatic optimization, accumulation over two batches, validation, checkpoints."""

import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from workload import (
    BATCH,
    COLLECT_AFTER,
    EVALUATE_AFTER,
    SAVE_AFTER,
    STEPS,
    Ledger,
    Tokens,
    loss_of,
    make_model,
    slow_optimizer,
)

ACCUMULATE = 2


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def training_step(self, batch, _index):
        ledger.batch(len(batch[0]), batch[0].numel())
        return loss_of(ledger, self.model, batch)

    def validation_step(self, batch, _index):
        loss_of(ledger, self.model, batch)

    def configure_optimizers(self):
        return slow_optimizer(ledger, torch.optim.AdamW(self.parameters()))


class Keeper(lightning.Callback):
    def on_train_batch_end(self, trainer, *_others):
        if trainer.global_step > ledger.steps:
            ledger.step()
            if ledger.steps == COLLECT_AFTER:
                ledger.collect()

    def on_validation_start(self, *_others):
        ledger.note("evaluation")

    def on_save_checkpoint(self, *_others):
        ledger.note("checkpoint")


ledger = Ledger()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=STEPS,
    accumulate_grad_batches=ACCUMULATE,
    val_check_interval=EVALUATE_AFTER * ACCUMULATE,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[Keeper(), ModelCheckpoint(Path(sys.argv[1]).parent, every_n_train_steps=SAVE_AFTER)],
)
trainer.fit(Module(), DataLoader(Tokens(ledger, STEPS * ACCUMULATE), BATCH), DataLoader(Tokens(ledger, 3), BATCH))
ledger.write(lightning=lightning)
