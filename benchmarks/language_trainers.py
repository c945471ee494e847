"""Training loops of the recorded language model, by kind of job: what ranks share, and where they meet.

Each is the loop of one rank of RANKS over gloo, with its fault: the loader, collate function, loss and logger of
`Trainer`, attention, products, backward and optimizer of `benchmarks.language_model`.
"""

import gc
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.language_model import BATCH, WORDS, WORK, Fault, Model, SlowAdamW, Text

RANKS = 4
_WORK_S = 0.03
"""A rank sleeps as long in each step, so that its length depends less on what else the machine does."""
_SAVING_S = 0.1
_BALLAST = 200_000
_EVALUATES_EVERY, _SAVES_EVERY, _EVALUATED_BATCHES = 2, 4, 3


class Trainer:
    """The loop of one rank: DistributedDataParallel, two micro-batches a step, clipping and AdamW."""

    micro_batches = 2

    def __init__(self, fault: Fault, folder: Path) -> None:
        self._fault, self._folder, self._steps = fault, folder, 0
        self._model = self._distributed(fault)
        slow_s = fault.seconds_of("optimizer")
        self._optimizer = (SlowAdamW if slow_s else torch.optim.AdamW)(self._model.parameters(), lr=1e-3)
        if slow_s:
            SlowAdamW.seconds = slow_s
        self._batches = iter(DataLoader(Text(fault), batch_size=self._batch_size, collate_fn=self._collate))
        self._collated = 0
        self._ballast: list[list[object]] = [[] for _ in range(_BALLAST)] if fault.seconds_of("collect") else []

    @property
    def _batch_size(self) -> int:
        return BATCH

    def _distributed(self, fault: Fault) -> nn.Module:
        return DistributedDataParallel(Model(fault), bucket_cap_mb=0.1)

    def _collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self._collated += 1
        if self._collated % (self.micro_batches * BATCH // self._batch_size) == 0 and self._fault.seconds_of("collate"):
            time.sleep(WORK.counted(self._fault.seconds))
        return torch.stack(samples)

    def step(self) -> None:
        """Train one step."""
        time.sleep(WORK.counted(_WORK_S))
        self._backpropagate()
        WORK.note()
        self._clip()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.log()
        self._steps += 1

    def _backpropagate(self) -> None:
        for micro_batch in range(self.micro_batches):
            tokens = next(self._batches)
            if micro_batch < self.micro_batches - 1:
                with self._model.no_sync():
                    self.loss(self._model(tokens), tokens).backward()
            else:
                self.loss(self._model(tokens), tokens).backward()

    def _clip(self) -> None:
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)

    def loss(self, scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of one micro-batch."""
        if self._fault.seconds_of("loss"):
            time.sleep(WORK.counted(self._fault.seconds / self.micro_batches))
        return nn.functional.cross_entropy(scores[:, :-1].reshape(-1, WORDS), tokens[:, 1:].reshape(-1))

    def log(self) -> None:
        """Do what a logger does after a step, or collect garbage."""
        until_s = time.perf_counter() + self._fault.seconds_of("collect")
        while self._fault.seconds_of("collect") and time.perf_counter() < until_s:
            gc.collect()
        if self._fault.seconds_of("log"):
            time.sleep(WORK.counted(self._fault.seconds))


class AccumulatingTrainer(Trainer):
    """Gradients of four micro-batches, three of them without communication (`no_sync`)."""

    micro_batches = 4


class EvaluatingTrainer(Trainer):
    """Every second step ends with an evaluation on all ranks, every fourth with a checkpoint that rank 0 writes."""

    def step(self) -> None:
        """Train one step, and evaluate or save where one is due."""
        super().step()
        if self._steps % _EVALUATES_EVERY == 0:
            self.evaluate()
        if self._steps % _SAVES_EVERY == 0:
            self.save()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Average the loss of some batches over the ranks."""
        self._model.eval()
        total = torch.zeros(1)
        for _ in range(_EVALUATED_BATCHES):
            tokens = next(self._batches)
            scores = self._model.module(tokens)
            total += nn.functional.cross_entropy(scores[:, :-1].reshape(-1, WORDS), tokens[:, 1:].reshape(-1))
        dist.all_reduce(total)
        self._model.train()

    def save(self) -> None:
        """Write a checkpoint on rank 0, to a disk that takes its time."""
        if dist.get_rank() == 0:
            torch.save(self._model.state_dict(), self._folder / "checkpoint.pt")
            time.sleep(WORK.counted(_SAVING_S))
        dist.barrier()


class ShardedTrainer(Trainer):
    """FSDP2 (`fully_shard`): parameters of every block are gathered in forward and backward, gradients scattered."""

    def _distributed(self, fault: Fault) -> nn.Module:
        return _sharded(Model(fault), init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",)))

    def _backpropagate(self) -> None:
        for micro_batch in range(self.micro_batches):
            tokens = next(self._batches)
            self._model.set_requires_gradient_sync(micro_batch == self.micro_batches - 1)
            self.loss(self._model(tokens), tokens).backward()


class TensorParallelTrainer(ShardedTrainer):
    """Tensor parallel pairs of ranks, sharded over two of them: tp 2 x dp 2."""

    def _distributed(self, fault: Fault) -> nn.Module:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = Model(fault)
        for block in model.blocks:
            plan = {"layers.1": ColwiseParallel(), "layers.3": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
        return _sharded(model, mesh["dp"])

    def _clip(self) -> None:
        """Leave it out: parameters of two meshes have no common norm."""


class PipelineTrainer(Trainer):
    """Two pipeline stages of two data parallel ranks each, 1F1B over four micro-batches."""

    micro_batches = 4

    @property
    def _batch_size(self) -> int:
        return BATCH * self.micro_batches

    def _distributed(self, fault: Fault) -> nn.Module:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        at = mesh["pp"].get_local_rank()
        model = DistributedDataParallel(
            Model(fault, has_first=at == 0, has_last=at == 1), process_group=mesh.get_group("dp")
        )
        stage = PipelineStage(model, at, 2, torch.device("cpu"), group=mesh.get_group("pp"))
        self._is_last = at == 1
        self._schedule = Schedule1F1B(stage, self.micro_batches, loss_fn=self.loss)
        return model

    def _backpropagate(self) -> None:
        tokens = next(self._batches)
        if self._is_last:
            self._schedule.step(target=tokens)
        else:
            self._schedule.step(tokens)


def _sharded(model: Model, mesh: DeviceMesh) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


TRAINERS: dict[str, type[Trainer]] = {
    "data_parallel": Trainer,
    "accumulation": AccumulatingTrainer,
    "evaluation": EvaluatingTrainer,
    "sharded": ShardedTrainer,
    "tensor_parallel": TensorParallelTrainer,
    "pipeline": PipelineTrainer,
}
