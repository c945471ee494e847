"""Finds and reads the runs and rings of this node; the only writer of their states.

The exporter never writes a ring. A refused ring is counted once per file, logged, and retried at each scan; it does not
affect its neighbours. A ring whose reading fails repeatedly is ignored until its file is replaced. A file with a new
inode under the same name is a new attempt, or the same one whose agent has written its ring again: the old file is read
to its end first.

A run belongs to the user who owns its directory. Another user's ring in it is refused, and so is an entry with a run's
name that is not a directory that the exporter may read.
"""

import logging
import os
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from exporter.counts import ExporterCounters
from exporter.reading.announce import parse_groups, parse_slots
from exporter.reading.attempt_steps import (
    NO_RECORDS,
    RECORDS_PER_READ,
    AttemptSteps,
    Records,
    StepsRead,
    to_records,
)
from exporter.reading.rank_states import RankStates, State
from exporter.reading.read_offsets import ReadOffsets
from exporter.reading.ring_file import ReadResult, RingFile
from exporter.reading.run_directories import RunDirectories, turns_of
from exporter.reading.run_state import ENDED, RankState, RunState
from exporter.reading.totals import possible
from lockstep.accounting.step_record import BuiltStep, built_steps
from lockstep.contracts.capture import CaptureResult
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.facts import facts_from_json
from lockstep.contracts.filesystems import is_on_disk
from lockstep.contracts.limits import RANKS_PER_NODE_MAX, RUNS_PER_NODE_MAX
from lockstep.contracts.messages import RUNNING, TORN
from lockstep.contracts.paths import rank_of_ring, ring_path
from lockstep.contracts.records import RECORD_INDEX
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.serving.log_limit import LogLimit

_log = logging.getLogger(__name__)

_BLOCKS_PER_READ = 4096  # of all rings, 80 ms of work; eight ranks with 2,000 collectives a second each fill 1,600
_BLOCKS_PER_RING = 512  # of one ring, a quarter of what it holds
_BLOCKS_PER_RING_MIN = 16
_RECORDS_AT_END = 8192  # of a ring that lost its name; more are not from training, whose steps have several marks
_RANK_STATES_MAX = 4 * RANKS_PER_NODE_MAX  # ranks of one run that came and went, as with elastic jobs
_FRESH_NS = 30 * 10**9  # a run with so recent a sign of life goes before one without
_NS = 1e-9
_RING = "ring"
_TIMES = [RECORD_INDEX["start_ns"], RECORD_INDEX["end_ns"]]


@dataclass(frozen=True, slots=True)
class RingReading:
    """What is new of one rank. `records` are plausible ones, `start_ns` and `end_ns` in wall-clock time.

    `lost` counts records that could not be read, by reason (`messages.LOSS_REASONS`).
    """

    run: RunState
    rank: int
    records: Records
    answer: CaptureResult | None
    lost: dict[str, int]


class _TakenRing(NamedTuple):
    """What was read of a ring; `key` identifies it, `state` is the rank's by then."""

    run: RunState
    rank_state: RankState
    key: str
    result: ReadResult
    state: State
    steps: StepsRead


