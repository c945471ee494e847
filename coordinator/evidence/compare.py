"""Compares suspects with their peers, and values after the onset with those before, to find evidence. Pure.

Peers are the control: what all machines show is not a cause. A value counts if it deviates from the median of the peers
and from the suspect's own earlier value, by more than the query's thresholds and the scatter of the peers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from coordinator.decide.machine_evidence import MachineDeviation
from coordinator.evidence.catalogue import ABOVE, BELOW, CODE, EvidenceCatalogue, EvidenceQuery
from coordinator.evidence.machines import Machine
from lockstep.html.units import counted, format_ranks, format_rate

Values = Mapping[Machine, float]
_SCATTER = 3 * 1.4826  # three standard deviations of a normal distribution, from the median absolute deviation
_HOSTS_NAMED = 4
DEVIATIONS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryValues:
    """The values of a query for each machine, before and after the onset.

    `part` is the text of the query's `by` labels.
    """

    query: EvidenceQuery
    before: Values
    after: Values
    part: str = ""

    @property
    def meaning(self) -> str:
        """What the series measures, including the part."""
        return f"{self.query.meaning} ({self.part})" if self.part else self.query.meaning


@dataclass(frozen=True, slots=True)
class _MachineMatch:
    """A cause that one machine shows in one query."""

    values: QueryValues
    machine: Machine
    cause: str
    meaning: str


def find_evidence(
    catalogue: EvidenceCatalogue, read: Sequence[QueryValues], links: Mapping[str, str]
) -> tuple[MachineDeviation, ...]:
    """Return the deviations of all queries, the most specific cause first.

    `links` are the URLs of graphs by query name.
    """
    shown = [each for values in read for each in _shown_by(values)]
    causes_of_rank: dict[int, set[str]] = {}
    for each in shown:
        if not each.values.query.requires:
            for rank in each.machine.ranks:
                causes_of_rank.setdefault(rank, set()).add(each.cause)
    shown = [each for each in shown if _is_borne_out(each, causes_of_rank)]
    for each in shown:
        for rank in each.machine.ranks:
            causes_of_rank.setdefault(rank, set()).add(each.cause)
    grouped: dict[tuple[str, str, str], list[_MachineMatch]] = {}
    for each in shown:
        explained_by = catalogue.causes[each.cause].explained_by
        if not all(causes_of_rank[rank] & set(explained_by) for rank in each.machine.ranks):
            grouped.setdefault((each.values.query.name, each.cause, each.meaning), []).append(each)
    order = list(catalogue.causes)
    found = [_deviation(catalogue, own, links.get(name, "")) for (name, _, _), own in grouped.items()]
    return tuple(sorted(found, key=lambda deviation: order.index(deviation.cause)))[:DEVIATIONS_MAX]


def _is_borne_out(each: _MachineMatch, causes_of_rank: Mapping[int, set[str]]) -> bool:
    requires = each.values.query.requires
    return not requires or all(requires in causes_of_rank.get(rank, ()) for rank in each.machine.ranks)


def _shown_by(values: QueryValues) -> list[_MachineMatch]:
    query = values.query
    peers = [machine for machine in values.after if not machine.is_suspect]
    suspects = [machine for machine in values.after if machine.is_suspect]
    if not peers:
        return []
    if query.compare == CODE:
        return [each for machine in suspects if (each := _code_shown(values, machine, peers)) is not None]
    control = [values.after[peer] for peer in peers]
    return [
        _MachineMatch(values, machine, query.cause, values.meaning)
        for machine in suspects
        if _is_beyond(query, values.after[machine], control, values.before.get(machine))
    ]


def _is_beyond(query: EvidenceQuery, value: float, peers: list[float], before: float | None) -> bool:
    """Whether a value deviates from its controls in the query's direction, and exceeds the limit if there is one."""
    sign = 1.0 if query.compare == ABOVE else -1.0
    if query.limit is not None and sign * value < sign * query.limit:
        return False
    usual = median(peers)
    scatter = _SCATTER * median(abs(each - usual) for each in peers)
    if sign * (value - usual) < max(_least(query, usual), scatter):
        return False
    return before is None or sign * (value - before) >= _least(query, before)


def _least(query: EvidenceQuery, control: float) -> float:
    assert query.compare in (ABOVE, BELOW)
    return max(query.min_difference, query.min_ratio * abs(control))


def _code_shown(values: QueryValues, machine: Machine, peers: list[Machine]) -> _MachineMatch | None:
    """Return the cause of a suspect's new code; None if it has none, or if half of the peers have the same new code."""
    number = values.after[machine]
    if number == 0 or number == values.before.get(machine):
        return None
    alike = sum(values.after[peer] == number != values.before.get(peer) for peer in peers)
    if 2 * alike >= len(peers):
        return None
    query = values.query
    code = query.codes.get(int(number))
    cause, meaning = (code.cause, code.meaning) if code else (query.cause, f"{values.meaning}: {number:.0f}")
    return _MachineMatch(values, machine, cause, meaning)


def _deviation(catalogue: EvidenceCatalogue, shown: list[_MachineMatch], link: str) -> MachineDeviation:
    values, query = shown[0].values, shown[0].values.query
    machines = [each.machine for each in shown]
    peers = [machine for machine in values.after if not machine.is_suspect]
    own_after, peers_after = _median(values.after, machines), _median(values.after, peers)
    assert own_after is not None  # a machine that shows a cause has a value
    assert peers_after is not None  # and was compared with values of peers
    own = _median(values.before, machines), own_after
    others = _median(values.before, peers), peers_after
    cause = catalogue.causes[shown[0].cause]
    return MachineDeviation(
        name=query.name,
        cause=shown[0].cause,
        title=cause.title,
        ranks=tuple(sorted({rank for machine in machines for rank in machine.ranks})),
        unit=query.unit,
        suspects_before=own[0],
        suspects_after=own[1],
        peers_before=others[0],
        peers_after=others[1],
        text=f"{shown[0].meaning}: {_who(machines)}: {_figure(own[0], query.unit)} before the onset, "
        f"{_figure(own[1], query.unit)} since; {counted(len(peers), 'peer')}: {_figure(others[0], query.unit)} and "
        f"{_figure(others[1], query.unit)}",
        meaning=shown[0].meaning,
        advice=cause.advice,
        source=catalogue.sources[query.source].title,
        link=link,
    )


def _median(values: Values, machines: Sequence[Machine]) -> float | None:
    known = [values[machine] for machine in machines if machine in values]
    return median(known) if known else None


def _who(machines: Sequence[Machine]) -> str:
    ranks = sorted({rank for machine in machines for rank in machine.ranks})
    hosts = sorted({min(machine.hosts) for machine in machines if machine.hosts})
    more = " and others" if len(hosts) > _HOSTS_NAMED else ""
    on = f" on {', '.join(hosts[:_HOSTS_NAMED])}{more}" if hosts else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks)}{on}"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "no value"
    if unit == "ratio":
        return f"{value:.0%}"
    if unit == "bytes/s":
        return format_rate(value, "B/s")
    number = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # noqa: PLR2004  (five digits)
    return f"{number}{'' if unit.startswith(('/', '°')) else ' '}{unit}"
