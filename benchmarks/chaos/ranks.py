"""The ranks of one simulated node: `python -m benchmarks.chaos.ranks PLAN`, PLAN being a `RanksPlan` as JSON.

They write real rings of marks and answer capture orders with a small trace, without torch. The
processes of all nodes derive the same steps from the same seed, so that the job is synchronous though they never meet:
from `fault_step` on one rank works longer, and every step of every rank lasts as long as its.

The job ends behind the step that the file `finish_step` names. Orders that arrive are noted in `orders-<node>.jsonl`.
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.agent.control import ControlReader
from lockstep.agent.shared_directory import trusted_uids
from lockstep.contracts import ring as ring_layout
from lockstep.contracts.capture import CaptureRequest, CaptureResult, request_from_json, result_to_json
from lockstep.contracts.paths import control_path, incoming_directory, run_directory, trace_name
from tests.support.mark_ring import MarkRing, make_header, wanted_step

FINISH_FILE = "finish_step"
_NS = 1_000_000_000
_JITTER_RATIO = 0.004
_DATA_SHARE, _HOST_SHARE = 0.02, 0.03
_TRANSFER_SHARE = 0.1
_COUNTS = {"dp_bytes": 1 << 20, "samples": 8, "tokens": 8192}
_LOOK_EVERY_STEPS = 10
"""Steps between two looks for the file that ends the job: the file system is asked twice a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksPlan:
    """Ranks `first_rank` and up of a job of `world` ranks; `own_ns` is the work of a healthy one in a step."""

    root: str
    run: str
    node: str
    directory: str
    first_rank: int
    ranks: int
    world: int
    own_ns: int
    start_ns: int
    seed: int
    slow_rank: int
    fault_step: int
    fault_ratio: float


class Job:
    """The steps of all ranks, in ascending order; times are CLOCK_MONOTONIC ns."""

    def __init__(self, plan: RanksPlan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)  # noqa: S311  (the same noise in every process)
        self._transfer_ns = round(plan.own_ns * _TRANSFER_SHARE)
        self.step = -1
        self.begin_ns = self.end_ns = plan.start_ns
        self.own_ns: list[int] = []

    def advance(self) -> None:
        """Go on to the next step."""
        plan = self._plan
        self.step += 1
        self.own_ns = [round(plan.own_ns * self._random.gauss(1, _JITTER_RATIO)) for _ in range(plan.world)]
        if self.step >= plan.fault_step:
            self.own_ns[plan.slow_rank] = round(self.own_ns[plan.slow_rank] * (1 + plan.fault_ratio))
        self.begin_ns, self.end_ns = self.end_ns, self.end_ns + max(self.own_ns) + self._transfer_ns

    def record(self, rank: int) -> dict[str, int]:
        """Return a rank's present step; its parts sum to it."""
        own_ns = self.own_ns[rank]
        data_ns, host_ns = round(own_ns * _DATA_SHARE), round(own_ns * _HOST_SHARE)
        return wanted_step(
            self.step,
            self.begin_ns,
            self.end_ns,
            data_ns=data_ns,
            compute_ns=own_ns - data_ns - host_ns,
            dp_wait_ns=self.end_ns - self.begin_ns - own_ns,
            **_COUNTS,
        )


