"""A real Prometheus scrapes pages of real metric names, and every planted cause is named, on the suspect alone."""

import asyncio
import time
from urllib.parse import urlencode

import pytest

from coordinator.evidence.catalogue import load_catalogue
from coordinator.evidence.prometheus import Access, PrometheusClient
from coordinator.evidence.promql import parse_promql
from coordinator.evidence.reader import EvidenceReader, Periods
from coordinator.evidence.samples import SampledSeries, SampleStore
from tests.coordinator.evidence.neighbours import FAULTS, PLACES, SUSPECT, Pages, Site, scrape_configuration
from tests.support.servers import get_json, prometheus, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(1200)]
SAMPLES = 8  # of each period after its first, without which it is not asked about
SAMPLE_S = 2.0  # between two of them
SUBQUERY_STEP_S = 5  # of the catalogue's queries; Prometheus evaluates them at multiples of it
OFF_STEP_S = 2  # no period begins at such a multiple: Prometheus 2 counts that step, 3 does not
SCRAPE_S = 20  # between two scrapes, and for one: 20 MB
CATALOGUE = load_catalogue()


def await_scrapes(address):
    """Wait until Prometheus has read the page of every place."""

    def are_there():
        found = get_json(f"{address}/api/v1/query?query=up")
        return found and sum(int(each["value"][1]) for each in found["data"]["result"]) == len(PLACES)

    wait_until(are_there, 600, f"a scrape of each of {PLACES}")


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Return what was read for each (fault, place)."""
    sites = [Site(number, fault, place) for place in PLACES for number, fault in enumerate(FAULTS)]
    start_s = (time.time() - 600) // SUBQUERY_STEP_S * SUBQUERY_STEP_S + OFF_STEP_S
    times_s = [start_s + number * SAMPLE_S for number in range(2 * SAMPLES + 1)]
    onset_s, end_s = times_s[SAMPLES], times_s[-1]
    periods = Periods(before_start_s=start_s, before_end_s=onset_s, after_start_s=onset_s - 1, after_end_s=end_s)
    with (
        Pages(sites, times_s, onset_s).served() as pages_address,
        prometheus(
            tmp_path_factory.mktemp("evidence"), scrape_configuration(pages_address, interval_s=SCRAPE_S)
        ) as address,
    ):
        await_scrapes(address)
        client = PrometheusClient(Access(url=address))
        reader = EvidenceReader(client, CATALOGUE, link_url="https://prometheus.lan", deadline_s=120.0)

        async def read_all():
            return {(site.number, site.place): await reader.read(site.machines, periods, end_s) for site in sites}

        yield asyncio.run(read_all()), client, reader, address, periods


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name for fault in FAULTS])
def test_a_planted_cause_is_named_for_the_suspect_alone(read, number, place):
    """Right cause, right advice, figures on both sides; none where the peers have it, or all."""
    machine, fault = read[0][number, place], FAULTS[number]
    assert machine.is_complete, machine.note
    if place != SUSPECT:
        assert machine.deviations == ()
        assert "no evidence" in machine.note
        return
    assert {deviation.cause for deviation in machine.deviations} == {fault.cause}, machine
    for deviation in machine.deviations:
        assert deviation.ranks == (0,)
        assert deviation.advice == CATALOGUE.causes[fault.cause].advice
        assert deviation.suspects_before is not None
        assert deviation.peers_before is not None
        assert deviation.suspects_after != deviation.suspects_before
        assert f"s{number}-suspect-n0" in deviation.text
        assert deviation.link.startswith("https://prometheus.lan/graph?g0.expr=")


def test_every_cause_and_every_query_was_planted():
    """A query that no page provokes is not tested."""
    assert {fault.cause for fault in FAULTS} == set(CATALOGUE.causes)


def test_every_query_was_understood(read):
    """Prometheus refused none, and no series was joined in vain."""
    _, client, reader, *_ = read
    assert client.counts["refused"] == client.counts["malformed"] == client.counts["timeout"] == 0
    assert sum(reader.refused.values()) == 0


def asked(address, expression, at_s):
    """Return what Prometheus answers to an instant query."""
    return get_json(f"{address}/api/v1/query?{urlencode({'query': expression, 'time': at_s})}")["data"]["result"]


def test_samples_of_nodes_give_what_prometheus_gives(read):
    """Every query of the catalogue, over the samples that this Prometheus has: the same series, the same values."""
    *_, address, periods = read
    at_s = round(periods.after_end_s, 3)
    matrix = asked(address, f'{{job="{SUSPECT}"}}[30m]', at_s)
    store = SampleStore(
        [
            SampledSeries(
                tuple(sorted(each["metric"].items())),
                [float(at) for at, _ in each["values"]],
                [float(value) for _, value in each["values"]],
            )
            for each in matrix
        ]
    )
    compared = 0
    for query in CATALOGUE.queries:
        window_ms = round((at_s - periods.after_start_s) * 1000)
        expression = query.query.replace("$targets", f'job="{SUSPECT}"').replace("$window", f"{window_ms}ms")
        theirs = {
            tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in asked(address, expression, at_s)
        }
        ours = {tuple(sorted(each.labels.items())): each.value for each in store.query(parse_promql(expression), at_s)}
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9), query.name
        compared += len(ours)
    assert compared > 1000
