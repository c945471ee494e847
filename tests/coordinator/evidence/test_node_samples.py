"""Without Prometheus the same causes are named, from what the nodes' own exporters have kept."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from coordinator.evidence.catalogue import load_catalogue
from coordinator.evidence.machines import Machine
from coordinator.evidence.node_samples import NodeSamplesClient, SampleSession, parse_samples
from coordinator.evidence.prometheus import MALFORMED, REFUSED, TIMEOUT, UNREACHABLE, Access, QueryError
from coordinator.evidence.promql import Aggregation, Binary, FunctionCall, Node, Selector, Subquery, parse_promql
from coordinator.evidence.reader import EvidenceReader, Periods
from coordinator.evidence.samples import SampledSeries, SampleStore
from exporter.inspector import CollectiveTotals
from exporter.neighbours.inspector_series import inspector_samples
from exporter.neighbours.sample_history import SampleHistory
from lockstep.contracts.metric import EVIDENCE_OUTCOMES
from lockstep.contracts.neighbour_series import (
    INSPECTOR_METRICS,
    NEIGHBOUR_METRICS,
    NEIGHBOURS_MAX_BYTES,
    NEIGHBOURS_PATH,
)
from tests.coordinator.evidence.neighbours import ALL, FAULTS, PEERS, SUSPECT, Site

CATALOGUE = load_catalogue()
FIELD_OF_METRIC = {
    "lockstep_nccl_operations_total": ("count", 1),
    "lockstep_nccl_operation_time_seconds_total": ("time_ns", 1e9),
    "lockstep_nccl_operation_bus_bytes_total": ("bus_bytes", 1),
    "lockstep_nccl_last_arrivals_total": ("arrivals", 1),
}
START_S, ONSET_S, END_S, SCRAPE_S = 1e9, 1e9 + 600, 1e9 + 780, 60
GUARD_S = 30
PERIODS = Periods(
    before_start_s=START_S, before_end_s=ONSET_S - GUARD_S, after_start_s=ONSET_S - GUARD_S, after_end_s=END_S
)


def inspector_sums(text: str):
    """Return the sums of which an exporter's page shows the series, as the exporter has them."""
    sums = {}
    own = "".join(line for line in text.splitlines(keepends=True) if any(name in line for name in INSPECTOR_METRICS))
    for family in text_string_to_metric_families(own):
        for sample in family.samples:
            if sample.name in INSPECTOR_METRICS:
                labels = sample.labels
                view = sums.setdefault((labels["run"], int(labels["rank"])), {})
                totals = view.setdefault((labels["communicator"], labels["operation"]), CollectiveTotals())
                name, unit = FIELD_OF_METRIC[sample.name]
                setattr(totals, name, sample.value * unit)
    return sums


class KeptSite:
    """Plays the client of a reader: the samples of a site, as its exporters have kept them."""

    def __init__(self, site: Site) -> None:
        page, inspected = SampleHistory("node", samples_max=100), SampleHistory("node", samples_max=100)
        for at_s in range(int(START_S), int(END_S) + 1, SCRAPE_S):
            text = site.text(min(at_s, ONSET_S) - START_S, max(0, at_s - ONSET_S))
            page.add(text, at_s)
            inspected.add_samples(inspector_samples(inspector_sums(text), "node"), at_s)
        pages = [each.between(START_S, END_S) for each in (page, inspected)]
        self._store = SampleStore(parse_samples(json.dumps({"pages": pages}).encode()))
        self.counts: Counter[str] = Counter(dict.fromkeys(EVIDENCE_OUTCOMES, 0))

    @asynccontextmanager
    async def session(self, *_: object):
        yield SampleSession(self._store, self.counts, Counter())


async def read(site: Site):
    reader = EvidenceReader(KeptSite(site), CATALOGUE, deadline_s=120.0)
    machine = await reader.read(site.machines, PERIODS, END_S)
    assert machine.is_complete, machine.note
    assert sum(reader.refused.values()) == 0
    return machine


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
async def test_a_planted_cause_is_named_for_the_suspect_alone(fault):
    """Each cause by each series, over the catalogue of a Prometheus."""
    machine = await read(Site(0, fault, SUSPECT))
    assert {deviation.cause for deviation in machine.deviations} == {fault.cause}, machine
    for deviation in machine.deviations:
        assert deviation.ranks == (0,)
        assert deviation.suspects_before != deviation.suspects_after


@pytest.mark.parametrize("place", [PEERS, ALL])
@pytest.mark.parametrize("fault", FAULTS[::8], ids=[fault.name for fault in FAULTS[::8]])
async def test_what_peers_or_all_show_is_no_evidence(fault, place):
    """Peers are the control, as with a Prometheus."""
    machine = await read(Site(0, fault, place))
    assert machine.deviations == ()
    assert "no evidence" in machine.note


