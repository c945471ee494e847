"""A loop on Accelerate, on CPUs: of these its launcher starts several only by `--multi_gpu`, which is torchrun."""

import torch
from accelerate import Accelerator
from training import STEPS, make_loader

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
steps = 0
while steps < STEPS:
    for (batch,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).sum())
        optimizer.step()
        steps += 1
accelerator.end_training()
