"""HTTP as a client sees it."""

import asyncio
import gzip
import re
import threading

import aiohttp
import pytest

from coordinator import app
from lockstep.serving.exposition import render
from tests.coordinator.conftest import announce
from tests.coordinator.test_runs import NOW, play
from tests.coordinator.test_store import incident
from tests.coordinator.web import FAULTY, TOKEN, Site, ask, get


@pytest.fixture
async def site(token_file):
    async with Site(token_file=token_file) as made:
        play(made.runs, FAULTY, 0, 50)
        yield made


async def post(site, body, *, token=TOKEN, run="job", raw=None):
    return await ask(site, "POST", f"/api/v1/runs/{run}/profile", body, token=token, raw=raw)


async def test_run_detail_shows_who_waits_for_whom(site):
    """State, steps, ranks with their parts, domains and the slow ranks."""
    run = await get(site, "/api/v1/runs/job")
    assert (run["step"], run["world_size"], run["ranks_reporting"], run["slow_ranks"]) == (49, 4, 4, [2])
    assert run["state"] == "profiling"
    slow, other = run["ranks"][2], run["ranks"][0]
    assert (slow["rank"], slow["hostname"]) == (2, "host-n1")
    assert slow["self_seconds"] > other["self_seconds"]
    assert slow["wait_seconds"] < other["wait_seconds"]
    assert slow["data_seconds"] == pytest.approx(0.21, rel=0.1)
    assert {"compute_seconds", "host_seconds", "gc_seconds"} <= slow.keys()
    assert run["domains"] == [{"kind": "dp", "id": "dp0", "ranks": [0, 1, 2, 3]}]
    assert run["recent_step_seconds"] > run["baseline_step_seconds"]
    assert [item["run"] for item in (await get(site, "/api/v1/runs"))["runs"]] == ["job"]


async def test_incidents_are_listed_filtered_and_found(site):
    """Open ones from the machines, closed ones from the store, the oldest first."""
    site.store.keep([incident(1, state="closed", closed_step=9)], {})
    everything = (await get(site, "/api/v1/incidents"))["incidents"]
    assert [item["state"] for item in everything] == ["closed", "open"]
    (found,) = (await get(site, "/api/v1/incidents?run=job&state=open"))["incidents"]
    assert (found["ranks"], found["cause"], found["onset_step"], found["detected_step"]) == ([2], "data", 40, 42)
    assert (await get(site, f"/api/v1/incidents/{found['id']}"))["id"] == found["id"]
    assert (await get(site, "/api/v1/incidents/job-1"))["closed_step"] == 9
    assert (await get(site, "/api/v1/incidents?run=other"))["incidents"] == []


async def test_what_is_not_there_is_named(site):
    """Unknown run, incident, path and filter: a JSON error that names it."""
    assert "'nobody'" in (await get(site, "/api/v1/runs/nobody", 404))["error"]
    assert "'x-1'" in (await get(site, "/api/v1/incidents/x-1", 404))["error"]
    assert "'half'" in (await get(site, "/api/v1/incidents?state=half", 400))["error"]
    assert "/nope" in (await get(site, "/nope", 404))["error"]
    site.runs.take(announce(0, run="young"), NOW)
    assert "no step" in (await get(site, "/api/v1/runs/young", 404))["error"]


async def test_the_page_and_the_probes(site):
    """A page that fetches from nowhere else, nothing in it unescaped; probes answer."""
    site.store.keep([incident(1, state="closed", closed_step=9, evidence=("<script>x</script>",))], {})
    page = await get(site, "/")
    assert "http:" not in page
    assert "Slow rank: rank 2" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert await get(site, "/-/healthy") == "healthy\n"
    assert await get(site, "/-/ready") == "ready\n"
    assert 'lockstep_run_slow_ranks{run="job"} 1.0' in await get(site, "/metrics")


