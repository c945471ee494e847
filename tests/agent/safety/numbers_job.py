"""Trainings whose losses and parameters are hashed: `numbers_job.py <name> <rank> <world size> <store>` prints the hash."""

import hashlib
import random
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tests.support.loaded_torch  # noqa: F401

STEPS = 15


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.Dropout(0.4),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 4),
    )


def train(model):
    digest = hashlib.sha256()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(0, 4, (STEPS * 8,)))
    for batch, target in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch + 0.1 * torch.randn_like(batch)), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        digest.update(loss.detach().numpy().tobytes())
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr(random.getstate()).encode())
    return digest.hexdigest()


def plain():
    return train(make_model())


def compiled():
    return train(torch.compile(make_model(), backend="aot_eager"))


def ddp():
    return train(DistributedDataParallel(make_model(), bucket_cap_mb=0.001))


name, rank, world_size, store = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(7)
random.seed(7)
if name == "ddp":
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size))
    torch.manual_seed(7 + int(rank))
sys.stdout.write({"plain": plain, "compiled": compiled, "ddp": ddp}[name]() + "\n")
if name == "ddp":
    dist.destroy_process_group()
