"""A small real training, healthy and with one fault each, recorded as the agent records: run as a script.

    python small_training.py FOLDER FAULT...

For each fault it records STEPS steps into FOLDER/FAULT.json and times steps before and after, without the profiler. It prints
one JSON object: CPU seconds of the shortest step by fault, which do not grow while other processes have the core. Faults are
work, not sleep: what a test must find is real. They take tens of milliseconds a step, longer than a scheduler's slice: another
process on the core interrupts the faulty function then, and seldom what runs next to it.
"""

import gc
import json
import sys
import time
import zlib
from pathlib import Path

import torch
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, Dataset

STEPS = 3
MEASURED_STEPS = 7
_WIDTH = 32


class Documents(Dataset):
    """Vectors, read the slow way if asked."""

    def __init__(self, *, slow: bool):
        self.slow = slow

    def __len__(self):
        return 1000

    def read_document(self, index):
        if self.slow:
            zlib.compress(bytes(range(256)) * 12_000, 9)
        return torch.full((_WIDTH,), float(index % 7))

    def __getitem__(self, index):
        return self.read_document(index)


class Attention(nn.Module):
    """A layer that computes scores twenty times if asked."""

    def __init__(self, *, slow: bool):
        super().__init__()
        self.slow = slow
        self.project = nn.Linear(_WIDTH, 256)

    def redundant_attention(self, hidden):
        scores = torch.ones(512, 512)
        for _ in range(20):
            scores = torch.softmax(scores @ scores, dim=-1)
        return hidden * scores.mean()

    def forward(self, batch):
        hidden = torch.relu(self.project(batch))
        return self.redundant_attention(hidden) if self.slow else hidden


def tidy_up():
    gc.collect()


def allocate():
    for _ in range(20_000):
        ring = []
        ring.append(ring)


def train_step(model, optimizer, batches, fault):
    loss = model(next(batches)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if fault == "gc":
        tidy_up()
    if fault == "automatic_gc":
        allocate()


def shortest_step(*arguments):
    """Return the CPU seconds of the shortest of MEASURED_STEPS steps."""
    seconds = []
    for _ in range(MEASURED_STEPS):
        began = time.process_time()
        train_step(*arguments)
        seconds.append(time.process_time() - began)
    return min(seconds)


def mark(step):
    with record_function(f"lockstep.step#{step}"):
        return


def train(fault, path):
    model = nn.Sequential(Attention(slow=fault == "compute"), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(Documents(slow=fault == "data"), batch_size=8))
    train_step(model, optimizer, batches, fault)
    before = shortest_step(model, optimizer, batches, fault)
    recorder = profile(
        activities=[ProfilerActivity.CPU],
        with_stack=True,
        record_shapes=True,
        experimental_config=_ExperimentalConfig(record_python_gc_info=True),
    )
    recorder.start()
    mark(0)
    for step in range(STEPS):
        train_step(model, optimizer, batches, fault)
        mark(step + 1)
    recorder.stop()
    recorder.export_chrome_trace(str(path))
    return min(before, shortest_step(model, optimizer, batches, fault))


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    train("none", folder / "warm_up.json")
    seconds = {fault: train(fault, folder / f"{fault}.json") for fault in sys.argv[2:]}
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main()
