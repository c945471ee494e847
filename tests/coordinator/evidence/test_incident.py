"""From a Prometheus to the incident's page, its JSON, the metrics and a restart; and through a recording."""

import json
import time
from dataclasses import asdict, replace

import aiohttp
from aiohttp.test_utils import TestServer

from coordinator.decide import events as ev
from coordinator.decide.incidents import from_json, to_json
from coordinator.evidence import make_evidence
from coordinator.page.machine_evidence import render_machine_evidence
from coordinator.record.journal import Entry, JournalWriter, is_kept, read_entry
from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts.messages import NodeAlive
from lockstep.contracts.neighbour_series import NEIGHBOURS_PATH
from lockstep.serving.local_broker import LocalBroker
from tests.coordinator.conftest import announce, running, until
from tests.coordinator.evidence.deviations import DEVIATION, EVIDENCE
from tests.coordinator.evidence.test_prometheus import VECTOR, answering
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_store import incident

FAULTY = generate(Scenario(degrees="dp=4", steps=80).with_fault("compute", 2, seconds=0.4, begin=40))


async def prometheus(request):
    """Show a lower clock on rank 2 since the onset, by host and number; every other query finds nothing."""
    form = await request.post()
    if "DCGM_FI_DEV_SM_CLOCK" not in form["query"] or "Hostname" not in form["query"]:
        return aiohttp.web.Response(text=VECTOR % "")
    is_after = not form["query"].endswith("[600000ms])")
    clocks = (1980, 1980, 1410 if is_after else 1980, 1980)
    found = [{"metric": {"Hostname": "host-n0", "gpu": f"{i}"}, "value": [1, f"{clocks[i]}"]} for i in range(4)]
    return aiohttp.web.Response(text=VECTOR % ",".join(map(json.dumps, found)))


async def test_an_incident_has_what_its_machine_shows():
    """Read after it opened; the page, the report, the JSON and the metric have it."""
    now = time.time()
    async with answering(prometheus) as url:
        settings = {"evidence_prometheus_url": url, "evidence_link_url": "https://prometheus.lan"}
        async with running(broker=LocalBroker(), **settings) as coordinator:
            coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now), None)
            for step in range(50):
                orders = coordinator._runs.take(FAULTY.batch(step, step + 1, start_s=now), now + step)
                coordinator._effects.perform(orders)
            incidents = coordinator._runs.by_name["job"].machine.tracker.incidents
            coordinator.on_tick(time.time())
            await until(lambda: next(iter(incidents.values())).machine is not None, seconds=60.0)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client:
                texts = {}
                for path in (
                    "/metrics",
                    "/runs/job",
                    f"/incidents/{next(iter(incidents))}",
                    "/api/v1/incidents?run=job",
                ):
                    async with client.get(path) as response:
                        texts[path.partition("?")[0]] = await response.text()
                        assert response.status == 200
    (incident,) = incidents.values()
    (deviation,) = incident.machine.deviations
    assert (deviation.cause, deviation.ranks) == ("lower_clock", (2,))
    assert "rank 2 on host-n0: 1,980 MHz before the onset, 1,410 MHz since; 3 peers: 1,980 MHz" in deviation.text
    labels = f'incident="{incident.id}",machine_cause="lower_clock",run="job"'
    assert f"lockstep_incident_evidence_info{{{labels}}} 1.0" in texts["/metrics"]
    assert 'lockstep_coordinator_evidence_queries_total{outcome="answered"} 2.0' in texts["/metrics"]
    for page in ("/runs/job", f"/incidents/{incident.id}"):
        assert "Evidence from the machine" in texts[page]
        assert "Lower clock" in texts[page]
        assert 'href="https://prometheus.lan/graph?g0.expr=' in texts[page]
    assert '"cause": "lower_clock"' in texts["/api/v1/incidents"]


