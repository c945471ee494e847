"""One rank whose script profiles itself while captures are asked for: prints per scene what became of both.

Two profilers at once end the process with a segmentation fault, so every scene here is run in this process of its own.
"""

import contextlib
import gc
import json
import os
import sys
import threading
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

import lockstep
import tests.support.loaded_torch  # noqa: F401
from lockstep.agent import bootstrap
from lockstep.agent.capture import budget
from lockstep.contracts.capture import result_from_json
from tests.agent.orders import ControlBlock, look_for_requests
from tests.agent.rings import read_ring

HOST = [ProfilerActivity.CPU]


class Job:
    def __init__(self, root):
        self.directory = Path(root) / "job"
        self.block = ControlBlock(self.directory)
        self.weight = torch.ones(4, 4, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.request = 0

    def step(self):
        look_for_requests(bootstrap._agent)
        (self.weight @ self.weight).sum().backward()
        self.optimizer.step()

    def order(self, **options):
        self.request += 1
        self.block.order(self.request, **options)

    def answer(self):
        answer = result_from_json(read_ring(self.directory / "0.ring").answer, where="ring")
        return {"request": answer.request_id, "state": answer.state, "reason": answer.reason, "steps": answer.steps}

    def events(self, profiler):
        """Return how many products the user's profiler saw: three a step."""
        path = self.directory / "theirs.json"
        profiler.export_chrome_trace(str(path))
        return sum(event.get("name") == "aten::mm" for event in json.loads(path.read_text())["traceEvents"])


def whole_profiler_during_a_capture(job):
    """Theirs begins in the second captured step."""
    job.order(steps=5)
    job.step()
    job.step()
    with profile(activities=HOST) as theirs:
        job.step()
    return job.events(theirs)


def profiler_during_the_first_step(job):
    """Theirs begins before a whole step was captured."""
    job.order(steps=5)
    job.step()
    with profile(activities=HOST) as theirs:
        job.step()
    return job.events(theirs)


def capture_during_the_warm_up_of_theirs(job):
    """Ask while theirs only warms up, which no flag of torch shows."""
    with profile(activities=HOST, schedule=schedule(wait=0, warmup=4, active=1, repeat=1)) as theirs:
        job.order(steps=1)
        for _ in range(5):
            job.step()
            theirs.step()
    return job.events(theirs)


def profiler_on_another_thread(job):
    """Theirs waits until the training thread is at a boundary."""
    started, over = threading.Event(), threading.Event()
    found = []

    def watch():
        with profile(activities=HOST) as theirs:
            started.set()
            over.wait(60)
            torch.ones(2, 2) @ torch.ones(2, 2)
        found.append(job.events(theirs))

    job.order(steps=100)
    job.step()
    job.step()
    thread = threading.Thread(target=watch)
    thread.start()
    while not started.wait(0.01):
        job.step()
    answer = job.answer()
    job.order(steps=1)  # while theirs runs on the other thread
    job.step()
    job.step()
    assert job.answer()["reason"] == "another profiler is running"
    over.set()
    thread.join()
    return {**answer, "theirs": found[0]}


def emitted_ranges(job):
    """Emit ranges for an external profiler, which takes the same session."""
    with contextlib.suppress(RuntimeError), torch.autograd.profiler.emit_itt():  # torch without ITT raises it
        job.order(steps=1)
        job.step()
        job.step()


def fork_during_a_capture(job):
    """Fork a child, which must not go on recording."""
    job.order(steps=5)
    job.step()
    job.step()
    child = os.fork()
    if child == 0:
        os._exit(torch.autograd._profiler_enabled())
    return os.waitpid(child, 0)[1]


def again(job):
    """After all of it a capture is carried out."""
    job.order(steps=2)
    for _ in range(3):
        job.step()
        gc.collect()


SCENES = [
    whole_profiler_during_a_capture,
    profiler_during_the_first_step,
    capture_during_the_warm_up_of_theirs,
    profiler_on_another_thread,
    emitted_ranges,
    fork_during_a_capture,
    again,
]


def main(root):
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCKSTEP_DIR=root, LOCKSTEP_RUN="job")
    assert lockstep.install()
    torch.set_num_threads(1)
    budget.SLOWDOWN_FLOOR_NS = 10**12  # no capture ends early because others have the cores
    job = Job(root)
    job.step()
    job.step()
    for scene in SCENES:
        theirs = scene(job)
        scene_result = theirs if isinstance(theirs, dict) else {**job.answer(), "theirs": theirs}
        print(json.dumps({"scene": scene.__name__, **scene_result}), flush=True)  # noqa: T201  (what the test reads)
        job.step()
    failures = read_ring(job.directory / "0.ring").failures
    print(json.dumps({"scene": "end", "failures": failures}), flush=True)  # noqa: T201  (what the test reads)


if __name__ == "__main__":
    main(sys.argv[1])