async def test_a_profile_needs_the_token(site):
    """No token, a wrong one, one that is no ASCII: refused, and nothing is asked of any rank."""
    for token in (None, "wrong", "sécret"):
        status, answer = await post(site, {"ranks": [1]}, token=token)
        assert status == 401
        assert "Authorization" in answer["error"]
    assert site.performed == []


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"ranks": [99]}, "99"),
        ({"ranks": ["1"]}, "'1'"),
        ({"ranks": [True]}, "True"),
        ({"ranks": []}, "ranks"),
        ({"ranks": [1, 1]}, "different"),
        ({"ranks": [1], "steps": 1000}, "1000"),
        ({"ranks": [1], "step": 3}, "steps"),
        ({"ranks": [1], "shapes": 1}, "shapes"),
        ([1], "object"),
    ],
)
async def test_a_bad_profile_request_is_named(site, body, named):
    """Unknown ranks and bad values are errors of the request."""
    status, answer = await post(site, body)
    assert status == 400
    assert named in answer["error"]


async def test_a_profile_is_asked_for_once(site):
    """With one under way the second is a conflict that states that; a broken body and an unknown run are refused."""
    site.runs.by_name["job"].machine.captures.current = None
    status, answer = await post(site, {"ranks": [1, 3], "steps": 2})
    assert status == 202
    assert (answer["steps"], answer["first_step"] > 49) == (2, True)
    assert site.performed
    status, answer = await post(site, {"ranks": [1]})
    assert status == 409
    assert "under way" in answer["error"]
    assert (await post(site, None, raw=b"{"))[0] == 400
    assert (await post(site, None, raw=b'{"ranks": [' + b"9" * 5000 + b"]}"))[0] == 400
    assert (await post(site, {"ranks": [1]}, run="nobody"))[0] == 404


async def test_without_a_token_nothing_can_be_changed():
    """The default forbids every change over HTTP."""
    async with Site() as made:
        status, answer = await post(made, {"ranks": [1]})
    assert status == 403
    assert "api_token_file" in answer["error"]


async def test_scrapers_get_the_format_they_ask_for(site):
    """OpenMetrics 1.0.0 when asked for, text otherwise."""
    accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
    async with site.client.get("/metrics", headers=accept) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert (await response.text()).endswith("# EOF\n")
    assert isinstance(site.client.session, aiohttp.ClientSession)


async def test_answers_are_compressed_when_asked(site):
    """Scrape, JSON, pages and their files: the same content in fewer bytes for who takes gzip, plain for who does not."""
    asset = re.search(r'"(/static/[^"]+[.]js)"', await get(site, "/"))[1]
    (found,) = (await get(site, "/api/v1/incidents"))["incidents"]
    for path in ("/metrics", f"/api/v1/incidents/{found['id']}", "/api/v1/policy", "/", "/runs/job", asset):
        answers = {}
        for accept in ("gzip", "identity", "gzip;q=0"):
            headers = {"Accept-Encoding": accept}
            async with site.client.get(path, headers=headers, auto_decompress=False) as response:
                answers[accept] = response.headers.get("Content-Encoding"), await response.read()
                assert response.headers["Vary"] == "Accept-Encoding", path
        assert answers["identity"] == answers["gzip;q=0"]
        assert (answers["gzip"][0], answers["identity"][0]) == ("gzip", None), path
        assert gzip.decompress(answers["gzip"][1]) == answers["identity"][1]
        assert len(answers["gzip"][1]) < len(answers["identity"][1]) / 2


async def test_scrapers_of_one_moment_share_a_text_made_off_the_event_loop(site, monkeypatch):
    """Forty at once cost one rendering and one compression; what has changed since is rendered again."""
    threads = []

    def record(*given):
        threads.append(threading.current_thread())
        return render(*given)

    monkeypatch.setattr(app, "render", record)
    texts = await asyncio.gather(*(get(site, "/metrics") for _ in range(40)))
    assert (len(set(texts)), len(threads)) == (1, 1)
    play(site.runs, FAULTY, 50, 51)
    assert 'lockstep_run_step{run="job"} 50.0' in await get(site, "/metrics")
    assert len(threads) == 2
    assert threading.main_thread() not in threads
