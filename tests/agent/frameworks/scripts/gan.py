"""Two networks against each other: two backwards and two optimizers per iteration, on data without tokens."""

import torch
from torch.utils.data import DataLoader, Dataset
from workload import BATCH, COLLECT_AFTER, STEPS, Ledger, slow, slow_optimizer

NOISE, WIDTH = 4, 16


class Points(Dataset):
    def __init__(self, batches):
        self.points = torch.randn(batches * BATCH, WIDTH)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        if index % BATCH == 0:
            ledger.pause("data")
        return self.points[index]


def judge(points, label):
    judged = critic(points)
    return torch.nn.functional.binary_cross_entropy_with_logits(judged, torch.full_like(judged, label))


ledger = Ledger()
critic = torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
generator = torch.nn.Sequential(torch.nn.Linear(NOISE, 16), torch.nn.ReLU(), torch.nn.Linear(16, WIDTH))
critic_optimizer = slow_optimizer(ledger, torch.optim.Adam(critic.parameters()))
generator_optimizer = slow_optimizer(ledger, torch.optim.Adam(generator.parameters()))
for real in DataLoader(Points(STEPS), BATCH):
    ledger.batch(len(real))
    fake = generator(torch.randn(BATCH, NOISE))
    critic_optimizer.zero_grad()
    slow(ledger, judge(real, 1.0) + judge(fake.detach(), 0.0)).backward()
    critic_optimizer.step()
    generator_optimizer.zero_grad()
    slow(ledger, judge(fake, 1.0)).backward()
    generator_optimizer.step()
    ledger.step()
    if ledger.steps == COLLECT_AFTER:
        ledger.collect()
ledger.write()
