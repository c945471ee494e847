"""A small model trained with DistributedDataParallel on the CPU, with faults of the host. It knows nothing of Lockstep.

    torchrun ... causes_job.py FOLDER

FOLDER/wanted holds the name of a fault and a rank, as "reading 1", and may change while the job runs; all ranks change
over in the same step. `messages` is a fault of all ranks whatever rank is named. `crowded_core` keeps the rank to
the last core; who crowds that core comes from outside.
"""

import gc
import multiprocessing
import os
import socket
import struct
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LETTERS = 256
CONTEXT = 64
WIDTH = 64
BATCH = 8
FAULT_SECONDS = 0.15
REQUEST = struct.Struct("<qd")
"""Number of a document, and how late it comes, in seconds."""


class Fault:
    """What is wrong with this rank in this step; the loop reports when a step begins."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.step = 0
        self.kind = "none"
        self._wanted, self._plan = folder / "wanted", folder / "plan"
        self._rank = rank
        self._last = ""

    def begin_step(self, step: int) -> None:
        """Take what is planned. Rank 0 plans two steps ahead: the all-reduce between shows every rank the plan."""
        self.step = step
        wanted = self._wanted.read_text() if self._rank == 0 and self._wanted.exists() else ""
        if wanted != self._last:
            self._last = wanted
            new = self._plan.with_suffix(".new")
            new.write_text(f"{step + 2} {wanted}")
            new.replace(self._plan)
        if self._plan.exists():
            first_step, kind, rank = self._plan.read_text().split()
            if step >= int(first_step):
                self.kind = kind if int(rank) == self._rank or kind == "messages" else "none"

    def active(self, kind: str) -> bool:
        return self.kind == kind

    def lasting(self, share: float = 1.0):
        """Yield until the fault has taken its time."""
        end = time.perf_counter() + FAULT_SECONDS * share
        while time.perf_counter() < end:
            yield


def serve(connection: socket.socket) -> None:
    """Answer requests for documents as a file server does, in a process of its own."""
    while request := connection.recv(REQUEST.size):
        index, late_seconds = REQUEST.unpack(request)
        time.sleep(late_seconds)
        connection.sendall(bytes((index * 7 + place * place) % LETTERS for place in range(CONTEXT + 1)))


class Documents(Dataset[Tensor]):
    """Documents of a file server."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.connection, theirs = socket.socketpair()
        server = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True)
        server.start()
        theirs.close()

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return self.augment(self.read_document(index))

    def read_document(self, index: int) -> bytes:
        late_seconds = FAULT_SECONDS / BATCH if self.fault.active("reading") else 0.0
        self.connection.sendall(REQUEST.pack(index, late_seconds))
        return self.connection.recv(CONTEXT + 1, socket.MSG_WAITALL)

    def augment(self, document: bytes) -> Tensor:
        if self.fault.active("processing"):
            for _ in self.fault.lasting(1 / BATCH):
                zlib.compress(document * 200, 9)
        return torch.frombuffer(bytearray(document), dtype=torch.uint8).long()


class Model(nn.Module):
    """The next letter from the last ones."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.GELU())
        self.head = nn.Linear(WIDTH, LETTERS)
        self.pool = torch.compile(pool, backend="eager", dynamic=False)

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.layers(self.letters(letters))
        length = 8 + self.fault.step % 10_000 if self.fault.active("shapes") else CONTEXT
        hidden = hidden + self.pool(hidden.detach().mean((0, 1)).expand(length, -1))
        if self.fault.active("forward"):
            self.score_again(hidden)
        if self.fault.active("sleeping"):
            self.ask_later()
        return self.head(hidden)

    def score_again(self, hidden: Tensor) -> None:
        wide = hidden.detach().flatten(0, 1)
        for _ in self.fault.lasting():
            functional.softmax(wide @ wide.T, dim=-1) @ wide

    def ask_later(self) -> None:
        time.sleep(FAULT_SECONDS)


def pool(history: Tensor) -> Tensor:
    """Return a summary of a history of any length."""
    return torch.tanh(history).mean(0)


def sweep_cache(fault: Fault) -> None:
    """Collect the garbage, as a well-meant guard of memory does."""
    for _ in fault.lasting():
        gc.collect()


def index_samples(fault: Fault) -> list[list[int]]:
    """Make an index of many small objects: Python collects while it grows."""
    entries: list[list[int]] = []
    for _ in fault.lasting():
        entries += [[number] for number in range(10_000)]
    return entries


def log_gradients(fault: Fault, model: nn.Module) -> None:
    """Read every gradient back, as a monitor of the training does."""
    for _ in fault.lasting():
        for parameter in model.parameters():
            parameter.grad.tolist()
            parameter.grad.view(-1)[0].item()


def exchange_counters() -> None:
    """Sum counters over the ranks one by one, as long as a fault lasts: all ranks stop after the same one."""
    end, over = time.perf_counter() + FAULT_SECONDS, False
    while not over:
        is_over = torch.tensor([float(time.perf_counter() > end)])
        dist.all_reduce(is_over)
        over = bool(is_over.item())


def bind(fault: Fault, cores: set[int]) -> None:
    """Keep this thread to one core, as a launcher does that binds ranks."""
    os.sched_setaffinity(0, {max(cores)} if fault.active("crowded_core") else cores)


def train(folder: Path) -> None:
    """Train until asked to stop."""
    rank = int(os.environ["RANK"])
    fault = Fault(folder, rank)
    documents = Documents(fault)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1_000_000
    model = DistributedDataParallel(Model(fault))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    order = range(rank, len(documents), dist.get_world_size())
    batches = iter(DataLoader(documents, batch_size=BATCH, sampler=order))
    cores = os.sched_getaffinity(0)
    step = 0
    while True:
        fault.begin_step(step)
        bind(fault, cores)
        letters = next(batches)
        logits = model(letters[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if fault.active("sweeping"):
            sweep_cache(fault)
        if fault.active("hoarding"):
            index_samples(fault)
        if fault.active("reading_back"):
            log_gradients(fault, model)
        if fault.active("messages"):
            exchange_counters()
        optimizer.step()
        step += 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]))
