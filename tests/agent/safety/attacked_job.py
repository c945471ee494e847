"""Trainings that read a number of steps from each line of their input, and look at their files at every step.

Each is a fork of this process, which imports torch for all of them. A line of its input names the directory of one: its
files are in `root`, its input and its outputs are the pipes `in`, `out` and `err`. Its status is printed when it ends.
"""

import os
import sys
from pathlib import Path

import torch

import tests.support.loaded_torch  # noqa: F401
from lockstep.agent import bootstrap, control, ring
from tests.agent.orders import look_for_requests


def put(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def train(directory):
    for file, (name, flags) in enumerate((("in", os.O_RDONLY), ("out", os.O_WRONLY), ("err", os.O_WRONLY))):
        os.dup2(os.open(directory / name, flags), file)
    os.environ["LOCKSTEP_DIR"] = str(directory / "root")
    bootstrap.install()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    put(f"ready {os.getpid()}\n")
    for line in open(0):  # noqa: SIM115  (sys.stdin is of the process that was forked)
        for _ in range(int(line)):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            look_for_requests(bootstrap._agent)
        put(f"trained {line}")


ring.INSPECT_INTERVAL_NS = control.LOOK_INTERVAL_NS = 0
torch.set_num_threads(1)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        train(Path(line.rstrip("\n")))
        break
    put(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