def names_of(node: Node) -> set[tuple[str, str]]:
    if isinstance(node, Selector):
        return {(each.sign, each.text) for each in node.matchers if each.label == "__name__"}
    if isinstance(node, (Subquery, Aggregation)):
        return names_of(node.inner)
    if isinstance(node, FunctionCall):
        return set().union(*(names_of(each) for each in node.arguments))
    return names_of(node.left) | names_of(node.right) if isinstance(node, Binary) else set()


def test_nodes_keep_what_the_queries_read():
    """The list of names in the contracts is that of the catalogue, and every query is understood."""
    read_names = set()
    for query in CATALOGUE.queries:
        read_names |= names_of(parse_promql(query.query.replace("$targets", 'a="b"').replace("$window", "60000ms")))
    plain = {name for sign, name in read_names if sign == "="}
    amd = {text.removeprefix("(amd_)?") for sign, text in read_names if sign == "=~"}
    resolved = {source.resolve for source in CATALOGUE.sources.values()} - {""}
    assert plain | amd | {f"amd_{name}" for name in amd} | resolved == NEIGHBOUR_METRICS | set(INSPECTOR_METRICS)


@asynccontextmanager
async def exporter_that(handler):
    """Yield a client of one node whose exporter answers so, and the machine on it."""
    app = web.Application()
    app.router.add_get(NEIGHBOURS_PATH, handler)
    server = TestServer(app)
    await server.start_server()
    client = NodeSamplesClient(Access(url=""), {"n1": str(server.make_url("")).rstrip("/")}.get)
    try:
        yield client, (Machine(ranks=(0,), is_suspect=True, hosts=frozenset({"n1", "elsewhere"})),)
    finally:
        await server.close()


async def test_an_exporter_is_asked_for_the_period():
    """Its samples answer queries; a host without a known exporter gives none."""
    asked = []

    async def handler(request):
        asked.append(dict(request.query))
        series = {"labels": {"__name__": "node_vmstat_oom_kill", "instance": "n1"}, "values": [1.0, None, 3.0]}
        return web.json_response({"pages": [{"times_s": [10.0, 20.0, 30.0], "series": [series]}]})

    async with exporter_that(handler) as (client, hosts), client.session(hosts, 5.0, 35.0) as session:
        [found] = await session.query("increase(node_vmstat_oom_kill[30000ms])", 35.0, 3.0)
        assert found.labels == {"instance": "n1"}
        assert found.value == pytest.approx(2 * 30 / 20, rel=0.2)
        with pytest.raises(QueryError, match=REFUSED):
            await session.query("absent(node_vmstat_oom_kill)", 35.0, 3.0)
        with pytest.raises(QueryError, match=TIMEOUT):
            await session.query("node_vmstat_oom_kill", 35.0, 0.0)
        assert not session.failures
    assert asked == [{"start": "5.000", "end": "35.000"}]


async def refusing(_):
    raise web.HTTPForbidden


async def breaking(request):
    request.transport.close()
    return web.Response()


async def large(_):
    return web.Response(body=b" " * (NEIGHBOURS_MAX_BYTES + 1))


@pytest.mark.parametrize(("handler", "outcome"), [(refusing, REFUSED), (breaking, UNREACHABLE), (large, "too_large")])
async def test_an_exporter_that_fails_costs_its_own_samples(handler, outcome):
    """It is counted once, and the reading is incomplete."""
    async with exporter_that(handler) as (client, hosts), client.session(hosts, 5.0, 35.0) as session:
        assert session.failures == {outcome: 1}
        assert await session.query("node_vmstat_oom_kill", 35.0, 3.0) == []
    assert client.counts[outcome] == 1


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"pages":1}',
        '{"pages":[{"times_s":[1,1],"series":[]}]}',
        '{"pages":[{"times_s":[NaN],"series":[]}]}',
        '{"pages":[{"times_s":[1,2],"series":[{"labels":{},"values":[1]}]}]}',
        '{"pages":[{"times_s":[1],"series":[{"labels":{"a":1},"values":[1]}]}]}',
        '{"pages":[{"times_s":[1],"series":[{"labels":{},"values":["1"]}]}]}',
        "[" * 100_000,
    ],
)
def test_answers_that_are_none(body: str):
    """Refused before anything of them is used."""
    with pytest.raises(QueryError, match=MALFORMED):
        parse_samples(body.encode())


def test_readings_do_not_hold_the_loop():
    """Two nodes' samples of 13 minutes and 192 cores: a query takes some ms, in a thread."""
    times = [float(at) for at in range(0, 780, 15)]
    store = SampleStore(
        [
            SampledSeries(
                tuple(
                    {"__name__": "node_cpu_seconds_total", "cpu": str(cpu), "instance": host, "mode": "idle"}.items()
                ),
                times,
                [at * 0.5 for at in times],
            )
            for host in ("a", "b")
            for cpu in range(192)
        ]
    )
    query = 'avg by (instance) (rate(node_cpu_seconds_total{mode="idle",instance=~"a|b"}[600000ms]))'
    found = asyncio.run(SampleSession(store, Counter(), Counter()).query(query, 765.0, 3.0))
    assert {series.labels["instance"]: series.value for series in found} == pytest.approx({"a": 0.5, "b": 0.5})
