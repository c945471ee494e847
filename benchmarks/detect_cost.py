"""What a step costs the coordinator, by number of ranks: `python -m benchmarks.detect_cost [--ranks 8 1024]`.

Each step arrives as messages of 8 ranks, nodes in no order. They are decoded and taken in gatherings as large as the
live coordinator's, laid out, and judged. Columns: medians in CPU ms of one core of `decode` (messages to batches),
`ingest` (batches to the laid out step), `detect` and the sum of the latter two, the sum's 95th percentile, and wall ms
of all three; ns per rank of ingest and of detection, which stay as they are where growth is linear; `x add`, the sum
in passes of `numpy.add` over one number of each rank, timed beside every step, which a busy machine slows as well;
`restart`, ms of taking the first step of another attempt of all ranks; bytes of detector state per rank, and beside it
those of the last rows, which are kept to be shown.

Cases: a healthy step and one with 1 % of the ranks slow, in batches that hold what a step log holds; and a healthy step
with all columns that an exporter sends of a job on devices, most of which nobody here reads: that has no budget.

Returns 1 where a budget is missed by the median. Budgets: DESIGN.md, section 5, and issue 4.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.scenarios.job import Fault, Interruptions, Noise, Scenario
from benchmarks.scenarios.model import generate
from benchmarks.scenarios.recording import RANKS_PER_NODE, START_UNIX_S, Recording
from coordinator.detect.judge import Judge
from coordinator.intake.coalescer import COALESCED_RECORDS
from coordinator.intake.timeline import StepRow, Timeline
from coordinator.settings.policy import Policy
from lockstep.contracts import topics
from lockstep.contracts.codec import decode_as, encode
from lockstep.contracts.messages import StepBatch
from lockstep.contracts.rows import RANK, SEPARATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = {8: "dp=8", 1024: "tp=8,pp=4,dp=32", 10_240: "tp=8,pp=8,dp=160", 102_400: "tp=8,pp=8,dp=1600"}
DETECT_BUDGET_MS = {10_240: 2.0, 102_400: 10.0}
SUM_BUDGET_MS = {102_400: 30.0}
STATE_BUDGET_BYTES = 64
_MANY = 10_240  # ranks from which state that does not grow with them no longer counts
CASES = (("healthy", False, False), ("1 % slow", True, False), ("all columns", False, True))
"""Name, whether ranks are slow, whether batches hold all columns."""
STEPS = 48
WARM_UP_STEPS = 28  # noise is learnt and the slow ranks are named
FAULT_STEP = 22
_GATHERED = COALESCED_RECORDS // RANKS_PER_NODE  # messages
_NS = 1_000_000_000
_OTHER_COLUMNS = (
    *("gc_count", "gc_full_count", "forward_ns", "backward_ns", "optimizer_ns", "cpu_ns", "samples", "model_flops"),
    *("recompilations", "agent_ns", "device_step_ns", "device_comm_ns", "host_lead_ns"),
)
"""What an exporter sends besides, and nothing here reads."""


@dataclass(slots=True)
class Spent:
    """CPU ms of each measured step, and wall ms of all of it."""

    decode_ms: list[float] = field(default_factory=list)
    ingest_ms: list[float] = field(default_factory=list)
    detect_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    add_ms: list[float] = field(default_factory=list)
    restart_ms: float = 0.0
    state_bytes: int = 0
    shown_bytes: int = 0

    def sums_ms(self) -> "NDArray[np.float64]":
        """Return ingest and detection together, step by step."""
        return np.add(self.ingest_ms, self.detect_ms)


def recorded(ranks: int, *, slow: int) -> Recording:
    """Return a job without pauses; `slow` ranks work 15 % longer from a step on."""
    faults = (Fault(cause="compute", ranks=tuple(range(slow)), ratio=0.15, begin=FAULT_STEP),) if slow else ()
    quiet = Interruptions(checkpoint_every=0, evaluation_every=0, missing=0.0)
    return generate(
        Scenario(
            name="cost",
            degrees=SHAPES[ranks],
            seed=1,
            steps=STEPS,
            noise=Noise(hiccup_rate=0.0),
            interruptions=quiet,
            faults=faults,
        )
    )


def batches_of(
    recording: Recording, row: int, *, step: int, later_s: int = 0, all_columns: bool = False
) -> list[StepBatch]:
    """Return one step as its nodes send it, in no order; all numbers are int64 on the wire."""
    ranks = recording.present.shape[1]
    duration_ns = np.rint(recording.duration_W * _NS).astype(np.int64)
    end_ns = (START_UNIX_S + later_s) * _NS + int(duration_ns[: row + 1].sum()) + recording.skew_ns_R
    parts = {f"{name}_ns": _ns(values[row]) for name, values in recording.parts.items()}
    waits = {f"{kind}_wait_ns": _ns(values[row]) for kind, values in recording.waits.items()}
    parts["compute_ns"] += duration_ns[row] - sum(parts.values()) - sum(waits.values())  # exact, whatever was rounded
    columns = {"step": np.full(ranks, step), "start_ns": end_ns - duration_ns[row], "end_ns": end_ns}
    columns |= {"flags": recording.flags[row], **parts, **waits, "tokens": recording.tokens[row].astype(np.int64)}
    columns |= {f"{kind}_bytes": moved for kind, moved in recording.moved.items()}
    for kind, transfer in recording.transfers.items():
        if all_columns or kind == "pp":
            columns |= {f"{kind}_count": np.full(ranks, 8), f"{kind}_shortest_ns": _ns(transfer[row] / 8)}
        if all_columns:
            columns |= {f"{kind}_{name}": np.full(ranks, 1000) for name in ("comm_ns", "bus_bytes")}
    if all_columns:
        columns |= {name: np.full(ranks, 1000) for name in _OTHER_COLUMNS}
    rows = np.stack([np.arange(ranks), *columns.values()], axis=1).astype("<i8")
    layout = SEPARATOR.join((RANK, *columns))
    order = np.random.default_rng(row).permutation(-(-ranks // RANKS_PER_NODE))
    return [_batch(layout, rows, node * RANKS_PER_NODE, row) for node in order.tolist()]


def _ns(seconds: "NDArray[np.float32]") -> "NDArray[np.int64]":
    return np.rint(seconds.astype(np.float64) * _NS).astype(np.int64)


def _batch(layout: str, rows: "NDArray[np.int64]", first: int, sequence: int) -> StepBatch:
    own = rows[first : first + RANKS_PER_NODE]
    return StepBatch(
        run="job",
        node=f"node{first // RANKS_PER_NODE}",
        sequence=sequence,
        sent_unix_ns=0,
        count=len(own),
        layout=layout,
        records=own.tobytes(),
    )


def measure(ranks: int, *, slow: int, all_columns: bool) -> Spent:
    """Return what the steps after warm-up cost."""
    recording = recorded(ranks, slow=slow)
    timeline = Timeline(Policy().timeline)
    timeline.know(list(range(ranks)))
    hosts = [f"node{rank // RANKS_PER_NODE}" for rank in range(ranks)]
    judge = Judge(timeline.ranks, recording.topology, Policy(), hosts=hosts)
    spent = Spent()
    for row in range(STEPS):
        messages = messages_of(batches_of(recording, row, step=row, all_columns=all_columns))
        begin_wall = time.perf_counter()
        (step,), decode_ms, ingest_ms = received(timeline, messages)
        begin = time.process_time()
        judge.judge(step)
        end = time.process_time()
        if row >= WARM_UP_STEPS:
            spent.decode_ms.append(decode_ms)
            spent.ingest_ms.append(ingest_ms)
            spent.detect_ms.append((end - begin) * 1e3)
            spent.wall_ms.append((time.perf_counter() - begin_wall) * 1e3)
            spent.add_ms.append(_add_ms(ranks))
    batches = batches_of(recording, 0, step=0, later_s=3600, all_columns=all_columns)
    begin = time.process_time()
    (_,) = taken(timeline, batches)
    spent.restart_ms = (time.process_time() - begin) * 1e3
    spent.shown_bytes = array_bytes(judge.recent_rows)
    spent.state_bytes = array_bytes(judge) - spent.shown_bytes
    return spent


def taken(timeline: Timeline, batches: Sequence[StepBatch]) -> list[StepRow]:
    """Take batches in gatherings as large as the live ones; return the steps that are complete then."""
    rows = []
    for first in range(0, len(batches), _GATHERED):
        timeline.ingest_all(batches[first : first + _GATHERED], 0.0)
        rows += timeline.ready(0.0)
    return rows


def messages_of(batches: Sequence[StepBatch]) -> list[tuple[str, bytes]]:
    """Return batches as the broker delivers them: topic and payload."""
    return [(topics.run_topic(batch.run, topics.STEPS, batch.node), encode(batch)) for batch in batches]


def received(timeline: Timeline, messages: Sequence[tuple[str, bytes]]) -> tuple[list[StepRow], float, float]:
    """Take messages as they come, gathering after gathering; return the complete steps, and ms of decode and ingest."""
    rows: list[StepRow] = []
    decode_ms = ingest_ms = 0.0
    for first in range(0, len(messages), _GATHERED):
        begin = time.process_time()
        batches = [decode_as(StepBatch, topic, payload) for topic, payload in messages[first : first + _GATHERED]]
        between = time.process_time()
        rows += taken(timeline, batches)
        ingest_ms += (time.process_time() - between) * 1e3
        decode_ms += (between - begin) * 1e3
    return rows, decode_ms, ingest_ms


def _add_ms(ranks: int) -> float:
    """Return what one pass of `numpy.add` over one number of each rank costs right now."""
    values = np.ones(ranks, dtype=np.float32)
    out = np.empty_like(values)
    begin = time.process_time()
    for _ in range(16):
        np.add(values, values, out=out)
    return (time.process_time() - begin) * 1e3 / 16


def array_bytes(root: object) -> int:
    """Return the memory of all arrays that an object reaches, each counted once, views with what they belong to."""
    return sum(array.nbytes for array in _arrays(root, set()))


def _arrays(value: object, seen: set[int]) -> "Iterator[NDArray[np.generic]]":
    if isinstance(value, np.ndarray):
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in seen:
            seen.add(id(owner))
            yield owner
        return
    if id(value) in seen or isinstance(value, str | bytes | type) or callable(value):
        return
    seen.add(id(value))
    for inner in _inside(value):
        yield from _arrays(inner, seen)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Iterator):
        return []
    if hasattr(value, "__iter__"):
        return list(value)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def report(ranks: int, case: str, spent: Spent, *, has_budget: bool) -> bool:
    """Print a row; return whether a budget is missed."""
    decode, ingest, detect, total, wall, add = (
        float(np.median(each))
        for each in (spent.decode_ms, spent.ingest_ms, spent.detect_ms, spent.sums_ms(), spent.wall_ms, spent.add_ms)
    )
    state = spent.state_bytes / ranks
    limits = (DETECT_BUDGET_MS.get(ranks), SUM_BUDGET_MS.get(ranks), STATE_BUDGET_BYTES if ranks >= _MANY else None)
    judged = [
        (value, limit if has_budget else None) for value, limit in zip((detect, total, state), limits, strict=True)
    ]
    told = [_beside(value, limit) for value, limit in judged]
    late = float(np.percentile(spent.sums_ms(), 95))
    print(
        f"{ranks:>7} {case:<11} {decode:>8.2f} {ingest:>8.2f} {told[0]} {told[1]} {late:>8.2f}"
        f" {wall:>8.2f} {ingest * 1e6 / ranks:>7.0f} {detect * 1e6 / ranks:>7.0f} {total / add:>7.0f}"
        f" {spent.restart_ms:>8.1f} {told[2]} {spent.shown_bytes / ranks:>6.0f}",
        flush=True,
    )
    return any(limit is not None and value > limit for value, limit in judged)


def _beside(value: float, budget: float | None) -> str:
    told = "" if budget is None else f"/{budget:g}{'!' if value > budget else ''}"
    return f"{value:>8.2f}{told:<4}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a budget is missed by the median."""
    parser = argparse.ArgumentParser(description="Cost of ingest and detection per step.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parsed = parser.parse_args(arguments)
    print(
        f"{'ranks':>7} {'case':<11} {'decode':>8} {'ingest':>8} {'detect':>12} {'sum':>12} {'sum p95':>8} {'wall':>8}"
        f" {'ns/rank':>15} {'x add':>7} {'restart':>8} {'state B':>12} {'rows B':>6}"
    )
    over = False
    for ranks in parsed.ranks:
        for case, is_slow, all_columns in CASES:
            spent = measure(ranks, slow=max(1, ranks // 100) if is_slow else 0, all_columns=all_columns)
            over |= report(ranks, case, spent, has_budget=not all_columns)
    print("/ is the budget of a median, ! where it is missed")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
