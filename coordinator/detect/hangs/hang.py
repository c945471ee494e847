# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which ranks have not arrived in a run that makes no steps, and in which domain.

Pure: progress in, verdict out. The state machine decides whether a run hangs at all, and since when. Rules, in order:

0. Ranks whose process is gone never arrive. A job with no process left does not hang: it has ended abnormally.
1. Ranks that others wait for and that wait for no one (`waiting_ranks.py`) have not arrived.
2. Ranks wait, and all known ranks have arrived: a rank of which nothing is known has not.
3. Ranks wait for each other in a cycle. Those that continued after their last issue have not arrived (receives are
   often posted long before they are waited for); if there are none, collectives were issued in different orders.
4. All members of a group have issued the same, and nothing since: the collective itself hangs.
5. No rank is in a collective: all ranks are stuck in work of their own.

Without progress (a step log, agents without collectives) the last steps show which ranks are behind. A lost record
looks the same, so the confidence depends on how records get lost (`decide/losses.py`). If all ranks have ended the same
step, a hang, a killed job and a long pause look alike, and nothing is reported.

Shapes: W ranks of the world, indexed by rank; E as in `waiting_ranks.py`.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.anomalies import LINK, UNKNOWN
from coordinator.detect.hangs.waiting_ranks import Progress, Waiting, find_waiting
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lockstep.contracts.domains import Domain, Topology

_PAUSES = Flag.CHECKPOINT | Flag.EVALUATION
_LAG_MAX_STEPS = 8  # devices end steps up to this many later than hosts; a rank further behind was already gone
_NAMED_MAX = 3  # ranks listed individually


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Verdict on a stall. `scope` is rank (the `ranks` have not arrived), group or job (no rank is named).

    `domain` is the (kind, name) in which ranks wait. `is_pause`: the ranks themselves flag that they save or evaluate.
    `is_measured`: the verdict rests on issued operations; otherwise on missing records, of which `numbers` holds the
    count `lacking_records`, the first of them of `onset_step`. `behind_host_steps` is the least number of steps by
    which such a rank is behind another rank of its host: one lost batch also explains what all ranks of a host lack.
    """

    cause: str
    scope: str
    ranks: tuple[int, ...]
    domain: tuple[str, str] | None
    evidence: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)
    is_pause: bool = False
    is_measured: bool = True
    behind_host_steps: int = 0
    onset_step: int | None = None


def who_is_late(progress: Progress | None, topology: "Topology", last_step_W: "NDArray[np.int64]") -> Hang | None:
    """Return the verdict, None if there is none; `last_step_W` holds each rank's last recorded step, -1 for none."""
    if progress is not None and progress.gone.any():
        return _gone(progress)
    if progress is None or not len(progress.issues):
        return _by_steps(topology, last_step_W)
    waiting = find_waiting(progress, topology.world_size)
    blind = _waited_for_unseen(progress, waiting)
    late_W = waiting.late
    late_W[blind.excused] = False
    if late_W.any():
        return _late(progress, topology, waiting, np.flatnonzero(late_W))
    if len(blind.ranks):
        return _unseen(progress, topology, blind)
    if waiting.behind.any():
        went_on = np.flatnonzero(waiting.behind & (waiting.inside < 0))
        return _late(progress, topology, waiting, went_on) if len(went_on) else _cycle(progress, topology, waiting)
    return _all_arrived(progress, topology, waiting)


@dataclass(frozen=True, slots=True)
class _UnknownRanks:
    """Ranks without any report, the domain in which others may wait for them, and the ranks that may wait."""

    ranks: "NDArray[np.int64]"
    domain: int
    excused: "NDArray[np.int64]"


def _waited_for_unseen(progress: Progress, waiting: Waiting) -> _UnknownRanks:
    """Find members without counts in domains in which a rank waits, if it waits for no known rank."""
    found: dict[int, NDArray[np.int64]] = {}
    free_W = (waiting.inside >= 0) & ~waiting.waits
    for domain in np.unique(waiting.inside[free_W]).tolist():
        members = np.array(progress.domains[domain].ranks, dtype=np.int64)
        members = members[members < len(waiting.known)]
        silent = members[~waiting.known[members]]
        if len(silent):
            found[domain] = silent
    excused = np.flatnonzero(free_W & np.isin(waiting.inside, list(found)))
    first = min(found, default=-1, key=lambda domain: len(progress.domains[domain].ranks))
    return _UnknownRanks(found.get(first, np.zeros(0, dtype=np.int64)), first, excused)


