"""Two gloo ranks that leave dumps of torch's Flight Recorder, as pickle and JSON: STORE PREFIX HOW.

Both have issued three collectives of a group. Then rank 0 issues an all_reduce, and rank 1 nothing (late), an
all_gather (operation) or an all_reduce of another size (size). Each is a world of its own, whose group has the same
name: gloo aborts processes whose collectives do not match before they can dump.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

GROUP = "mesh_dp"
BEFORE = 3
SIZE, OTHER_SIZE = 8, 9
TRIES = 100


def work(rank, store, prefix, how):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}{rank}", rank=0, world_size=1)
    group = dist.new_group([0], group_desc=GROUP)
    for _ in range(BEFORE):
        dist.all_reduce(torch.ones(4), group=group)
    if rank == 0 or how == "size":
        dist.all_reduce(torch.ones(OTHER_SIZE if rank else SIZE), group=group)
    elif how == "operation":
        dist.all_gather_into_tensor(torch.ones(SIZE), torch.ones(SIZE), group=group)
    recorder = torch._C._distributed_c10d
    for _ in range(TRIES):  # the recorder notes the end of a collective a moment after it: both dumps are of one state
        dumped, as_json = recorder._dump_fr_trace(), recorder._dump_fr_trace_json()
        if dumped == recorder._dump_fr_trace():
            break
    Path(f"{prefix}{rank}").write_bytes(dumped)
    Path(f"{prefix}{rank}.json").write_bytes(as_json)
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(work, args=tuple(sys.argv[1:4]), nprocs=2, start_method="fork")
