"""Two ranks by torch.multiprocessing.spawn: `torch_spawn.py variables|arguments|trial STORE`.

Their rank is set in the environment of the worker, or given to init_process_group alone; `trial` is the latter, after a
backward in the process that starts them.
"""

import os
import sys

import torch
from training import train_in_group

RANKS = 2


def work_with_variables(rank, store):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    train_in_group(init_method=f"file://{store}", rank=rank, world_size=RANKS)


def work_with_arguments(rank, store):
    train_in_group(init_method=f"file://{store}", rank=rank, world_size=RANKS)


if __name__ == "__main__":
    how, store = sys.argv[1:]
    if how == "trial":
        torch.nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()
    work = work_with_variables if how == "variables" else work_with_arguments
    torch.multiprocessing.spawn(work, (store,), RANKS)
