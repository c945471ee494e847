"""What the scripts of this folder share: a dozen steps of a small model, in DDP where there is a process group."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import tests.support.loaded_torch  # noqa: F401

STEPS = 12
BATCH = 4


def make_loader():
    return DataLoader(TensorDataset(torch.ones(STEPS * BATCH, 4)), batch_size=BATCH)


def train():
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in make_loader():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def train_in_group(**arguments):
    dist.init_process_group("gloo", **arguments)
    train()
    dist.destroy_process_group()
