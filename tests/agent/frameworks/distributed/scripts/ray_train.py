"""Ray Train's TorchTrainer on a Ray of its own: two workers, prepare_model and prepare_data_loader."""

import os
import tempfile
from pathlib import Path

import ray
import ray.train.torch
import torch
from ledger import BATCH, STEPS, Ledger, Tokens, bucket_traffic, make_model
from ray.train import RunConfig, ScalingConfig
from torch.utils.data import DataLoader

RANKS = 2
OBJECT_STORE_BYTES = 80 << 20  # little more than the least that Ray accepts


def train():
    rank = ray.train.get_context().get_world_rank()
    ledger = Ledger(rank)
    model = make_model()
    ledger.groups = [["world", list(range(RANKS))]]
    model = ray.train.torch.prepare_model(model)
    loader = ray.train.torch.prepare_data_loader(DataLoader(Tokens(RANKS * STEPS), BATCH))
    optimizer = torch.optim.AdamW(model.parameters())
    for tokens, targets in loader:
        ledger.batch(len(tokens), tokens.numel())
        ledger.work()
        loss = torch.nn.functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ledger.loss(loss.detach())
        ledger.step()
    ledger.traffic = {"world": bucket_traffic(model)}
    ledger.write(ray=ray)


with tempfile.TemporaryDirectory(prefix="ray") as directory:  # short: Ray makes Unix sockets in it
    ray.init(
        num_cpus=RANKS + 1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=directory,
    )
    trainer = ray.train.torch.TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=RANKS),
        torch_config=ray.train.torch.TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(Path(os.environ["LEDGERS"]).parent / "results")),
    )
    trainer.fit()
    ray.shutdown()
