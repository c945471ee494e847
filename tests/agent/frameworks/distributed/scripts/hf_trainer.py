"""Hugging Face Trainer on a small GPT-2, two ranks: accumulation over two batches."""

import os
from pathlib import Path

import torch.distributed as dist
import transformers
from ledger import BATCH, SEQUENCE, STEPS, VOCABULARY, WIDTH, Ledger, Tokens, bucket_traffic

ACCUMULATE = 2
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Sentences(Tokens):
    def __getitem__(self, index):
        tokens, _ = super().__getitem__(index)
        return {"input_ids": tokens, "labels": tokens}


class Model(transformers.GPT2LMHeadModel):
    def forward(self, **inputs):
        ledger.batch(len(inputs["input_ids"]), inputs["input_ids"].numel())
        output = super().forward(**inputs)
        ledger.loss(output.loss.detach())
        return output


class Keeper(transformers.TrainerCallback):
    def on_step_begin(self, *_others, **_more):
        ledger.work()

    def on_step_end(self, *_others, **_more):
        ledger.step()


ledger = Ledger(RANK)
configuration = transformers.GPT2Config(
    vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=WIDTH, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
model = Model(configuration)
ledger.groups = [["world", list(range(RANKS))]]
trainer = transformers.Trainer(
    model,
    transformers.TrainingArguments(
        str(Path(os.environ["LEDGERS"]).with_name("trainer")),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        max_steps=STEPS,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    ),
    train_dataset=Sentences(RANKS * STEPS * ACCUMULATE),
    callbacks=[Keeper()],
)
trainer.train()
count, size = bucket_traffic(trainer.model_wrapped)
ledger.traffic = {"world": [count + 1, size + 8 * RANKS]}  # the number of tokens of each rank, an int64
dist.destroy_process_group()  # torch may abort at exit otherwise, after find_unused_parameters
ledger.write(transformers=transformers)