def _gone(progress: Progress) -> Hang | None:
    if (progress.gone | progress.ended).all():
        return None
    gone = np.sort(progress.rank[progress.gone])
    evidence = [f"the process of {_ranks(gone)} is gone, without a word that training is over; others wait for it"]
    for rank in gone[:_NAMED_MAX].tolist():
        evidence += _last_seen(progress, rank)
    return Hang(
        cause=UNKNOWN,
        scope="rank",
        ranks=tuple(gone.tolist()),
        domain=None,
        evidence=tuple(evidence),
        numbers={"late_ranks": float(len(gone))},
    )


def _late(progress: Progress, topology: "Topology", waiting: Waiting, late: "NDArray[np.int64]") -> Hang:
    entries = waiting.entries
    theirs = np.flatnonzero(np.isin(entries.rank, late))
    oldest = int(theirs[np.argmin(entries.since_unix_ns[theirs])])
    domain = progress.domains[int(entries.domain[oldest])]
    others = int(waiting.waits.sum())
    since = _time(int(entries.since_unix_ns[oldest]))
    evidence = [f"{others} ranks wait for {_ranks(late)}, the first of them since {since}"]
    for rank in late[:_NAMED_MAX].tolist():
        own = theirs[entries.rank[theirs] == rank]
        at = int(own[np.argmin(entries.since_unix_ns[own])])
        where = _label(progress.domains[int(entries.domain[at])], topology)
        issued, expected = int(entries.issued[at]), int(entries.expected[at])
        evidence += [f"rank {rank} has issued {issued} operations in {where}, others {expected}"]
        evidence += _last_seen(progress, rank)
    if len(late) > _NAMED_MAX:
        evidence.append(f"and {len(late) - _NAMED_MAX} more ranks")
    return Hang(
        cause=UNKNOWN,
        scope="rank",
        ranks=tuple(late.tolist()),
        domain=_domain(domain, topology),
        evidence=tuple(evidence),
        numbers={"late_ranks": float(len(late)), "waiting_ranks": float(others)},
        is_pause=_pauses(progress, late),
    )


def _unseen(progress: Progress, topology: "Topology", blind: _UnknownRanks) -> Hang:
    domain = progress.domains[blind.domain]
    return Hang(
        cause=UNKNOWN,
        scope="rank",
        ranks=tuple(blind.ranks.tolist()),
        domain=_domain(domain, topology),
        evidence=(
            f"all other ranks of {_label(domain, topology)} have arrived",
            f"nothing is known of {_ranks(blind.ranks)}: no agent records there, or the node is gone",
        ),
        numbers={"late_ranks": float(len(blind.ranks)), "waiting_ranks": float(len(blind.excused))},
        is_pause=_pauses(progress, progress.rank),
    )


def _cycle(progress: Progress, topology: "Topology", waiting: Waiting) -> Hang:
    entries = waiting.entries
    cycle = np.flatnonzero(waiting.behind & waiting.waits)
    names = sorted({_label(progress.domains[int(at)], topology) for at in np.unique(entries.domain)})
    oldest = int(np.argmin(entries.since_unix_ns))
    return Hang(
        cause=UNKNOWN,
        scope="group",
        ranks=tuple(cycle.tolist()),
        domain=_domain(progress.domains[int(entries.domain[oldest])], topology),
        evidence=(
            f"{_ranks(cycle)} wait for each other in a cycle: they issued collectives in different orders",
            f"domains: {', '.join(names[:_NAMED_MAX])}",
        ),
        numbers={"waiting_ranks": float(waiting.waits.sum())},
    )


