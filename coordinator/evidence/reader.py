"""Performs a reading: every query of the catalogue, after the onset and before it, within one deadline.

Responses that arrive in time are compared. A missing response costs the incident that evidence only.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

from coordinator.decide.machine_evidence import MachineEvidence
from coordinator.evidence.catalogue import HOST, TARGETS, WINDOW, EvidenceCatalogue, EvidenceQuery, EvidenceSource
from coordinator.evidence.compare import QueryValues, find_evidence
from coordinator.evidence.join import collect, host_matchers, joins_of, match_host, split_by
from coordinator.evidence.machines import Machine, hosts_of_devices
from coordinator.evidence.node_samples import NodeSamplesClient, SampleSession
from coordinator.evidence.prometheus import InstantSeries, PrometheusClient, QueryError, QuerySession
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metric import EVIDENCE_REFUSALS
from lockstep.html.units import counted

_LINKED_MAX = 8  # suspects, and as many peers, in a graph: more lines are unreadable, and URLs are limited in length
DEADLINE_S = 3.0
"""Deadline of a whole reading. The incident is reported meanwhile; a Prometheus that needs longer is overloaded."""
_GRAPH_WINDOW_S = 60
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """The two periods to compare, in unix seconds."""

    before_start_s: float
    before_end_s: float
    after_start_s: float
    after_end_s: float


@dataclass(slots=True, kw_only=True)
class _Reading:
    """A reading under way."""

    session: QuerySession | SampleSession
    devices: tuple[Machine, ...]
    hosts: tuple[Machine, ...]
    periods: Periods
    deadline_s: float
    instances: dict[str, dict[Machine, str]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)


class EvidenceReader:
    """Reads evidence from one Prometheus, or from the samples that nodes have stored.

    `refused` counts series that were not joined to a machine, by reason. `link_url` is the browser address of
    Prometheus for links to graphs; `matchers` are added to every query.
    """

    def __init__(
        self,
        client: PrometheusClient | NodeSamplesClient,
        catalogue: EvidenceCatalogue,
        *,
        link_url: str = "",
        matchers: str = "",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.client = client
        self.refused: Counter[str] = Counter(dict.fromkeys(EVIDENCE_REFUSALS, 0))
        self._catalogue = catalogue
        self._link_url = link_url.rstrip("/")
        self._matchers = matchers
        self._deadline_s = deadline_s

    async def read(self, devices: tuple[Machine, ...], periods: Periods, now_s: float) -> MachineEvidence:
        """Return the evidence from the series of the devices and their hosts; never raises for external failures."""
        if not devices:
            return _nothing(now_s, "not compared: the incident names no rank, or every rank is in an open incident")
        deadline_s = asyncio.get_running_loop().time() + self._deadline_s
        hosts = hosts_of_devices(devices)
        try:
            async with self.client.session(hosts, periods.before_start_s, periods.after_end_s) as session:
                reading = _Reading(
                    session=session, devices=devices, hosts=hosts, periods=periods, deadline_s=deadline_s
                )
                reading.failures.update(session.failures)
                await self._resolve(reading)
                read = await asyncio.gather(*(self._values(reading, query) for query in self._catalogue.queries))
        except ConfigError as error:
            return _nothing(now_s, f"not read: {error}", is_complete=False)
        known = [values for of_query in read for values in of_query]
        links = {values.query.name: self._link(reading, values) for values in known}
        deviations = find_evidence(self._catalogue, known, links)
        return MachineEvidence(
            read_unix_ns=int(now_s * _NS),
            note=_note(reading, known, len(deviations)),
            is_complete=not reading.failures,
            deviations=deviations,
        )

    async def _resolve(self, reading: _Reading) -> None:
        """Find the `instance` under which each host is scraped, for sources whose series have no host name."""
        named = {(source.resolve, source.resolve_host, source.host) for source in self._catalogue.sources.values()}
        for metric, label, host_label in sorted(named):
            if not metric:
                continue
            matchers = host_matchers(label, reading.hosts)
            if not matchers:
                continue
            found: dict[Machine, set[str]] = {}
            try:
                series = await self._ask(reading, f"{metric}{{{TARGETS}}}", matchers, reading.periods.after_end_s, 0.0)
            except QueryError:
                continue
            for each in series:
                machine = match_host(each.labels.get(label, ""), reading.hosts)
                if machine is not None and each.labels.get(host_label):
                    found.setdefault(machine, set()).add(each.labels[host_label])
            self.refused["ambiguous"] += sum(len(names) for names in found.values() if len(names) > 1)
            claimed = Counter(name for names in found.values() for name in names)
            reading.instances[metric] = {
                machine: name for machine, (name, *more) in found.items() if not more and claimed[name] == 1
            }

    async def _values(self, reading: _Reading, query: EvidenceQuery) -> list[QueryValues]:
        """Return a query's values, grouped by its labels `by`; empty if no suspect has a value or the query failed."""
        source, periods = self._catalogue.sources[query.source], reading.periods
        try:
            after = await self._of_period(reading, source, query, periods.after_start_s, periods.after_end_s)
            after = {part: own for part, own in after.items() if any(machine.is_suspect for machine in own)}
            if not after:
                return []
            before = await self._of_period(reading, source, query, periods.before_start_s, periods.before_end_s)
        except QueryError:
            return []
        return [
            QueryValues(query=query, before=before.get(part, {}), after=own, part=part) for part, own in after.items()
        ]

    async def _of_period(
        self, reading: _Reading, source: EvidenceSource, query: EvidenceQuery, start_s: float, end_s: float
    ) -> dict[str, dict[Machine, float]]:
        """Return the value of each machine, by the text of the query's labels `by`."""
        values: dict[str, dict[Machine, float]] = {}
        machines = reading.hosts if source.scope == HOST else reading.devices
        for join in joins_of(source, machines, reading.instances.get(source.resolve, {})):
            series = await self._ask(reading, query.query, join.matchers, end_s, end_s - start_s)
            for part, own in split_by(query.by, series, self.refused).items():
                # More specific joins take precedence.
                values[part] = collect(join, own, self.refused) | values.get(part, {})
        return values

    async def _ask(
        self, reading: _Reading, query: str, matchers: str, at_s: float, window_s: float
    ) -> list[InstantSeries]:
        left_s = reading.deadline_s - asyncio.get_running_loop().time()
        try:
            return await reading.session.query(self._rendered(query, matchers, window_s), at_s, left_s)
        except QueryError as error:
            reading.failures[error.outcome] += 1
            raise

    def _rendered(self, query: str, matchers: str, window_s: float) -> str:
        both = f"{matchers},{self._matchers}" if self._matchers else matchers
        return query.replace(TARGETS, both).replace(WINDOW, f"{max(1000, round(window_s * 1000))}ms")

    def _link(self, reading: _Reading, values: QueryValues) -> str:
        """Return the URL of a graph of a query around the onset; empty if no `link_url` is configured."""
        source = self._catalogue.sources[values.query.source]
        suspects = [machine for machine in values.after if machine.is_suspect][:_LINKED_MAX]
        machines = (*suspects, *[machine for machine in values.after if not machine.is_suspect][:_LINKED_MAX])
        instances = reading.instances.get(source.resolve, {})
        instances = {machine: name for machine, name in instances.items() if machine in machines}
        joins = joins_of(source, machines, instances) if self._link_url else []
        if not joins:
            return ""
        periods = reading.periods
        end = datetime.fromtimestamp(periods.after_end_s, UTC)
        parameters = {
            "g0.expr": self._rendered(values.query.query, joins[0].matchers, _GRAPH_WINDOW_S),
            "g0.tab": "0",
            "g0.range_input": f"{max(60, round(periods.after_end_s - periods.before_start_s))}s",
            "g0.end_input": f"{end:%Y-%m-%d %H:%M:%S}",
        }
        return f"{self._link_url}/graph?{urlencode(parameters)}"


def _nothing(now_s: float, note: str, *, is_complete: bool = True) -> MachineEvidence:
    return MachineEvidence(read_unix_ns=int(now_s * _NS), note=note, is_complete=is_complete)


def _note(reading: _Reading, known: Sequence[QueryValues], deviation_count: int) -> str:
    """Return a note on what was compared, and what could not be."""
    suspects = sum(machine.is_suspect for machine in reading.devices)
    who = f"{counted(suspects, 'rank')} with {counted(len(reading.devices) - suspects, 'peer')}"
    compared = [values for values in known if any(not machine.is_suspect for machine in values.after)]
    parts = [f"{counted(len(compared), 'signal')} of {who} compared"]
    if not deviation_count:
        parts.append("no evidence: the suspects do not differ from their peers")
    if not known:
        parts = [f"no evidence: no series of {who} was found"]
    if reading.failures:
        parts.append(f"queries without an answer: {_listed(reading.failures)}")
    return "; ".join(parts)


def _listed(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} ({outcome.replace('_', ' ')})" for outcome, count in sorted(failures.items()))
