"""Trainings that end in every way, each in a forked child, with the agent and without it.

Prints one JSON object: ending -> [exit status and last line on stderr without the agent, the same with it].
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import tests.support.loaded_torch  # noqa: F401
from lockstep.agent import bootstrap
from tests.agent.orders import ControlBlock, look_for_requests

ROOT = Path(os.environ["LOCKSTEP_DIR"])


class Training:
    """A loop of one rank; `capture` asks the agent, where there is one, for a profile that outlives the loop."""

    def __init__(self, name, watched):
        self.run = ROOT / name
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.watched = watched
        self.block = ControlBlock(self.run)

    def steps(self, count=3):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.ones(4, 8)).sum().backward()
            self.optimizer.step()

    def capture(self):
        self.steps()
        self.block.order(1, steps=50)
        if self.watched:
            look_for_requests(bootstrap._agent)
        self.steps()
        if self.watched:
            assert torch.autograd._profiler_enabled()


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def exit_on_signal(training):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    training.steps()
    terminate()


def exit_on_signal_in_capture(training):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    training.capture()
    terminate()


def raise_in_capture(training):
    training.capture()
    raise ValueError("the training's")


def exit_in_capture(training):
    training.capture()
    sys.exit(3)


def end_in_capture(training):
    training.capture()


def vanish_in_capture(training):
    training.capture()
    os._exit(5)


def terminated_in_capture(training):
    training.capture()
    terminate()


def interrupted_in_capture(training):
    training.capture()
    raise KeyboardInterrupt


def fork_in_capture(training):
    training.capture()
    child = os.fork()
    if child == 0:
        training.steps()
        os._exit(6)  # as multiprocessing does; exit() after any capture hangs in a destructor of Kineto's
    status = os.waitpid(child, 0)[1]
    training.steps()
    sys.exit(os.waitstatus_to_exitcode(status))


def train_in_daemon(training):
    started = threading.Event()

    def forever():
        training.steps()
        started.set()
        threading.Event().wait()  # a daemon inside torch at the end aborts the process without the agent too

    threading.Thread(target=forever, daemon=True).start()
    started.wait(60)


def train_in_thread(training):
    threading.Thread(target=training.steps).start()


def train_at_exit(training):
    training.steps()
    atexit.register(training.steps)


def train_in_finalizer(training):
    training.steps()

    class Late:
        def __del__(self):
            training.steps(1)

    sys.modules["late"] = Late()


def close_stderr(training):
    training.steps()
    sys.stderr.close()
    training.steps()
    sys.exit(2)


def raising_stderr(training):
    """Let the agent fail, and its report of that raise."""

    class Tee:
        def write(self, _text):
            raise RuntimeError("tee is gone")

        def flush(self):
            raise RuntimeError("tee is gone")

    training.steps()
    if training.watched:
        bootstrap._agent.capture = None
        bootstrap._agent.marks.poll_interval_ns = 0
        bootstrap._agent.marks.flush()
    ours, sys.stderr = sys.stderr, Tee()
    training.steps()
    sys.stderr = ours
    sys.exit(2)


def collective_in_flight(training, ending):
    """Let the other rank join when this one is already on its way out: torch waits for it, and so must we."""
    store = f"file://{training.run}.store-{int(training.watched)}"
    if os.fork() == 0:
        os.environ.update(RANK="1", WORLD_SIZE="2")
        dist.init_process_group("gloo", init_method=store, rank=1, world_size=2)
        dist.all_reduce(torch.ones(2))
        time.sleep(0.3)
        dist.all_reduce(torch.ones(2))
        os._exit(0)
    training.steps()
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=2)
    dist.all_reduce(torch.ones(2))
    training.work = dist.all_reduce(torch.ones(2), async_op=True)
    ending()


def in_flight_at_end(training):
    collective_in_flight(training, lambda: None)


def in_flight_at_exit(training):
    collective_in_flight(training, lambda: sys.exit(3))


def in_flight_at_raise(training):
    collective_in_flight(training, lambda: 1 / 0)


def in_flight_at_destroy(training):
    collective_in_flight(training, dist.destroy_process_group)


ENDINGS = [
    exit_on_signal,
    exit_on_signal_in_capture,
    raise_in_capture,
    exit_in_capture,
    end_in_capture,
    vanish_in_capture,
    terminated_in_capture,
    interrupted_in_capture,
    fork_in_capture,
    train_in_daemon,
    train_in_thread,
    train_at_exit,
    train_in_finalizer,
    close_stderr,
    raising_stderr,
    in_flight_at_end,
    in_flight_at_exit,
    in_flight_at_raise,
    in_flight_at_destroy,
]


def start(ending, watched):
    """Return the pid of a child that trains and ends so, or None in the child."""
    pid = os.fork()
    if pid:
        return pid
    descriptor = os.open(ROOT / f"{ending.__name__}.{int(watched)}", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(descriptor, 2)
    if watched:
        os.environ["LOCKSTEP_RUN"] = ending.__name__
        bootstrap.install()
    return None


torch.set_num_threads(1)
found = {}
for ending in ENDINGS:
    found[ending.__name__] = []
    for watched in (False, True):
        pid = start(ending, watched)
        if pid is None:
            ending(Training(ending.__name__, watched))
            sys.exit(0)
        status = os.waitpid(pid, 0)[1]
        output_lines = (ROOT / f"{ending.__name__}.{int(watched)}").read_text().splitlines()
        found[ending.__name__].append([os.waitstatus_to_exitcode(status), output_lines[-1:]])
sys.stdout.write(json.dumps(found) + "\n")
sys.stdout.flush()
os._exit(0)
