"""Creates the incident of a rank whose crash ended the run. Pure."""

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from coordinator.decide.incidents import Incident
from coordinator.detect.anomalies import CRASH, PROCESS

if TYPE_CHECKING:
    from coordinator.decide.endings import Crash

_NS = 1e-9


def make_incident_id(run: str, subject: tuple[object, ...], unix_s: float) -> str:
    """Return an incident id that depends only on the subject and the time of measurement (`unix_s`, ranks' clocks).

    Both coordinators of a pair, and one that was restarted, give the same incident the same id.
    """
    digest = hashlib.blake2b(repr(subject).encode(), digest_size=4).hexdigest()
    return f"{run}-{int(unix_s)}-{digest}"


def crash_incident(run: str, crash: "Crash", hostname: str, ended_ranks: int, now_s: float) -> Incident:
    """Return the incident of a crash; `hostname` is empty if unknown, `ended_ranks` counts all ranks that ended.

    Its onset is the step that the rank was in: the one after the last step in its ring.
    """
    ending, rank = crash.ending, crash.rank
    step = None if ending.last_step is None else ending.last_step + 1
    return Incident(
        id=make_incident_id(run, (CRASH, rank), ending.unix_ns * _NS),
        run=run,
        kind=CRASH,
        cause=PROCESS,
        scope="rank",
        ranks=(rank,),
        domain=None,
        onset_step=step,
        detected_step=step,
        opened_unix_ns=int(now_s * 1e9),
        slowdown_ratio=0.0,
        excess_seconds=0.0,
        evidence=_evidence(crash, hostname, ended_ranks),
        numbers={},
        root_cause=crash.what,
        function=ending.frame,
        diagnosed=True,
    )


def _evidence(crash: "Crash", hostname: str, ended_ranks: int) -> tuple[str, ...]:
    ending = crash.ending
    ended_at = f"{datetime.fromtimestamp(ending.unix_ns * _NS, UTC):%H:%M:%S} UTC"
    where = f" on host {hostname}" if hostname else ""
    lines = [f"rank {crash.rank}{where} ended first, at {ended_at}: {crash.what}"]
    if ending.frame:
        lines.append(f"it was in {ending.frame}")
    others = ended_ranks - 1
    if others > 0:
        lines.append(f"{others} other rank{'' if others == 1 else 's'} ended after it")
    return tuple(lines)
