"""Hugging Face Trainer on a small GPT-2: accumulation over two batches, evaluation and checkpoints."""

import sys
from pathlib import Path

import torch
import transformers
from workload import (
    BATCH,
    COLLECT_AFTER,
    EVALUATE_AFTER,
    SAVE_AFTER,
    SEQUENCE,
    STEPS,
    VOCABULARY,
    Ledger,
    Tokens,
    slow,
    slow_optimizer,
)

ACCUMULATE = 2


class Sentences(Tokens):
    def __getitem__(self, index):
        tokens, _ = super().__getitem__(index)
        return {"input_ids": tokens, "labels": tokens}


class SlowModel(transformers.GPT2LMHeadModel):
    def forward(self, **inputs):
        if self.training:
            ledger.batch(len(inputs["input_ids"]), inputs["input_ids"].numel())
        output = super().forward(**inputs)
        output.loss = slow(ledger, output.loss)
        return output


class Keeper(transformers.TrainerCallback):
    def on_step_end(self, *_others, **_more):
        ledger.step()
        if ledger.steps == COLLECT_AFTER:
            ledger.collect()

    def on_evaluate(self, *_others, **_more):
        ledger.note("evaluation")

    def on_save(self, *_others, **_more):
        ledger.note("checkpoint")


ledger = Ledger()
configuration = transformers.GPT2Config(
    vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
model = SlowModel(configuration)
optimizer = slow_optimizer(ledger, torch.optim.AdamW(model.parameters()))
trainer = transformers.Trainer(
    model,
    transformers.TrainingArguments(
        str(Path(sys.argv[1]).with_name("trainer")),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_steps=STEPS,
        train_sampling_strategy="sequential",
        eval_strategy="steps",
        eval_steps=EVALUATE_AFTER,
        save_strategy="steps",
        save_steps=SAVE_AFTER,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    ),
    train_dataset=Sentences(ledger, STEPS * ACCUMULATE),
    eval_dataset=Sentences(ledger, 3),
    optimizers=(optimizer, None),
    callbacks=[Keeper()],
)
trainer.train()
ledger.write(transformers=transformers)
