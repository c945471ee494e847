"""What the coordinator reports of a rank that ended its run. Pure."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from coordinator.detect.findings import CRASH, PROCESS, RunFinding

if TYPE_CHECKING:
    from coordinator.decide.endings import Crash


def crash_finding(crash: "Crash", hostname: str, ended_ranks: int, step: int) -> RunFinding:
    """Return the finding of a crash after `step`; `hostname` is empty where unknown, `ended_ranks` counts all."""
    ending = crash.ending
    ended_at = f"{datetime.fromtimestamp(ending.unix_ns * 1e-9, UTC):%H:%M:%S} UTC"
    where = f" on host {hostname}" if hostname else ""
    evidence = [f"rank {crash.rank}{where} ended first, at {ended_at}: {crash.what}"]
    if ending.frame:
        evidence.append(f"it was in {ending.frame}")
    if ended_ranks > 1:
        evidence.append(f"{ended_ranks - 1} other ranks ended after it")
    return RunFinding(
        kind=CRASH,
        cause=PROCESS,
        scope="rank",
        ranks=(crash.rank,),
        domain=None,
        onset_step=step,
        excess_ratio=0.0,
        excess_seconds=0.0,
        evidence=tuple(evidence),
    )
