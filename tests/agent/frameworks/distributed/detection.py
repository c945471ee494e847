"""The rings of an ended job, read by the exporter's code and evaluated by the coordinator's: the incidents it would raise.

Time is that of the records: what ended within a second arrives together at its end.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.record.backtest import ReplayResult
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from exporter.counts import ExporterCounters
from exporter.reading.rings import Rings
from exporter.reading.silence import announcement
from exporter.sending.batches import Batcher
from lockstep.contracts.messages import RUNNING
from lockstep.contracts.records import RECORD_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.decide.incidents import Incident
    from lockstep.contracts.messages import NodeAnnouncement, StepBatch

NODE = "node"
NS = 1_000_000_000
END_NS = RECORD_INDEX["end_ns"]


def incidents(root: Path, run: str) -> "list[Incident]":
    """Return the incidents of a run whose rings are under `root`, in the order of their opening."""
    announced, batches = _read(root, run)
    policy = Policy()
    policy = replace(policy, profile=replace(policy.profile, enabled=False))  # no rank lives that could capture
    runs, replayed = Runs(CoordinatorConfig(), policy, {}, clock=lambda: 0.0), ReplayResult()
    for batch in batches:
        now_s = batch.sent_unix_ns / NS
        replayed.note(runs.take(announced, now_s))
        replayed.note(runs.take(batch, now_s))
        replayed.note(runs.tick(now_s))
    replayed.note_open(runs)
    return list(replayed.incidents.values())


def _read(root: Path, run: str) -> "tuple[NodeAnnouncement, list[StepBatch]]":
    """Return what the exporter announces of a run, and all its records."""
    rings = Rings(root, ExporterCounters(), {})
    try:
        rings.scan(0)
        readings = rings.read()
        while more := [reading for reading in rings.read() if len(reading.records)]:  # a look takes so many marks
            readings += more
        assert {reading.run.name for reading in readings} == {run}
        for track in rings.runs[run].ranks.values():
            track.state, track.ending = RUNNING, None  # as it was while these records were made
        return announcement(rings.runs[run], NODE), list(_batches(run, [(r.rank, r.records) for r in readings]))
    finally:
        rings.close()


def _batches(run: str, records: "list[tuple[int, np.ndarray]]") -> "Iterator[StepBatch]":
    """Yield the records of all ranks, second by second."""
    batcher = Batcher(NODE)
    seconds = np.unique(np.concatenate([rows[:, END_NS] // NS for _, rows in records])).tolist()
    for second in seconds:
        for rank, rows in records:
            batcher.add(run, rank, rows[rows[:, END_NS] // NS == second])
        yield from batcher.take((second + 1) * NS)
