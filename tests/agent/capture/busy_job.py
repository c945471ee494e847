"""A DDP training of two ranks with collectives in flight behind most of its steps, which are as short as they can be."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tests.support.loaded_torch  # noqa: F401

STEPS_MAX = 200_000


def main():
    over = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS_MAX):
        works = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(6)]
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        for work in works:
            work.wait()
        found = torch.tensor([over.exists()], dtype=torch.int32)
        dist.all_reduce(found)
        if found.item():
            break
    # Its reducer would end the group with the interpreter lock held, for which the thread of the last collective may wait
    # (pytorch/pytorch, issue 56297).
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
