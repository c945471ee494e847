"""Joins series to machines: builds label matchers, and assigns the resulting series. Pure.

Series are joined by device UUID if the rank's agent announced one; otherwise by host and local rank, otherwise by pod.
Names come from the bus and labels from other exporters, so neither is trusted: only plain names are queried, and a
series whose labels contradict each other is not joined.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from coordinator.evidence.catalogue import HOST, RANK, EvidenceSource
from coordinator.evidence.machines import Machine
from coordinator.evidence.prometheus import InstantSeries
from lockstep.contracts.metric import EVIDENCE_REFUSALS
from lockstep.contracts.paths import is_name

AMBIGUOUS, FOREIGN, INVALID = EVIDENCE_REFUSALS
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_INSTANCE = re.compile(r"[A-Za-z0-9._:/\[\]-]{1,300}")
_PORT = re.compile(r":[0-9]{1,5}$")
PARTS_MAX = 32
"""Limit of distinct `by` values of a query; a rank has 16 of communicator and operation
(`inspector_metrics.PLACES_MAX`)."""
_VALUE_MAX = 128
_IP = re.compile(r"[0-9.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """One way to join series: matchers for `$targets`, and the function from labels to a machine, if any.

    `identity` names the labels in which all series of one machine must agree.
    """

    matchers: str
    machines: tuple[Machine, ...]
    machine_of: Callable[[Mapping[str, str]], Machine | None]
    identity: tuple[str, ...]


def joins_of(
    source: EvidenceSource, machines: Sequence[Machine], instances: Mapping[Machine, str] | None = None
) -> list[Join]:
    """Return the joins for the scope of a source. `instances` are the resolved values of its host label."""
    if source.scope == RANK:
        return _by_rank(machines)
    identity = tuple(filter(None, (source.uuid, source.host, source.index)))
    if source.scope == HOST:
        found = instances or {}
        machine_by_instance = {instance: machine for machine, instance in found.items()}
        values = [_quoted(instance) for instance in found.values() if _INSTANCE.fullmatch(instance)]
        if not values:
            return []
        return [
            Join(
                matchers=f'{source.host}=~"{"|".join(values)}"',
                machines=tuple(found),
                machine_of=lambda labels: machine_by_instance.get(labels.get(source.host, "")),
                identity=(source.host,),
            )
        ]
    with_uuid = [machine for machine in machines if source.uuid and _NAME.fullmatch(machine.uuid)]
    others = [machine for machine in machines if machine not in with_uuid]
    made = [
        _by_uuid(source, with_uuid, identity) if with_uuid else None,
        _by_host(source, others, identity),
        _by_pod(source, others, identity) if source.pod else None,
    ]
    return [join for join in made if join is not None]


def host_matchers(label: str, machines: Iterable[Machine]) -> str:
    """Return a matcher for series whose `label` names one of the hosts, with or without domain and port."""
    names = {name for machine in machines for name in machine.hosts if _NAME.fullmatch(name)}
    both = sorted({_quoted(form) for name in names for form in (name, _short(name))})
    return f'{label}=~"({"|".join(both)})([.:].*)?"' if both else ""


def match_host(value: str, machines: Iterable[Machine]) -> Machine | None:
    """Return the machine that a host label names; None if there is no such machine, or more than one."""
    bare = _PORT.sub("", value)
    found = [machine for machine in machines if any(_is_same_host(bare, name) for name in machine.hosts)]
    return found[0] if len(found) == 1 else None


def _is_same_host(one: str, other: str) -> bool:
    """Whether two names denote the same host: they are equal, or one is the other without its domain."""
    return one == other or (_short(one) == _short(other) and _short(one) in (one, other))


def _short(name: str) -> str:
    return name if _IP.fullmatch(name) else name.partition(".")[0]


def split_by(
    labels: Sequence[str], series: Iterable[InstantSeries], refused: Counter[str]
) -> dict[str, list[InstantSeries]]:
    """Group series by the values of some of their labels, as text; without labels they form one group.

    Label values are untrusted: values that are not one printable line are refused, and so are more than `PARTS_MAX`
    groups.
    """
    parts: dict[str, list[InstantSeries]] = {}
    for each in series:
        values = [each.labels.get(label, "") for label in labels]
        part = " ".join(values)
        if any(len(value) > _VALUE_MAX or not value.isprintable() for value in values) or (
            part not in parts and len(parts) == PARTS_MAX
        ):
            refused[INVALID] += 1
        else:
            parts.setdefault(part, []).append(each)
    return parts


def collect(join: Join, series: Iterable[InstantSeries], refused: Counter[str]) -> dict[Machine, float]:
    """Return the value of each machine; series that cannot be joined are counted in `refused` by reason.

    Several series of one machine that agree in their identity are duplicates, of which the median is taken.
    """
    values: dict[Machine, list[float]] = {}
    identities: dict[Machine, set[tuple[str, ...]]] = {}
    for each in series:
        machine = join.machine_of(each.labels)
        if machine is None:
            refused[FOREIGN] += 1
        elif each.value is None:
            refused[INVALID] += 1
        else:
            values.setdefault(machine, []).append(each.value)
            identities.setdefault(machine, set()).add(tuple(each.labels.get(name, "") for name in join.identity))
    contradicted = {machine for machine, seen in identities.items() if len(seen) > 1}
    refused[AMBIGUOUS] += sum(len(values[machine]) for machine in contradicted)
    return {machine: median(own) for machine, own in values.items() if machine not in contradicted}


def _by_rank(machines: Sequence[Machine]) -> list[Join]:
    """Return the join for ranks of one run, by Lockstep's own labels."""
    run = machines[0].run if machines else ""
    by_rank = {str(rank): machine for machine in machines for rank in machine.ranks}
    if not is_name(run):
        return []
    return [
        Join(
            matchers=f'run="{run}",rank=~"{"|".join(by_rank)}"',
            machines=tuple(machines),
            machine_of=lambda labels: by_rank.get(labels.get("rank", "")) if labels.get("run") == run else None,
            identity=("run", "rank"),
        )
    ]


