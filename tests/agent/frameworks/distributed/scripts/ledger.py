"""What the training scripts share: a small model and its data, a step's length, and a ledger of what was done.

The ledger is the truth that the agent's records are compared with. It counts for itself and knows nothing of the agent.
"""

import json
import os
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

STEPS = int(os.environ["STEPS"])
ONSET_STEP = int(os.environ["ONSET_STEP"])
"""First step of the delay."""
SLOW_RANK = int(os.environ["SLOW_RANK"])
DELAY_S = float(os.environ["DELAY_S"])
WORK_S = float(os.environ["WORK_S"])
BATCH, SEQUENCE, VOCABULARY, WIDTH = 4, 8, 52, 16
FLOAT_BYTES = 4

torch.set_num_threads(1)


class Ledger:
    """What one rank did. `groups` lists [kind, ranks]; `traffic` is {kind: [collectives, bytes]} of one step."""

    def __init__(self, rank):
        self.rank = rank
        self.steps = 0
        self.losses = []
        self.samples = None
        self.tokens = None
        self.groups = []
        self.traffic = None
        torch.manual_seed(0)

    def batch(self, samples, tokens=None):
        """Note a batch that is trained on."""
        self.samples = (self.samples or 0) + samples
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens

    def loss(self, value):
        """Note the loss of a batch; compared bit for bit."""
        self.losses.append(float(value).hex())

    def step(self):
        """Note that an iteration is complete."""
        self.steps += 1

    def work(self):
        """Spend the time of a step, once an iteration: WORK_S, and DELAY_S more on the slow rank from ONSET_STEP on."""
        time.sleep(WORK_S + (DELAY_S if self.rank == SLOW_RANK and self.steps >= ONSET_STEP else 0))

    def write(self, **libraries):
        """Leave the ledger in the job's directory."""
        versions = {name: module.__version__ for name, module in {"torch": torch, **libraries}.items()}
        path = Path(os.environ["LEDGERS"]) / f"{self.rank}.json"
        path.write_text(json.dumps({**vars(self), "versions": versions}))


class Tokens(Dataset):
    """Random token sequences and a target each, the same on every rank."""

    def __init__(self, batches):
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, VOCABULARY, (batches * BATCH, SEQUENCE), generator=generator)
        self.targets = self.tokens[:, 0].clone()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.targets[index]


def make_model():
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        torch.nn.Flatten(),
        torch.nn.Linear(WIDTH * SEQUENCE, VOCABULARY),
    )


def parameter_bytes(model):
    return sum(parameter.nbytes for parameter in model.parameters())


def bucket_traffic(model):
    """Return [collectives, bytes] of a backward of DistributedDataParallel, by the buckets that it lays out itself."""
    layout = model._get_ddp_logging_data()
    sizes = [int(size) for size in layout.get("rebuilt_bucket_sizes", layout["bucket_sizes"]).split(",")]
    assert sum(sizes) == parameter_bytes(model)
    if model.find_unused_parameters:  # an int32 for each parameter: whether a rank has used it
        sizes.append(4 * len(list(model.parameters())))
    return [len(sizes), sum(sizes)]
