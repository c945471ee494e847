"""A training that reads a number of steps from each line of its input. It looks at its files at every step."""

import sys

import torch

import tests.support.loaded_torch  # noqa: F401
from lockstep.agent import bootstrap, control, ring
from tests.agent.orders import look_for_requests

ring.INSPECT_INTERVAL_NS = control.LOOK_INTERVAL_NS = 0
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sys.stdout.write("ready\n")
sys.stdout.flush()
for line in sys.stdin:
    for _ in range(int(line)):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        look_for_requests(bootstrap._agent)
    sys.stdout.write(f"trained {line}")
    sys.stdout.flush()