def _all_arrived(progress: Progress, topology: "Topology", waiting: Waiting) -> Hang:
    """Distinguish a collective that hangs from ranks that are all stuck on their own; no rank is behind another."""
    inside = np.unique(waiting.inside[waiting.inside >= 0]).tolist()
    whole = [progress.domains[at] for at in inside if _is_whole(progress.domains[at], at, waiting)]
    is_pause = _pauses(progress, progress.rank)
    if not whole:
        evidence = "no rank waits for another one: all stand still outside of collectives, or in one that nothing names"
        return Hang(cause=UNKNOWN, scope="job", ranks=(), domain=None, evidence=(evidence,), is_pause=is_pause)
    is_one = len(whole) == 1
    where = _label(whole[0], topology) if is_one else f"{len(whole)} domains, {_label(whole[0], topology)} among them"
    return Hang(
        cause=LINK,
        scope="group" if is_one else "job",
        ranks=whole[0].ranks if is_one else (),
        domain=_domain(whole[0], topology) if is_one else None,
        evidence=(f"all ranks of {where} have issued the same operations, and the last one does not end",),
        numbers={"waiting_ranks": float((waiting.inside >= 0).sum())},
        is_pause=is_pause,
    )


def _is_whole(domain: "Domain", at: int, waiting: Waiting) -> bool:
    members = np.array(domain.ranks, dtype=np.int64)
    return bool(members[-1] < len(waiting.inside) and (waiting.inside[members] == at).all())


def _by_steps(topology: "Topology", last_step_W: "NDArray[np.int64]") -> Hang | None:
    highest = int(last_step_W.max(initial=-1))
    late_W = (last_step_W < highest) & (last_step_W >= max(0, highest - _LAG_MAX_STEPS))
    late = np.flatnonzero(late_W)
    if not 0 < 2 * len(late) <= int((last_step_W >= 0).sum()):  # one rank far ahead shows nothing
        return None
    # Ranks that went further and are still behind either wait for those that did not, or lost a record.
    late = late[last_step_W[late] == last_step_W[late].min()]
    # Name a domain only if it is the only candidate: all of it is late, or there is no other one.
    ranks = set(late.tolist())
    whole = [d for d in topology.domains if ranks == set(d.ranks) and len(ranks) > 1]
    around = whole or [d for d in topology.domains if ranks < set(d.ranks)]
    last = int(last_step_W[late[0]])
    return Hang(
        cause=UNKNOWN,
        scope="rank",
        ranks=tuple(late.tolist()),
        domain=(around[0].kind, around[0].name) if len(around) == 1 else None,
        evidence=(f"the last step of {_ranks(late)} is {last}, others have ended step {highest}",),
        numbers={
            "late_ranks": float(len(late)),
            "lacking_records": float(len(late) * (highest - last)),
        },
        is_measured=False,
        onset_step=last + 1,
    )


def _last_seen(progress: Progress, rank: int) -> list[str]:
    (at,) = np.flatnonzero(progress.rank == rank)[:1]
    if progress.ended[at]:
        return [f"rank {rank} has reported the end of its training"]
    step = int(progress.step[at])
    lines = [f"its last sign of life was at {_time(int(progress.sign_unix_ns[at]))}, its last step {step}"]
    pauses = [flag.name.lower() for flag in Flag if flag & _PAUSES & int(progress.flags[at]) and flag.name]
    return lines + [f"it is in a step with {', '.join(pauses)}"] * bool(pauses)


def _pauses(progress: Progress, ranks: "NDArray[np.int64]") -> bool:
    return bool((progress.flags[np.isin(progress.rank, ranks)] & _PAUSES).any())


def _domain(domain: "Domain", topology: "Topology") -> tuple[str, str]:
    """Return kind and name of an announced group as used in the rest of the coordinator."""
    known = [d for d in topology.domains if d.ranks == domain.ranks]
    same = [d for d in known if d.kind == domain.kind] or known or [domain]
    return same[0].kind, same[0].name


def _label(domain: "Domain", topology: "Topology") -> str:
    return "{} domain {}".format(*_domain(domain, topology))


def _ranks(ranks: "NDArray[np.int64]") -> str:
    more = f" and {len(ranks) - _NAMED_MAX} more" if len(ranks) > _NAMED_MAX else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:_NAMED_MAX].tolist())) + more


def _time(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%H:%M:%S} UTC"
