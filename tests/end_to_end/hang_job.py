"""Four forked gloo ranks, tensor x data parallel, the agent installed by hand; rank 1 is stuck in its data loader.

Arguments: store file, shared directory, a file that ends the wait. The others only wait; once the file is there the
training goes on to its end. Who is waited for in two domains is shown in the one where the waiting began: the other tensor-parallel group
comes a second later than rank 0, or chance would decide.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset

import lockstep
import tests.support.loaded_torch  # noqa: F401
from lockstep.agent.bootstrap import uninstall

LATE_RANK = 1
LATE_STEP = 45
STEPS = 70
STEP_SECONDS = 0.03
LATER_SECONDS = 1.0
RANKS = 4


def stuck_in_download(arrived):
    while not arrived.exists():
        time.sleep(0.05)


class Downloads(Dataset):
    def __init__(self, arrived):
        self.arrived = arrived

    def __len__(self):
        return 1

    def __getitem__(self, index):
        stuck_in_download(self.arrived)
        return index


def work(rank, store, root, arrived):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCKSTEP_DIR=root, LOCKSTEP_RUN="job"
    )
    assert lockstep.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    tensor = [dist.new_group(ranks, group_desc="TENSOR_MODEL_PARALLEL_GROUP") for ranks in ([0, 1], [2, 3])][rank // 2]
    data = [dist.new_group(ranks, group_desc="mesh_dp") for ranks in ([0, 2], [1, 3])][rank % 2]
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(STEPS):
        weight.sum().backward()
        time.sleep(STEP_SECONDS)
        if rank == LATE_RANK and step == LATE_STEP:
            next(iter(DataLoader(Downloads(Path(arrived)))))
        elif rank // 2 != LATE_RANK // 2 and step == LATE_STEP:
            time.sleep(LATER_SECONDS)
        dist.all_reduce(torch.ones(100), group=tensor)
        dist.all_reduce(torch.ones(100), group=data)
        optimizer.step()
    dist.destroy_process_group()
    uninstall()  # a forked process ends without running what is registered for its exit


if __name__ == "__main__":
    multiprocessing.start_processes(work, args=tuple(sys.argv[1:4]), nprocs=RANKS, start_method="fork")