async def kept_by_the_node(request):
    """Hand out the clocks of the node's four devices as its exporter has kept them; rank 2's is lower since the onset."""
    start_s, end_s = float(request.query["start"]), float(request.query["end"])
    times = [start_s + at for at in range(1, int(end_s - start_s), 5)]
    series = [
        {
            "labels": {"__name__": "DCGM_FI_DEV_SM_CLOCK", "Hostname": "host-n0", "gpu": f"{device}"},
            "values": [1410 if device == 2 and at > start_s + 600 else 1980 for at in times],
        }
        for device in range(4)
    ]
    return aiohttp.web.json_response({"pages": [{"times_s": times, "series": series}]})


async def test_an_incident_has_what_its_machine_shows_without_a_prometheus():
    """Read from the node's own exporter, at the address in its heartbeat."""
    now = time.time() - 60  # the onset is some steps of a second later, and samples since are to be there
    app = aiohttp.web.Application()
    app.router.add_get(NEIGHBOURS_PATH, kept_by_the_node)
    async with TestServer(app) as node, running(broker=LocalBroker(), evidence_from_nodes=True) as coordinator:
        address = f"{node.host}:{node.port}"
        alive = NodeAlive(node="n0", alive=True, unix_ns=int(now * 1e9), stream_id=1, address=address)
        coordinator._on_message(alive, None)
        coordinator._on_message(announce(0, 1, 2, 3, heartbeat_s=now), None)
        for step in range(50):
            orders = coordinator._runs.take(FAULTY.batch(step, step + 1, start_s=now), now + step)
            coordinator._effects.perform(orders)
        incidents = coordinator._runs.by_name["job"].machine.tracker.incidents
        coordinator.on_tick(time.time())
        await until(lambda: next(iter(incidents.values())).machine is not None, seconds=60.0)
    (incident,) = incidents.values()
    assert incident.machine.deviations, incident.machine.note
    (deviation,) = incident.machine.deviations
    assert (deviation.cause, deviation.ranks, deviation.link) == ("lower_clock", (2,), "")
    assert "rank 2 on host-n0: 1,980 MHz before the onset, 1,410 MHz since; 3 peers: 1,980 MHz" in deviation.text


async def test_without_an_address_nothing_is_asked():
    """Off by default."""
    async with running(broker=LocalBroker()) as coordinator:
        assert coordinator._evidence is None
        assert set(coordinator._snapshot().evidence_queries.values()) == {0}
    assert make_evidence(CoordinatorConfig(), None, None) is None


def test_it_outlives_a_restart_and_a_recording():
    """As JSON of an incident, and as an entry of a journal."""
    entry = Entry(
        1, 5, ev.MachineEvidenceEvent(unix_s=5e-9, cause_id="c", incident_id="i", machine=EVIDENCE), run="job"
    )
    assert is_kept(entry.what)
    assert read_entry(JournalWriter().write(entry), where="test") == entry


def test_an_incident_of_an_older_version_has_none():
    """Its JSON has no such key."""
    whole = incident()
    value = to_json(whole)
    del value["machine"]
    assert from_json(value, where="test").machine is None
    value["machine"] = asdict(EVIDENCE)
    assert from_json(value, where="test").machine == EVIDENCE


def test_texts_of_series_are_escaped_and_a_link_is_one():
    """Labels of other exporters stand in them, and an address is longer than a text may be."""
    address = f"https://prometheus.lan/graph?g0.expr={'x' * 1500}&g0.tab=0"
    deviation = replace(DEVIATION, link=address)
    html = render_machine_evidence(replace(incident(), machine=replace(EVIDENCE, deviations=(deviation,))))
    assert "<b>slow</b>" not in html
    assert "&lt;b&gt;slow&lt;/b&gt;" in html
    assert f'href="{address.replace("&", "&amp;")}"' in html
    script = replace(EVIDENCE, deviations=(replace(DEVIATION, link="javascript:alert(1)"),))
    assert "javascript" not in render_machine_evidence(replace(incident(), machine=script))
    assert render_machine_evidence(incident()) == ""
