"""Two forked ranks that talk in every way, the agent installed by hand; rank 1 comes a quarter of a second late to each meeting."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import multiprocessing

import lockstep
import tests.support.loaded_torch  # noqa: F401

LATE_SECONDS = 0.25
STEPS = 3


def synchronous(rank, groups, value):
    dist.all_reduce(value, group=groups["tp"])


def asynchronous_waited(rank, groups, value):
    dist.all_reduce(value, group=groups["tp"], async_op=True).wait()


def point_to_point(rank, groups, value):
    if rank == 0:
        dist.recv(value, 1, group=groups["pp"])
    else:
        dist.send(value, 0, group=groups["pp"])


def scattered(rank, groups, value):
    part = torch.empty(value.numel() // 2)
    dist.reduce_scatter_tensor(part, value, group=groups["dp"])


def functional(rank, groups, value):
    collectives.all_reduce(value, "sum", groups["tp"]).add(1)


def barrier(rank, groups, value):
    dist.barrier()


SCENES = [synchronous, asynchronous_waited, point_to_point, scattered, functional, barrier]


def work(rank, store, root):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCKSTEP_DIR=root, LOCKSTEP_RUN="job")
    assert lockstep.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    groups = {
        "tp": dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP"),
        "pp": dist.new_group([0, 1], group_desc="PIPELINE_MODEL_PARALLEL_GROUP"),
        "dp": dist.new_group([0, 1], group_desc="mesh_dp"),
    }
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for scene in SCENES:
        for _ in range(STEPS):
            weight.sum().backward()
            if rank == 1:
                time.sleep(LATE_SECONDS)
            scene(rank, groups, torch.ones(1000))
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(work, args=tuple(sys.argv[1:3]), nprocs=2, start_method="fork")
