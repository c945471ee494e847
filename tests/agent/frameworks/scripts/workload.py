"""What the training scripts share: something small to train, pauses of known length, and a ledger of what was done.

The ledger is the truth that the agent's records are compared with. It counts for itself and knows nothing of the agent.
"""

import gc
import json
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import Dataset

import tests.support.loaded_torch  # noqa: F401

STEPS = 24
EVALUATE_AFTER, SAVE_AFTER, COLLECT_AFTER = 12, 16, 20
"""Steps after which most scripts evaluate, save a checkpoint and collect garbage: late enough to be routine by then."""
BATCH, SEQUENCE, VOCABULARY = 4, 8, 50
PAUSE_S = 0.006


class Ledger:
    """What one rank did, by iteration. Events carry the number of iterations complete when they happened."""

    def __init__(self):
        gc.disable()  # none but those that are asked for, by `collect` or by a library
        gc.callbacks.append(self._collected)
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.steps = 0
        self.samples = 0
        self.tokens = None
        self.traffic = None
        """(count, bytes) of a step's collectives."""
        self.losses = []
        self.pause_ns = int(PAUSE_S * 1e9)
        self.counts = [Counter()]
        """Pauses by phase, garbage collections and full ones, per iteration and after the last one."""
        self.graphs = []
        """Graphs compiled so far, at each iteration's end."""
        self.events = {}

    def step(self):
        """Note that an iteration is complete, to be called as soon as it is."""
        self.steps += 1
        self.graphs.append(graphs())
        self.counts.append(Counter())

    def batch(self, samples, tokens=None):
        """Note a batch that is trained on."""
        self.samples += samples
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens

    def note(self, event):
        self.events.setdefault(event, []).append(self.steps)

    def collect(self):
        gc.collect()

    def _collected(self, phase, info):
        if phase == "stop":
            self.counts[-1]["gc"] += 1
            self.counts[-1]["gc_full"] += info["generation"] == 2

    def pause(self, phase):
        """Spend PAUSE_S in a phase, that of the training thread at this moment."""
        self.counts[-1][phase] += 1
        time.sleep(PAUSE_S)

    def write(self, **libraries):
        """Leave the ledger at the path of the script's first argument."""
        facts = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        versions = {name: module.__version__ for name, module in {"torch": torch, **libraries}.items()}
        Path(sys.argv[1]).write_text(json.dumps({**facts, "versions": versions}))


def graphs():
    """Return how many graphs dynamo compiled so far, from its own count."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters["stats"]["unique_graphs"] if utils else 0


class Tokens(Dataset):
    """Random token sequences and a target each, loaded as slowly as the ledger's pause asks."""

    def __init__(self, ledger, batches):
        self.ledger = ledger
        self.tokens = torch.randint(0, VOCABULARY, (batches * BATCH, SEQUENCE))
        self.targets = self.tokens[:, 0].clone()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        if index % BATCH == 0:
            self.ledger.pause("data")
        return self.tokens[index], self.targets[index]


def make_model():
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, 16),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * SEQUENCE, VOCABULARY),
    )


def slow(ledger, tensor):
    """Pause in the forward that made `tensor`, and once more in its backward."""
    if tensor.requires_grad:
        ledger.pause("forward")
        tensor.register_hook(lambda _gradient: ledger.pause("backward"))
    return tensor


def slow_optimizer(ledger, optimizer):
    """Have an optimizer pause in each step."""
    optimizer.register_step_pre_hook(lambda *_: ledger.pause("optimizer"))
    return optimizer


def loss_of(ledger, model, batch):
    """Return a model's loss on a batch of Tokens."""
    tokens, targets = batch
    return slow(ledger, torch.nn.functional.cross_entropy(model(tokens), targets))


@torch.no_grad()
def evaluate(ledger, model, loader):
    """Run a model over a loader as a validation does."""
    ledger.note("evaluation")
    for batch in loader:
        loss_of(ledger, model, batch)


def save(ledger, states):
    """Write a checkpoint."""
    ledger.note("checkpoint")
    torch.save(states, Path(sys.argv[1]).with_suffix(".pt"))
