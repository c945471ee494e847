"""Two processes that train alone before they make a process group: `late_group_job.py STORE`."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing

import tests.support.loaded_torch  # noqa: F401

ALONE_STEPS, GROUP_STEPS = 2, 5


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def work(rank, path):
    torch.set_num_threads(1)
    train(torch.nn.Linear(4, 1), ALONE_STEPS)
    store = dist.FileStore(path, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if rank == 1:  # it becomes rank 1 before the other one becomes rank 0
        sent = dist.isend(torch.ones(1), 0)
        store.set("sent", "1")
        sent.wait()
    else:
        store.wait(["sent"])
        dist.recv(torch.ones(1), 1)
    train(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1)), GROUP_STEPS)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), 2)