def _by_uuid(source: EvidenceSource, machines: list[Machine], identity: tuple[str, ...]) -> Join:
    by_uuid = {machine.uuid: machine for machine in machines}

    def machine_of(labels: Mapping[str, str]) -> Machine | None:
        machine = by_uuid.get(labels.get(source.uuid, ""))
        host = labels.get(source.host, "")
        claimed = [other for other in machines if other.hosts and match_host(host, [other]) is not None]
        if machine is not None and claimed and not any(other.hosts == machine.hosts for other in claimed):
            return None  # the labels claim that the device is in another one of our hosts
        return machine

    values = "|".join(_quoted(uuid) for uuid in by_uuid)
    return Join(
        matchers=f'{source.uuid}=~"{values}"', machines=tuple(machines), machine_of=machine_of, identity=identity
    )


def _by_host(source: EvidenceSource, machines: list[Machine], identity: tuple[str, ...]) -> Join | None:
    matchers = host_matchers(source.host, machines)
    if not matchers:
        return None

    def machine_of(labels: Mapping[str, str]) -> Machine | None:
        index = labels.get(source.index, "")
        alike = [machine for machine in machines if index == str(machine.local_rank)]
        return match_host(labels.get(source.host, ""), alike)

    return Join(matchers=matchers, machines=tuple(machines), machine_of=machine_of, identity=identity)


def _by_pod(source: EvidenceSource, machines: list[Machine], identity: tuple[str, ...]) -> Join | None:
    names = sorted({_quoted(name) for machine in machines for name in machine.hosts if _NAME.fullmatch(name)})
    if not names:
        return None

    def machine_of(labels: Mapping[str, str]) -> Machine | None:
        pod, index = labels.get(source.pod, ""), labels.get(source.index, "")
        found = [machine for machine in machines if pod in machine.hosts and index == str(machine.local_rank)]
        return found[0] if len(found) == 1 else None

    return Join(
        matchers=f'{source.pod}=~"{"|".join(names)}"',
        machines=tuple(machines),
        machine_of=machine_of,
        identity=identity,
    )


def _quoted(name: str) -> str:
    """Return a name as a regular expression inside a PromQL string, in which every backslash is doubled."""
    return "".join(part if part.isalnum() or part in "_-:" else f"\\\\{part}" for part in name)
