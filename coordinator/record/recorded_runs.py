"""Reads the runs of a recording or step log, with incidents and peaks of their devices. Blocking file I/O."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.record import steplog
from coordinator.record.backtest import RANKS_PER_NODE, backtest, topology_of, world_size_of
from coordinator.record.recording import parts_of, read_parts
from coordinator.record.replay import replay
from coordinator.settings.policy import Policy
from lockstep.contracts.domains import DEFAULT_ORDER
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.messages import NodeAnnouncement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.decide.incidents import Incident
    from coordinator.record.journal import Entry
    from coordinator.record.steplog import StepLog


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run: its rows, its incidents in order of opening, and the peak of each rank that announced one."""

    log: "StepLog"
    incidents: "tuple[Incident, ...]" = ()
    peak_flops_per_second: dict[int, float] = field(default_factory=dict)


def read_run_log(path: Path, run: str = "") -> "StepLog":
    """Return the rows of one run of a recording or step log; if `run` is empty, of its only one.

    Raises
    ------
    ConfigError
        The path does not exist, there is no run of that name, or no name is given and there are several runs.
    MalformedError
        The log cannot be read.
    """
    return _chosen(path, run)


def read_recorded_run(
    path: Path, run: str = "", *, degrees: str = "", order: str = DEFAULT_ORDER, ranks_per_node: int = RANKS_PER_NODE
) -> RecordedRun:
    """Return one run with its incidents: those reported in a recording, or those found by replaying a step log.

    `degrees` are those of a step log's job; a recording holds its own.

    Raises
    ------
    ConfigError
        As for `read_run_log`, or the degrees do not fit the log.
    MalformedError
        The log cannot be read.
    """
    log = _chosen(path, run)
    parts = parts_of(path)
    if parts:
        peaks: dict[int, float] = {}
        reported = replay(_noting_peaks(read_parts(parts), log.run, peaks))
        own = (incident for incident in reported.incidents.values() if incident.run == log.run)
        return RecordedRun(log, tuple(own), peaks)
    topology = topology_of(world_size_of(degrees, log), degrees, order=order)
    replayed = backtest(log, topology, Policy(), ranks_per_node=ranks_per_node)
    return RecordedRun(log, tuple(replayed.incidents.values()))


def _chosen(path: Path, run: str) -> "StepLog":
    if not path.exists():
        raise ConfigError(f"run {path}: got no such file or folder, expected a recording or step log")
    skipped: Counter[str] | None = Counter() if parts_of(path) else None  # a recording holds all input, valid or not
    logs = {log.run: log for log in steplog.read(path, skipped)}
    if run and run not in logs:
        raise ConfigError(f"--run: got {run!r:.200}, expected one of {', '.join(sorted(logs))}")
    if not run and len(logs) != 1:
        raise ConfigError(
            f"{path}: got {len(logs)} runs, expected --run with one of {', '.join(sorted(logs)) or 'none'}"
        )
    return logs[run] if run else next(iter(logs.values()))


def _noting_peaks(entries: "Iterator[Entry]", run: str, peaks: dict[int, float]) -> "Iterator[Entry]":
    for entry in entries:
        what = entry.what
        if isinstance(what, NodeAnnouncement) and what.run == run:
            for info in what.ranks:
                if info.facts is not None and info.facts.peak_flops_per_second:
                    peaks[info.rank] = info.facts.peak_flops_per_second
        yield entry
