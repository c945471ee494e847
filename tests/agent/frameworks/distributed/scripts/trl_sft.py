"""TRL's SFTTrainer on a small GPT-2, two ranks, a tokenizer of its own."""

import os
from pathlib import Path

import datasets
import tokenizers
import torch.distributed as dist
import transformers
import trl
from ledger import BATCH, SEQUENCE, STEPS, VOCABULARY, WIDTH, Ledger, Tokens, bucket_traffic

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Keeper(transformers.TrainerCallback):
    def on_step_begin(self, *_others, **_more):
        ledger.work()

    def on_step_end(self, *_others, **_more):
        ledger.step()


class Trainer(trl.SFTTrainer):
    def compute_loss(self, model, inputs, *args, **more):
        ledger.batch(len(inputs["input_ids"]), inputs["input_ids"].numel())
        loss = super().compute_loss(model, inputs, *args, **more)
        ledger.loss(loss.detach())
        return loss


ledger = Ledger(RANK)
words = {f"w{number}": number for number in range(VOCABULARY)}
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0")), pad_token="w0", eos_token="w1"
)
configuration = transformers.GPT2Config(
    vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=WIDTH, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1
)
ledger.groups = [["world", list(range(RANKS))]]
trainer = Trainer(
    transformers.GPT2LMHeadModel(configuration),
    trl.SFTConfig(
        str(Path(os.environ["LEDGERS"]).with_name("trainer")),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=BATCH,
        max_length=SEQUENCE,
        max_steps=STEPS,
        train_sampling_strategy="sequential",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    ),
    train_dataset=datasets.Dataset.from_dict({"input_ids": Tokens(RANKS * STEPS).tokens.tolist()}),
    processing_class=tokenizer,
    callbacks=[Keeper()],
)
trainer.train()
count, size = bucket_traffic(trainer.model_wrapped)
# Of each rank: the number of tokens twice, correct and predicted ones as int64, and the entropy as a float.
ledger.traffic = {"world": [count + 5, size + (4 * 8 + 4) * RANKS]}
dist.destroy_process_group()  # torch may abort at exit otherwise, after find_unused_parameters
ledger.write(trl=trl, transformers=transformers)
