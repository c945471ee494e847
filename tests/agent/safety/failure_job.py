"""One rank that uses everything the agent hooks, once for each function of the agent, which goes wrong in it.

A profile function sees every call of a function of the agent on the training thread, and makes one of them fail
(mode `fail`) or be interrupted by a signal whose handler raises (mode `signal`). Prints one JSON object: what the training was without
trouble, and per function what became of it.
"""

import gc
import hashlib
import inspect
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import tests.support.loaded_torch  # noqa: F401
from lockstep.agent import bootstrap, control
from lockstep.agent.capture import capture_runner, recording  # noqa: F401  (what a module does when it is loaded is done once)
from lockstep.agent.lineage import OWNER_VARIABLE
from tests.agent.orders import ControlBlock, look_for_requests
from tests.agent.rings import read_ring, unaccounted_ns

ROOT = Path(os.environ["LOCKSTEP_DIR"])
AGENT = str(Path(bootstrap.__file__).parent)
OUTSIDE = frozenset(("boundary.py", "bootstrap.py"))
STEPS = 5
TROUBLE_STEP = 1  # where the first collection and the first capture are


class InjectedError(Exception):
    """What goes wrong in the agent."""


class PreemptedError(Exception):
    """What the training's own signal handler raises."""


def preempt(_signal, _frame):
    raise PreemptedError


class Trouble:
    """Makes the first call of one function of the agent go wrong, from inside it; without one, lists all that are called."""

    def __init__(self, name, mode):
        self.name = name
        self.mode = mode
        self.seen = set()
        self.hits = 0

    def __enter__(self):
        sys.setprofile(self.look)

    def __exit__(self, *_):
        sys.setprofile(None)

    def look(self, frame, event, _argument):
        code = frame.f_code
        if (
            event != "call"
            or code.co_flags & inspect.CO_GENERATOR
            or not code.co_filename.startswith(AGENT)
            or not self.guarded(frame)
        ):
            return
        name = f"{Path(code.co_filename).relative_to(AGENT)}:{code.co_qualname}"
        self.seen.add(name)
        if name == self.name and not self.hits:
            self.hits += 1
            sys.setprofile(None)
            if self.mode == "fail":
                del frame  # who holds the frame that it interrupted is taken for a signal handler
                raise InjectedError(name)
            signal.raise_signal(signal.SIGUSR1)

    @staticmethod
    def guarded(frame):
        """Whether the failure boundary is between this call and the training: not so in the hooks' thin outsides."""
        if frame.f_code.co_filename.endswith(tuple(OUTSIDE)):
            return False
        while frame is not None:
            if frame.f_code.co_name == "guarded" and frame.f_code.co_filename.endswith("boundary.py"):
                return True
            frame = frame.f_back
        return False


def train(block):
    """Return losses and final parameters of a training that meets every hook, by hash; what it was interrupted by."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    loader = torch.utils.data.DataLoader(torch.randn(STEPS * 4, 4), batch_size=4)
    digest = hashlib.sha256()
    interruptions = 0
    batches = iter(loader)
    for step in range(STEPS):
        try:
            one_step(step, batches, (model, optimizer, scaler), digest, block)
        except PreemptedError:
            interruptions += 1
            scaler = torch.amp.GradScaler("cpu")
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest(), interruptions


def one_step(step, batches, parts, digest, block):
    model, optimizer, scaler = parts
    batch = next(batches)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    scaler.scale(loss).backward()
    for parameter in model.parameters():
        work = dist.all_reduce(parameter.grad, async_op=True)
        work.wait()
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).add(1)
    if step == TROUBLE_STEP:
        gc.collect()
        torch.save({}, io.BytesIO())
        with torch.no_grad():
            next(iter(torch.utils.data.DataLoader(torch.ones(2, 2))))
        if block is not None:
            block()
    scaler.step(optimizer)
    scaler.update()
    digest.update(loss.detach().numpy().tobytes())


def trial(name, mode):
    """Train once with the agent while `name` goes wrong; return what could be seen from outside."""
    shutil.rmtree(ROOT / "job", ignore_errors=True)
    shutil.rmtree(ROOT / ".exporter", ignore_errors=True)
    os.environ.pop(OWNER_VARIABLE, None)
    sys.stderr = stderr_text = io.StringIO()
    gc.callbacks.clear()
    bootstrap.install()
    trouble = Trouble(name, mode)

    def order():
        ControlBlock(ROOT / "job").order(1, steps=2)
        look_for_requests(bootstrap._agent)

    try:
        with trouble:
            digest, interruptions = train(order)
        agent = bootstrap._agent
        alive, failures = agent.alive, agent.boundary.failures
        profiling = torch.autograd._profiler_enabled()
    finally:
        bootstrap.uninstall()
        sys.stderr = sys.__stderr__
    path = ROOT / "job" / "0.ring"
    ring = read_ring(path) if path.exists() else None
    return {
        "digest": digest,
        "interruptions": interruptions,
        "hits": trouble.hits,
        "seen": sorted(trouble.seen),
        "said": [line for line in stderr_text.getvalue().splitlines() if line.startswith("lockstep")],
        "state": ring and ring.state,
        "ring_failures": ring and ring.failures,
        "head": ring and ring.step_count,
        "exact": ring is None or all(unaccounted_ns(record) == 0 for record in ring.records),
        "alive": alive,
        "failures": failures,
        "profiling": profiling,
    }


def main(mode):
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCKSTEP_RUN="job")
    signal.signal(signal.SIGUSR1, preempt)
    torch.set_num_threads(1)
    control.LOOK_INTERVAL_NS = 0  # each boundary sees the order, however short the steps: the capture is in every trial
    gc.freeze()  # hundreds of full collections follow
    dist.init_process_group("gloo", init_method=f"file://{ROOT}/store", rank=0, world_size=1)
    bare = train(None)[0]
    clean = trial(None, mode)
    sys.stdout.write(
        json.dumps({"bare": bare, "clean": clean, "trials": {name: trial(name, mode) for name in clean["seen"]}}) + "\n"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
