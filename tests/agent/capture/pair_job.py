"""A DDP training of two ranks that goes on until rank 1 has written the trace of request 2. Knows nothing of the agent."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import tests.support.loaded_torch  # noqa: F401

STEPS_MAX = 4000
SLEEP_S = 0.02


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last = Path(os.environ["LOCKSTEP_DIR"], ".exporter", os.environ["LOCKSTEP_RUN"], "incoming", "2-1.json")
    loader = DataLoader(TensorDataset(torch.ones(STEPS_MAX * 4, 16)), batch_size=4)
    for (batch,) in loader:
        optimizer.zero_grad()
        time.sleep(SLEEP_S)
        model(batch).sum().backward()
        optimizer.step()
        found = torch.tensor([last.exists()], dtype=torch.int32)
        dist.all_reduce(found)
        if found.item():
            break
    # Its reducer would end the group with the interpreter lock held, for which the thread of the last collective may wait
    # (pytorch/pytorch, issue 56297).
    del model
    dist.destroy_process_group()


main()
