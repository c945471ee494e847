"""What a chaos run has shown, and what must hold. Pure: figures in, lines out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos.world import RANKS, RUN
from benchmarks.checks import Check, equal
from benchmarks.services import Stored

RECOVERY_S_MAX = 90.0
"""Back-off from a broker that was away for long, and its jitter, are up to 30 s of it."""

PARTLY_JUDGED_MAX = RANKS * 3
"""Records of a message of each node: a batch interval holds two steps, or three."""

EXPORTER_FAULTS = ("exporter killed", "every exporter killed", "broker and exporter killed")
"""Faults that kill an exporter, perhaps between its two writes: of a message, and of how far rings were read."""


@dataclass(slots=True)
class Line:
    """All faults of one name; records and messages are sums over both coordinators."""

    times: int = 0
    recovery_s: float = 0.0
    resent: int = 0
    lost: int = 0
    twice: int = 0


@dataclass(slots=True, kw_only=True)
class Ended:
    """What is there when all is over: records by rank, stores by coordinator, and what was seen on the way."""

    heads: Mapping[int, int]
    stored: Mapping[str, Stored]
    slow_rank: int
    orders: Sequence[Mapping[str, object]] = ()
    falls: Sequence[str] = ()
    is_quiet: bool = True
    lines: dict[str, Line] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Records that the ranks have written."""
        return sum(self.heads.values())

    @property
    def repeated_max(self) -> int:
        """Records that killed exporters may have read again: a message of each node, each time."""
        return PARTLY_JUDGED_MAX * sum(self.lines[name].times for name in EXPORTER_FAULTS if name in self.lines)


def table(lines: Mapping[str, Line]) -> str:
    """Return the table by fault."""
    head = f"{'fault':<34} {'times':>6} {'longest recovery s':>19} {'messages resent':>16} {'lost':>6} {'twice':>6}"
    rows = [
        f"{name:<34} {line.times:>6} {line.recovery_s:>19.1f} {line.resent:>16,} {line.lost:>6} {line.twice:>6}"
        for name, line in lines.items()
    ]
    return "\n".join([head, *rows])


def common_checks(ended: Ended) -> list[Check]:
    """Return what holds whatever was lost: every record is evaluated or counted, and the stores are whole."""
    heads = set(ended.heads.values())
    checks = [Check("records written by each rank", str(sorted(heads)), "one figure", len(heads) == 1)]
    for name, stored in ended.stored.items():
        accounted = stored.settled + sum(stored.lost.values())
        checks += [
            _settled(f"{name}: settled + counted lost", accounted, ended),
            equal(f"{name}: PRAGMA integrity_check", stored.integrity, "ok"),
        ]
    falls = "; ".join(ended.falls[:3]) or "none"
    return [
        *checks,
        Check("all spools empty, nothing unsettled", "yes" if ended.is_quiet else "no", "yes", ended.is_quiet),
        Check("counters that fell", falls, "none", not ended.falls),
    ]


def lossless_checks(ended: Ended) -> list[Check]:
    """Return what also holds where no spool was full."""
    checks: list[Check] = []
    for name, stored in ended.stored.items():
        checks += [
            equal(f"{name}: records evaluated", stored.evaluated.get(RUN, 0), ended.records),
            _settled(f"{name}: records settled (ledger)", stored.settled, ended),
            Check(f"{name}: records lost (ledger)", str(stored.lost or "none"), "none", not stored.lost),
        ]
    slowest = max((line.recovery_s for line in ended.lines.values()), default=0.0)
    return [
        *checks,
        *_incident_checks(ended),
        Check("longest recovery", f"{slowest:.1f} s", f"<= {RECOVERY_S_MAX:g} s", slowest <= RECOVERY_S_MAX),
    ]


def _settled(name: str, count: int, ended: Ended) -> Check:
    """Check a count of settled records. One that came twice is settled twice: evaluated, then rejected."""
    most = ended.records + ended.repeated_max
    target = f"{ended.records:,}" + (f" to {most:,}" if most > ended.records else "")
    return Check(name, f"{count:,}", target, ended.records <= count <= most)


def lossy_checks(ended: Ended) -> list[Check]:
    """Return what also holds where spools were full: what was dropped is counted so, and nothing else is.

    A message of which one step was evaluated and another one waits is not committed. Where its coordinator is killed
    then and it is dropped before it comes again, it is counted lost as a whole: so much more may be evaluated than
    settled.
    """
    checks: list[Check] = []
    for name, stored in ended.stored.items():
        lost, beyond = stored.lost.get("spool", 0), stored.evaluated.get(RUN, 0) - stored.settled
        others = {reason: count for reason, count in stored.lost.items() if reason != "spool"}
        checks += [
            Check(
                f"{name}: records evaluated beyond those settled",
                str(beyond),
                f"0 to {PARTLY_JUDGED_MAX}",
                0 <= beyond <= PARTLY_JUDGED_MAX,
            ),
            Check(f"{name}: records lost from full spools", f"{lost:,}", "> 0", lost > 0),
            Check(f"{name}: records lost otherwise", str(others or "none"), "none", not others),
        ]
    return checks


def _incident_checks(ended: Ended) -> list[Check]:
    """Check that there is one incident, the same everywhere, and one capture of it."""
    known = {name: sorted(stored.incidents) for name, stored in ended.stored.items()}
    ids = {tuple(each) for each in known.values()}
    every = {
        name: f"{incident['kind']} of ranks {incident['ranks']}, step {incident['detected_step']}"
        for stored in ended.stored.values()
        for name, incident in stored.incidents.items()
    }
    is_one = len(ids) == 1 and all(len(each) == 1 for each in known.values())
    names = [incident.get("ranks") for stored in ended.stored.values() for incident in stored.incidents.values()]
    requests = {order["request_id"] for order in ended.orders}
    return [
        Check("incidents: the same one in each store", "; ".join(every.values()) or "none", "one", is_one),
        Check(
            "ranks that it names",
            str(sorted({str(each) for each in names})),
            f"[{ended.slow_rank}]",
            all(each == [ended.slow_rank] for each in names),
        ),
        equal("capture orders that reached ranks, by request", len(requests), 1),
    ]
