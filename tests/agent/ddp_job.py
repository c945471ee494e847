"""A small DDP training, run by torchrun: rank SLOW sleeps in its forward. Knows nothing of the agent."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import tests.support.loaded_torch  # noqa: F401


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slow = dist.get_rank() == int(os.environ["SLOW"])
    # BatchNorm: DDP sends its buffers in forward, where another rank's lateness is met as well.
    model = DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Embedding(100, 16),
            torch.nn.Flatten(),
            torch.nn.Linear(256, 64),
            torch.nn.BatchNorm1d(64),
            torch.nn.Linear(64, 100),
        )
    )
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 100, (int(os.environ["STEPS"]) * 8, 16))
    for batch, target in DataLoader(TensorDataset(tokens, tokens[:, 0]), batch_size=8, num_workers=1):
        optimizer.zero_grad()
        if slow:
            time.sleep(0.04)
        torch.nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()
    dist.destroy_process_group()


main()
