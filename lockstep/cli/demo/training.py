"""A small GPT trained for real with DistributedDataParallel on the CPU. It knows nothing of Lockstep.

It learns two-digit additions. On request one rank fails from a given step on, in a way that production jobs know: a
redundant computation in the forward pass, slow storage under the data loader, a cache that keeps calling the garbage
collector, a download whose server never answers, or a corrupt document.
"""

import argparse
import gc
import random
import socket
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

VOCABULARY = "0123456789+=. "
CONTEXT = 64
WIDTH = 64
LAYERS = 2
BATCH = 8
FAULTS = ("compute", "data", "gc", "hang", "crash", "none")


class Fault:
    """The fault of this rank, and its first step. `active` is true once that step has been reached."""

    def __init__(self, kind: str, first_step: int, seconds: float) -> None:
        self.kind = kind
        self.first_step = first_step
        self.seconds = seconds
        self.step = 0

    def active(self, kind: str, step: int | None = None) -> bool:
        return self.kind == kind and (self.step if step is None else step) >= self.first_step


class Additions(Dataset[Tensor]):
    """Documents of additions, each generated from its index. A loader process knows its index, not the job's step."""

    def __init__(self, fault: Fault, ranks: int) -> None:
        self.fault = fault
        self.ranks = ranks

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([VOCABULARY.index(character) for character in self.read_document(index)])

    def read_document(self, index: int) -> str:
        step = index // self.ranks // BATCH
        if self.fault.active("data", step):
            time.sleep(self.fault.seconds / BATCH)  # slow storage
        if self.fault.active("hang", step):
            stuck_in_download()
        if self.fault.active("crash", step):
            reject_document(index)
        numbers = random.Random(index)
        text = ""
        while len(text) <= CONTEXT:
            left, right = numbers.randrange(100), numbers.randrange(100)
            text += f"{left}+{right}={left + right}. "
        return text[: CONTEXT + 1]


def stuck_in_download() -> None:
    """Read from an open connection that never answers, without a timeout."""
    ours, server = socket.socketpair()
    with ours, server:
        ours.recv(1)


def reject_document(index: int) -> None:
    """Fail like a reader that finds a corrupt document."""
    raise ValueError(f"document {index}: got a wrong checksum")


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm_attention(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    """A decoder of two layers and 0.1 million parameters."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.token = nn.Embedding(len(VOCABULARY), WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(VOCABULARY))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x, self.mask)
        if self.fault.active("compute"):
            self.redundant_attention(x)
        return self.head(self.norm(x))

    def redundant_attention(self, x: Tensor) -> None:
        wide = x.detach().repeat(1, 8, 1)
        end = time.perf_counter() + self.fault.seconds
        while time.perf_counter() < end:
            functional.softmax(wide @ wide.transpose(1, 2), dim=-1) @ wide


def sweep_cache(fault: Fault) -> None:
    """Drop cached samples and collect the garbage, as a well-meant memory guard does."""
    end = time.perf_counter() + fault.seconds
    while time.perf_counter() < end:
        cache = [{"self": None} for _ in range(1000)]
        for entry in cache:
            entry["self"] = entry  # type: ignore[assignment]
        gc.collect()


def train(arguments: argparse.Namespace) -> None:
    """Train until `--steps` are done or the fault ends it."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(arguments.seed)
    kind = arguments.fault if rank == arguments.rank else "none"
    fault = Fault(kind, arguments.fault_step, arguments.fault_ms / 1000)
    model = DistributedDataParallel(GPT(fault), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    documents = Additions(fault, dist.get_world_size())
    order = range(rank, len(documents), dist.get_world_size())
    batches = iter(DataLoader(documents, batch_size=BATCH, sampler=order, num_workers=arguments.workers))
    for step in range(arguments.steps):
        fault.step = step
        if kind != "none" and step == arguments.fault_step:
            print(f"fault: {kind} on rank {rank} begins at step {step}, unix time {time.time():.3f}", flush=True)
        tokens = next(batches)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if fault.active("gc"):
            sweep_cache(fault)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """Return the command line of the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--rank", type=int, default=2, help="the rank that fails")
    parser.add_argument("--fault-step", type=int, default=60)
    parser.add_argument("--fault-ms", type=float, default=200.0, help="extra time a step")
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_arguments())
