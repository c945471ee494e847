"""A data-parallel training that goes on until it is ended, or ends itself in the way that is named. Knows no agent."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tests.support.loaded_torch  # noqa: F401

SELF_AFTER_STEPS = 40
"""Steps after which a job ends itself."""
BAD_RANK = 1
EXIT_CODE = 3
STEP_S = 0.05


def load_shard():
    raise ValueError("a message that may hold data")


def write_whole(path, text):
    """Write a file that others read at any time."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def has_ended(pid):
    """Whether a process is a zombie, or no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def exit_in_turn(rank, directory):
    """Exit, the other ranks once the bad one has; as a program does that catches its own exceptions."""
    if rank != BAD_RANK:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the launcher sends who is left
        pid = int((directory / f"{BAD_RANK}.pid").read_text().split()[0])
        while not has_ended(pid):
            time.sleep(0.001)
    sys.exit(EXIT_CODE)


def end_itself(how, rank, step, directory):
    """End in the named way when it is time; return whether the training ends here."""
    if step < SELF_AFTER_STEPS:
        return False
    if how == "exception" and rank == BAD_RANK:
        load_shard()
    if how == "os._exit" and rank == BAD_RANK:
        os._exit(EXIT_CODE)
    if how == "sys.exit":
        exit_in_turn(rank, directory)
    if how == "memory" and rank == BAD_RANK:
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20)))
    return how == "finish"


def main():
    how, directory = sys.argv[1], Path(sys.argv[2])
    if how == "memory" and int(os.environ["RANK"]) == BAD_RANK:  # before its ring, as a scheduler does
        Path(os.environ["MEMORY_CGROUP"], "cgroup.procs").write_text(str(os.getpid()))
    wants_to_end = []
    if how == "grace":
        signal.signal(signal.SIGTERM, lambda *_: wants_to_end.append(True))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while not end_itself(how, rank, step, directory):
        optimizer.zero_grad()
        time.sleep(STEP_S)
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        asked = torch.tensor([len(wants_to_end)])
        dist.all_reduce(asked)
        step += 1
        write_whole(directory / f"{rank}.pid", f"{os.getpid()} {step}")
        if asked.item():
            break
    # Its reducer would end the group with the interpreter lock held, for which the thread of the last collective may wait
    # (pytorch/pytorch, issue 56297).
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
