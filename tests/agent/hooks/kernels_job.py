"""Two gloo ranks communicate in every way, behind each of the kernels: in Python, in C, in C++.

    python -m tests.agent.hooks.kernels_job RANK STORE LIBRARY

Prints what each scene noted, as JSON: scene -> kernels -> marks.
"""

import json
import sys
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tests.support.loaded_torch  # noqa: F401
from lockstep.agent.hooks import collective_operators, collectives, native, native_kernel
from lockstep.agent.mark_writer import PURE_PYTHON
from lockstep.cli.native_hooks.self_test import noted, recording
from lockstep.contracts.marks import OTHER_THREAD, MarkKind

warnings.simplefilter("ignore")


def value():
    return torch.arange(6.0)


def plain():
    dist.all_reduce(value())
    work = dist.all_reduce(value(), async_op=True)
    work.wait()
    dist.barrier()
    dist.broadcast(value(), 0)
    parts = [torch.empty(6), torch.empty(6)]
    dist.all_gather(parts, value(), async_op=True).wait()
    dist.reduce_scatter_tensor(torch.empty(3), value())
    dist.all_to_all_single(torch.empty(6), value())
    dist.scatter(torch.empty(6), parts if dist.get_rank() == 0 else None)
    dist.gather(value(), parts if dist.get_rank() == 0 else None)


def pairs():
    peer = 1 - dist.get_rank()
    operations = [dist.P2POp(dist.isend, value(), peer), dist.P2POp(dist.irecv, torch.empty(6), peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if dist.get_rank():
        dist.send(value(), 0)
    else:
        dist.recv(torch.empty(6))


def coalesced():
    with dist._coalescing_manager(async_ops=True) as manager:
        for _ in range(3):
            dist.all_reduce(value())
    manager.wait()


def sparse():
    dist.all_reduce(torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (5,), check_invariants=True))


def functional_collectives():
    functional.all_reduce(value(), "sum", dist.group.WORLD).add(1)
    functional.all_gather_tensor(value(), 0, dist.group.WORLD).add(1)


def compiled():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    for _ in range(2):
        step(value())


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def train(network):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        network(torch.ones(4, 6) * (dist.get_rank() + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def data_parallel():
    train(DistributedDataParallel(model(), bucket_cap_mb=1e-4))


def fully_sharded():
    network = model()
    fully_shard(network[0])
    fully_shard(network)
    train(network)


def new_groups():
    """Each is an object of its own, some at an address that a former one had."""
    for index in range(4):
        group = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP" if index % 2 else "mesh_dp")
        dist.all_reduce(value(), group=group)
        dist.destroy_process_group(group)
        del group


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(_ctx, gradient):
        dist.all_reduce(gradient)
        return gradient * 2


def other_threads():
    """Issue in a thread of the training's own, and in its backward: the second one is autograd's."""

    def both():
        dist.all_reduce(value())
        tensor = torch.ones(3, requires_grad=True)
        Reduced.apply(tensor).sum().backward()

    thread = Thread(target=both)
    thread.start()
    thread.join()


def failing():
    """Go on after an operator that raises."""
    try:
        dist.all_gather_into_tensor(torch.empty(5), value())
    except RuntimeError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}".splitlines()[0] + "\n")
    dist.all_reduce(value())


SCENES = [plain, pairs, coalesced, sparse, functional_collectives, compiled, data_parallel, fully_sharded]
SCENES += [new_groups, other_threads, failing]
EXTENSION = "lockstep.agent._marks"


@contextmanager
def without_extension():
    """Hide the extension; modules that are imported meanwhile stay, as torch's register operators."""
    former = sys.modules.pop(EXTENSION, None)
    sys.modules[EXTENSION] = None
    try:
        yield
    finally:
        del sys.modules[EXTENSION]
        if former is not None:
            sys.modules[EXTENSION] = former


def main():
    rank, store, library = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    module = native.import_library(library)
    kernels = {
        "Python": collectives.install_in_python,
        "C": collectives.install_in_python,
        "C++": lambda agent: native_kernel.install(agent, module, collective_operators.operators()),
    }
    found = {}
    for scene in SCENES:
        for name, install in kernels.items():
            with without_extension() if name == "Python" else nullcontext(), recording(install) as stub:
                assert (stub.mark_writer == PURE_PYTHON) == (name == "Python")
                scene()
                marks = noted(stub, failed=int(scene is failing))
                elsewhere = sum(kind == MarkKind.ISSUE | OTHER_THREAD for _, kind, *_ in stub.written())
                found.setdefault(scene.__name__, {})[name] = [marks, elsewhere, stub.boundary.failures]
    sys.stdout.write(json.dumps(found))
    dist.destroy_process_group()


main()