class Rank:
    """One rank: its ring, and the capture that it was asked for."""

    def __init__(self, plan: RanksPlan, local_rank: int) -> None:
        self.rank = plan.first_rank + local_rank
        self._directory = run_directory(Path(plan.root), plan.run)
        self._order: CaptureRequest | None = None
        self._began_step: int | None = None
        self._began_ns = 0
        header = make_header(
            self.rank, world_size=plan.world, local_rank=local_rank, hostname=plan.node, attempt=plan.start_ns
        )
        self._ring = MarkRing(self._directory, header, now_ns=time.monotonic_ns(), hold=True)
        everyone = {"kind": "dp", "name": "dp0", "ranks": [[0, plan.world, 1]]}
        self._ring.groups([everyone])

    def take_order(self, order: CaptureRequest) -> None:
        """Accept a capture order that names this rank."""
        if self.rank in order.ranks:
            self._order, self._began_step = order, None
            self._answer(CaptureResult(request_id=order.request_id, state="accepted"))

    def end_step(self, job: Job) -> None:
        """Record a step, and go on with a capture."""
        self._ring.write(job.record(self.rank))
        self._ring.beat(time.monotonic_ns())
        order = self._order
        if order is None or job.step < order.first_step:
            return
        if self._began_step is None:
            self._began_step, self._began_ns = job.step + 1, job.end_ns
            self._answer(CaptureResult(request_id=order.request_id, state="running"))
        elif job.step == self._began_step + order.steps - 1:
            self._finish_capture(order, job)

    def finish(self) -> None:
        """Report that training ended well."""
        self._ring.state(ring_layout.STATE_FINISHED)

    def _finish_capture(self, order: CaptureRequest, job: Job) -> None:
        assert self._began_step is not None
        name = trace_name(order.request_id, self.rank)
        path = self._directory / f".{name}"
        path.write_text(json.dumps(_trace(order.steps, job.own_ns[self.rank], job.end_ns - job.begin_ns)))
        trace_bytes = path.stat().st_size
        path.rename(incoming_directory(self._directory) / name)
        self._answer(
            CaptureResult(
                request_id=order.request_id,
                state="done",
                first_step=self._began_step,
                steps=order.steps,
                start_ns=self._began_ns,
                end_ns=job.end_ns,
                trace_bytes=trace_bytes,
                cost_ns=1_000_000,
            )
        )
        self._order = None

    def _answer(self, answer: CaptureResult) -> None:
        self._ring.answer(result_to_json(answer))


def _trace(steps: int, own_ns: int, step_ns: int) -> dict[str, Any]:
    """Return a trace of the kind that torch writes, as small as it can be; times in microseconds."""
    thread = {"ph": "X", "pid": 1, "tid": 1}
    events: list[dict[str, Any]] = []
    for step in range(steps):
        begin, own, whole = step * step_ns / 1000, own_ns / 1000, step_ns / 1000
        events += [
            thread | {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": whole},
            thread
            | {"cat": "python_function", "name": "train.py(7): train_step", "ts": begin + 1, "dur": whole - 2}
            | {"args": {"Python id": step + 1, "Python parent id": None}},
            thread | {"cat": "cpu_op", "name": "aten::mm", "ts": begin + 2, "dur": own - 4},
        ]
    return {"schemaVersion": 1, "traceEvents": events, "traceName": "trace.json"}


def play(plan: RanksPlan) -> None:
    """Step until the job is to end."""
    job = Job(plan)
    ranks = [Rank(plan, local_rank) for local_rank in range(plan.ranks)]
    control = ControlReader(control_path(run_directory(Path(plan.root), plan.run)), trusted_uids(os.environ))
    orders = Path(plan.directory, f"orders-{plan.node}.jsonl")
    finish = Path(plan.directory, FINISH_FILE)
    last_step: int | None = None
    while last_step is None or job.step < last_step:
        job.advance()
        time.sleep(max(0, job.end_ns - time.monotonic_ns()) / _NS)
        for rank in ranks:
            rank.end_step(job)
        value = control.poll(time.monotonic_ns())
        if value is not None:
            order = request_from_json(value, where=plan.node)
            with orders.open("a") as log:
                log.write(json.dumps({"step": job.step, **asdict(order)}) + "\n")
            for rank in ranks:
                rank.take_order(order)
        if last_step is None and job.step % _LOOK_EVERY_STEPS == 0 and finish.exists():
            last_step = int(finish.read_text())
    for rank in ranks:
        rank.finish()


if __name__ == "__main__":
    play(RanksPlan(**json.loads(sys.argv[1])))