class Rings:
    """All rings of this node. Runs on the event loop; `scan` and `read` do bounded work.

    `fill_ratio` is the largest part of a ring's blocks that were new at the last read; inf if some ring was not read to
    its end.
    """

    def __init__(self, root: Path, counts: ExporterCounters, offsets: ReadOffsets) -> None:
        self.runs: dict[str, RunState] = {}
        self.omitted = 0
        self.quarantined = 0
        self.fill_ratio = 0.0
        self.is_on_disk = is_on_disk(root)
        self.isolation = FaultIsolation((_RING,))
        self._limit = LogLimit(_log)
        self._now_s = 0.0
        self._root = root
        self._directories = RunDirectories(root, counts)
        self._counts = counts
        self._offsets = offsets
        self._late: list[RingReading] = []
        self._gone: list[RunState] = []
        self._states = RankStates()

    def scan(self, now_ns: int) -> None:
        """Find runs and rings that appeared, disappeared or were replaced."""
        self._now_s = now_ns * _NS
        owners = self._directories.owners(self.runs)
        followed, omitted = self._choose(owners, now_ns)
        for name in [name for name in self.runs if name not in followed]:
            run = self.runs.pop(name)
            for rank_state in run.ranks.values():
                self._detach(run, rank_state)
            self._gone.append(run)
        for name in followed:
            run = self.runs.setdefault(name, RunState(name, self._root / name))
            self._scan_run(run, owners[name])
        self.omitted = omitted + sum(run.omitted for run in self.runs.values())
        self.quarantined = sum(run.quarantined for run in self.runs.values())

    def read(self) -> list[RingReading]:
        """Read what is new in every open ring."""
        readings, self._late = self._late, []
        states = [(run, rank_state) for run in self.runs.values() for rank_state in run.ranks.values()]
        opened = [(run, rank_state, rank_state.ring) for run, rank_state in states if rank_state.ring is not None]
        blocks = min(_BLOCKS_PER_RING, max(_BLOCKS_PER_RING_MIN, _BLOCKS_PER_READ // max(1, len(opened))))
        readings += self._read_rings(opened, blocks, RECORDS_PER_READ)
        self.fill_ratio = max((rank_state.steps.fill_ratio for _, rank_state, _ in opened), default=0.0)
        return readings

    def take_gone(self) -> list[RunState]:
        """Return the runs that disappeared since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def offsets(self) -> ReadOffsets:
        """Return how far every open ring was read."""
        return {
            run.name: {rank: each.offset(each.ring) for rank, each in run.ranks.items() if each.ring is not None}
            for run in self.runs.values()
        }

    def unnumbered(self) -> int:
        """Return the number of training ranks that have marks but no step numbers."""
        states = (rank_state for run in self.runs.values() for rank_state in run.ranks.values())
        return sum(t.ring is not None and t.state == RUNNING and t.steps.is_unnumbered for t in states)

    def close(self) -> None:
        """Close every ring, and stop watching processes."""
        self._states.close()
        for run in self.runs.values():
            for rank_state in run.ranks.values():
                if rank_state.ring is not None:
                    rank_state.ring.close()
                    rank_state.ring = None

    def _choose(self, owners: dict[str, int], now_ns: int) -> tuple[list[str], int]:
        """Return the runs to follow and the number of live ranks left out.

        If there are too many, users take turns, so that one user's runs do not prevent another's from being followed.
        """
        if len(owners) <= RUNS_PER_NODE_MAX:
            return list(owners), 0
        live = {name: self._live_ranks(self._root / name, uid, now_ns) for name, uid in owners.items()}
        order = sorted(owners, key=lambda name: (live[name] == 0, name not in self.runs, name))
        turns = turns_of({name: owners[name] for name in order})
        order.sort(key=lambda name: (live[name] == 0, turns[name]))
        return order[:RUNS_PER_NODE_MAX], sum(live[name] for name in order[RUNS_PER_NODE_MAX:])

    def _live_ranks(self, directory: Path, owner_uid: int, now_ns: int) -> int:
        """Return how many of the directory's rings gave a sign of life recently."""
        live = 0
        with suppress(OSError):  # the scan of the run reports it
            for rank, inode in sorted(_ring_files(directory).items())[:RANKS_PER_NODE_MAX]:
                key = _key(ring_path(directory, rank), inode)
                with self.isolation.guard(_RING, key, self._now_s), suppress(MalformedError, OSError):
                    ring = _open_ring(directory, rank, owner_uid)
                    with closing(ring):
                        live += abs(now_ns - ring.heartbeat_ns()) <= _FRESH_NS
        return live

    def _scan_run(self, run: RunState, owner_uid: int) -> None:
        present = self._present(run, owner_uid)
        followed = dict(sorted(present.items())[:RANKS_PER_NODE_MAX])
        run.omitted = len(present) - len(followed)
        run.refused = {rank: inode for rank, inode in run.refused.items() if followed.get(rank) == inode}
        for rank_state in run.ranks.values():
            if rank_state.ring is not None and followed.get(rank_state.rank) != rank_state.ring.inode:
                self._detach(run, rank_state)
        for rank, inode in followed.items():
            known = run.ranks.get(rank)
            if known is None or known.ring is None:
                key = _key(ring_path(run.directory, rank), inode)
                if self.isolation.admits(_RING, key, self._now_s):
                    with self.isolation.guard(_RING, key, self._now_s):
                        self._attach(run, rank, inode, owner_uid)
        keys = (_key(ring_path(run.directory, rank), inode) for rank, inode in followed.items())
        run.quarantined = sum(self.isolation.is_quarantined(_RING, key, self._now_s) for key in keys)
        if len(run.ranks) > _RANK_STATES_MAX:
            run.forget_departed()
            run.revision += 1
        _mark_superseded(run)

    def _present(self, run: RunState, owner_uid: int) -> dict[int, int]:
        """Return rank -> inode of the run's rings; a run that stays without rings keeps other users off its name."""
        try:
            found = _ring_files(run.directory)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._directories.refuse(run.directory, error)
            return {}
        was_empty, run.is_empty = run.is_empty, not found and not run.ranks
        if was_empty and run.is_empty:
            got = f"none of its owner, uid {owner_uid}"
            expected = "one, or no directory: the agents of other users cannot use this run name"
            self._directories.refuse(
                run.directory, MalformedError("ring", where=str(run.directory), got=got, expected=expected)
            )
        return found

    def _attach(self, run: RunState, rank: int, inode: int, owner_uid: int) -> None:
        try:
            ring = _open_ring(run.directory, rank, owner_uid)
        except FileNotFoundError:
            return
        except (MalformedError, OSError) as error:
            self._refuse(run, rank, inode, error)
            return
        rank_state = run.ranks.setdefault(rank, RankState(ring.header, ring, AttemptSteps(ring.header.block_count)))
        if rank_state.header.attempt != ring.header.attempt:
            rank_state.failures_read = 0
        rank_state.header, rank_state.ring, rank_state.state, rank_state.groups = ring.header, ring, RUNNING, ()
        rank_state.facts, rank_state.slots, rank_state.ending = None, (), None
        rank_state.is_superseded, rank_state.alive_ns = False, 0
        rank_state.totals.begin_attempt()
        run.revision += 1
        self._resume(run, rank_state, ring)

    def _resume(self, run: RunState, rank_state: RankState, ring: RingFile) -> None:
        """Continue where reading stopped: in an earlier file of this attempt, or in an earlier process.

        The rank's progress is that last step until the next one.
        """
        offset = rank_state.left_at or self._offsets.get(run.name, {}).get(rank_state.rank)
        if offset is not None and offset.attempt != ring.header.attempt:
            offset = None
        rank_state.steps = AttemptSteps(ring.header.block_count, offset)
        if offset is not None:
            ring.answer_generation = offset.answer_generation
        if rank_state.steps.last_step is not None and rank_state.steps.last_end_ns is not None:
            rank_state.totals.last_step = rank_state.steps.last_step
            rank_state.totals.last_end_ns = rank_state.steps.last_end_ns + ring.header.clock_offset_ns

    def _detach(self, run: RunState, rank_state: RankState) -> None:
        """Read a ring that lost its name to its end, as far as its content is plausible for training, and close it."""
        if rank_state.ring is None:
            return
        rings = [(run, rank_state, rank_state.ring)]
        self._late += self._read_rings(rings, rank_state.header.block_count, _RECORDS_AT_END)
        self._counts.lost_blocks[TORN] += rank_state.steps.drop_pending()
        key = _key(rank_state.ring.path, rank_state.ring.inode)
        self.isolation.forget(_RING, key)
        self._states.forget(key)
        rank_state.left_at = rank_state.offset(rank_state.ring)
        rank_state.ring.close()
        rank_state.ring = None
        run.revision += 1

    def _read_rings(
        self, rings: list[tuple[RunState, RankState, RingFile]], blocks: int, records_max: int
    ) -> list[RingReading]:
        """Return what is new of rings, whose records are built together."""
        taken = [each for ring in rings if (each := self._take_ring(*ring, blocks, records_max)) is not None]
        built: list[BuiltStep] | None = None
        are_possible = False
        with self.isolation.guard(_RING, "(records of all)", self._now_s):
            built = built_steps([step for each in taken for step in each.steps.ended])
            are_possible = bool(possible(to_records([step.record for step in built])).all())
        readings: list[RingReading] = []
        first = 0
        for each in taken:
            end = first + len(each.steps.ended)
            own = None if built is None else built[first:end]
            is_last = records_max == _RECORDS_AT_END
            readings += self._end_reading(each, own, are_possible=are_possible, is_last=is_last)
            first = end
        for run in {id(reading.run): reading.run for reading in readings}.values():
            records = np.concatenate([reading.records for reading in readings if reading.run is run])
            if len(records):
                run.histogram.add(records)
                run.flagged.add(records)
        return readings

    def _take_ring(
        self, run: RunState, rank_state: RankState, ring: RingFile, blocks: int, records_max: int
    ) -> _TakenRing | None:
        """Read what is new of a ring, without records."""
        key = _key(ring.path, ring.inode)
        if self.isolation.admits(_RING, key, self._now_s):
            with self.isolation.guard(_RING, key, self._now_s):
                try:
                    result, state = self._states.read(key, rank_state, ring, self._now_s)
                    return _TakenRing(
                        run, rank_state, key, result, state, rank_state.steps.take(ring.blocks, blocks, records_max)
                    )
                except (MalformedError, OSError) as error:
                    self._refuse(run, rank_state.rank, ring.inode, error)
        return None

    def _end_reading(
        self, taken: _TakenRing, built: list[BuiltStep] | None, *, are_possible: bool, is_last: bool
    ) -> list[RingReading]:
        """Return what is new of a ring; steps whose records could not be added are counted as lost.

        `built` is None if building the records of all rings failed: then those of this ring alone may succeed.
        `are_possible` is whether all records are known to be.
        """
        run, rank_state, key, result, state, steps = taken
        with self.isolation.guard(_RING, key, self._now_s):
            rank_state.steps.build(steps, built_steps(steps.ended) if built is None else built)
            lost = self._count_losses(steps)
            self._apply_result(run, rank_state, result)  # before the records: the device's peak comes from its facts
            records = self._count_records(run, rank_state, steps.records, are_possible=are_possible)
            state = _as_read(state, rank_state, is_last=is_last)
            if state != (rank_state.state, rank_state.ending):
                rank_state.state, rank_state.ending = state
                run.revision += 1
            is_new = len(records) or result.answer is not None or lost
            return [RingReading(run, rank_state.rank, records, result.answer, lost)] if is_new else []
        count = len(steps.ended)
        self._counts.lost[TORN] += count
        return [RingReading(run, rank_state.rank, NO_RECORDS, None, {TORN: count})] if count else []

    def _apply_result(self, run: RunState, rank_state: RankState, result: ReadResult) -> None:
        rank_state.heartbeat_ns = result.heartbeat_ns
        rank_state.note_failures(result.failures)
        for error in result.errors:
            self._counts.reject("answer", error)
        if result.facts is None and result.groups is None:
            return
        where = str(ring_path(run.directory, rank_state.rank))
        try:
            if result.facts is not None:
                rank_state.facts = facts_from_json(result.facts, where=where)
                run.revision += 1
        except MalformedError as error:
            self._counts.reject("ring", error)
        try:
            if result.groups is not None:
                world_size = rank_state.header.world_size
                groups = parse_groups(result.groups, where=where, world_size=world_size)
                rank_state.slots = parse_slots(result.groups, groups, where=where, world_size=world_size)
                rank_state.groups = groups
                run.revision += 1
        except MalformedError as error:
            self._counts.reject("ring", error)

    def _count_losses(self, steps: StepsRead) -> dict[str, int]:
        """Count what could not be used of a ring; return the lost steps by reason."""
        counts = self._counts
        counts.malformed_marks += steps.malformed_marks
        counts.incomplete_steps += steps.incomplete
        for reason, blocks in steps.lost_blocks.items():
            counts.lost_blocks[reason] += blocks
        lost = {reason: count for reason, count in steps.lost_steps.items() if count}
        for reason, count in lost.items():
            counts.lost[reason] += count
        return lost

    def _count_records(self, run: RunState, rank_state: RankState, records: Records, *, are_possible: bool) -> Records:
        """Add the records to the rank's totals, and return them with wall-clock times, without impossible ones."""
        if not len(records):
            return records
        if not are_possible and not (good := possible(records)).all():
            where = str(ring_path(run.directory, rank_state.rank))
            bad = records[np.argmin(good)]
            expected = "an interval and no negative figure"
            self._counts.reject("ring", MalformedError("record", where=where, got=bad.tolist()[:8], expected=expected))
            records = records[good]
            if not len(records):
                return records
        peak = None if rank_state.facts is None else rank_state.facts.peak_flops_per_second
        rank_state.totals.add(records, rank_state.header.clock_offset_ns, peak)
        records = records.copy()
        records[:, _TIMES] += rank_state.header.clock_offset_ns
        return records

    def _refuse(self, run: RunState, rank: int, inode: int, error: MalformedError | OSError) -> None:
        if run.refused.get(rank) != inode:
            run.refused[rank] = inode
            self._counts.rejected["ring"] += 1
            where = str(ring_path(run.directory, rank))
            self._limit.warning(where, self._now_s, f"ring refused: {error}")


def _key(path: Path, inode: int) -> str:
    return f"{path} inode {inode}"


def _as_read(state: State, rank_state: RankState, *, is_last: bool) -> State:
    """Return a rank's state given the last step in its ring; it has not ended until that step is read.

    `is_last`: nothing more of the ring will be read. `rank_state` has all that was read.
    """
    name, ending = state
    if name in ENDED and not rank_state.steps.is_drained and not is_last:
        return rank_state.state, rank_state.ending
    return name, None if ending is None else replace(ending, last_step=rank_state.totals.last_step)


def _mark_superseded(run: RunState) -> None:
    """Find the ended ranks whose place, the same local rank of the same host, was taken by another rank.

    An elastic restart moves ranks to other nodes; the old rings stay, and look like ranks that hang.
    """
    youngest: dict[tuple[str, int], int] = {}
    for rank_state in run.ranks.values():
        place = rank_state.header.hostname, rank_state.header.local_rank
        youngest[place] = max(youngest.get(place, 0), rank_state.header.attempt)
    for rank_state in run.ranks.values():
        is_older = rank_state.header.attempt < youngest[rank_state.header.hostname, rank_state.header.local_rank]
        if is_older and not rank_state.is_superseded and _has_ended(rank_state):
            rank_state.is_superseded = True
            run.revision += 1


def _has_ended(rank_state: RankState) -> bool:
    """Whether the rank's process is certainly gone."""
    try:
        return rank_state.ring is None or rank_state.ring.holder().is_gone
    except (MalformedError, OSError):  # the reader of records counts it
        return False


def _ring_files(directory: Path) -> dict[int, int]:
    """Return rank -> inode of the directory's rings."""
    found: dict[int, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            rank = rank_of_ring(entry.name)
            if rank is not None:
                with suppress(FileNotFoundError):  # it was removed in between
                    found[rank] = entry.stat(follow_symlinks=False).st_ino
    return found


def _open_ring(directory: Path, rank: int, owner_uid: int) -> RingFile:
    """Open a ring and check that it belongs to the run's owner."""
    ring = RingFile(ring_path(directory, rank), rank)
    if ring.owner_uid != owner_uid:
        ring.close()
        got, expected = f"uid {ring.owner_uid}", f"uid {owner_uid}, whose run it is"
        raise MalformedError("owner of the ring", where=str(ring.path), got=got, expected=expected)
    return ring
