"""Incidents as an operator reads them: with what each was decided from, now and after a restart."""

import json
import re
from base64 import b64encode
from hashlib import sha256

from coordinator.decide import events as ev
from coordinator.store import Store
from tests.coordinator.test_runs import NOW, play
from tests.coordinator.test_store import incident
from tests.coordinator.web import FAULTY, Site, get

INCIDENTS = "/api/v1/incidents"


async def test_an_incident_shows_what_it_was_decided_from():
    """Quantity, reference, peers, samples, noise, thresholds, rule and what became of it."""
    async with Site() as site:
        play(site.runs, FAULTY, 0, 60)
        (listed,) = (await get(site, INCIDENTS))["incidents"]
        assert "explanation" not in listed
        assert listed["host"] == "host-n1"
        shown = await get(site, f"{INCIDENTS}/{listed['id']}")
    explanation = shown["explanation"]
    assert explanation.keys() >= {"quantity", "reference", "samples", "noise", "thresholds", "rule", "numbers"}
    assert explanation["samples"]["steps"][-1] == shown["detected_step"] == 42
    assert len(explanation["samples"]["own_seconds"]) == 32
    assert [peer["rank"] for peer in explanation["reference"]["peers"]] == [0, 1, 3]
    assert [(each["step"], each["what"]) for each in shown["timeline"]] == [(40, "began"), (42, "detected")]
    assert len(json.dumps(explanation)) < 8 << 10


async def test_the_explanation_is_there_when_the_run_is_gone(tmp_path):
    """It is kept with the incident as it was at its opening, through its end and a restart."""
    async with Site(store=Store(str(tmp_path))) as site:
        machine = site.runs.by_name["job"].machine
        play(site.runs, FAULTY, 0, 60)
        (opened,) = machine.tracker.incidents.values()
        closed = machine.tracker.close_all(NOW)
        site.store.keep(closed, {})
    async with Site(store=Store(str(tmp_path))) as site:
        shown = await get(site, f"{INCIDENTS}/{opened.id}")
        page = await get(site, "/")
    assert shown["explanation"] == json.loads(json.dumps(opened.explanation))
    assert shown["timeline"][-1]["what"] == "closed"
    assert "<summary>Why: own work of the rank" in page


async def test_an_incident_without_an_explanation_is_shown_as_it_is():
    """One that an earlier version kept."""
    async with Site() as site:
        site.store.keep([incident(1, state="closed", closed_step=9)], {})
        shown = await get(site, f"{INCIDENTS}/job-1")
        assert (shown["explanation"], len(shown["timeline"])) == ({}, 3)
        assert "<summary>Why" not in await get(site, "/")


async def test_texts_of_messages_are_escaped_in_the_explanation_too():
    """Hostnames and names of domains come from the bus."""
    async with Site() as site:
        play(site.runs, FAULTY, 0, 60)
        machine = site.runs.by_name["job"].machine
        (opened,) = machine.tracker.incidents.values()
        nasty = opened.explanation | {"rule": "<script>", "quantity": "<script>"}
        machine.handle(ev.ExplainedEvent(unix_s=NOW, cause_id="c", incident_id=opened.id, explanation=nasty))
        page = await get(site, "/")
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 2


async def test_a_report_can_be_kept_and_read_without_the_coordinator(tmp_path):
    """Everything unfolded in one file, with its style, nothing fetched; of a closed incident after a restart too."""
    async with Site(store=Store(str(tmp_path)), runbook_base_url="http://r", dashboard_base_url="http://g") as site:
        play(site.runs, FAULTY, 0, 60)
        machine = site.runs.by_name["job"].machine
        (incident,) = machine.tracker.incidents.values()
        assert f'href="/incidents/{incident.id}"' in await get(site, "/runs/job")
        async with site.client.get(f"/incidents/{incident.id}") as response:
            policy, text = response.headers["Content-Security-Policy"], await response.text()
        site.store.keep(machine.tracker.close_all(NOW), {})
    for words in ("Slow rank: rank 2", "Basis of the decision", "Peers", "host-n0", "excess.floor_ratio", "Run job",
                  'href="http://r/LockstepSlowDeviceFound.md"', "<code>kubectl cordon n1</code>",
                  'href="/runs/job"', 'href="http://g/d/lockstep-run?var-run=job"',
                  "scontrol update NodeName=n1 State=DRAIN"):  # fmt: skip
        assert words in text, words
    style = re.search("<style>(.*)</style>", text, re.DOTALL)[1]
    assert f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in policy
    assert not re.search(r"<script|<link|<details|src=|url\(", text)
    async with Site(store=Store(str(tmp_path))) as site:
        kept = await get(site, f"/incidents/{incident.id}")
        await get(site, "/incidents/nothing", 404)
    assert "closed" in kept
    assert "Basis of the decision" in kept


async def test_evidence_that_comes_after_the_end_is_shown():
    """A summary that comes late amends the closed incident: its list, its page and its report."""
    async with Site() as site:
        play(site.runs, FAULTY, 0, 60)
        machine = site.runs.by_name["job"].machine
        (closed,) = machine.tracker.close_all(NOW)
        diagnosed = ev.DiagnosedEvent(
            unix_s=NOW, cause_id="late", incident_id=closed.id, function="train.py(7): late", operator="",
            evidence=("late evidence",), advice=(), confidence="high",
        )  # fmt: skip
        (update,) = machine.handle(diagnosed)
        site.store.keep([update.incident], {})
        (listed,) = (await get(site, "/api/v1/incidents"))["incidents"]
        report = await get(site, f"/incidents/{closed.id}")
    assert (listed["state"], listed["function"]) == ("closed", "train.py(7): late")
    assert "late evidence" in report


async def test_nothing_hostile_stands_in_a_report():
    """Whatever the bus delivered on a run."""
    async with Site() as site:
        bad = "<script>alert(1)</script>"
        site.store.keep([incident(1, state="closed", closed_step=9, function=bad, evidence=(bad,), root_cause=bad)], {})
        text = await get(site, "/incidents/job-1")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
