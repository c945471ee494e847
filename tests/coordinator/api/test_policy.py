"""Thresholds, scope and detectors over HTTP, while a run goes on."""

import logging
import sqlite3

import pytest

from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.store import Store
from lockstep.contracts.errors import ConfigError
from tests.coordinator.conftest import announce
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_runs import NOW, names, play
from tests.coordinator.web import FAULTY, Site, ask, get
from tests.support.policy_file import policy_file

POLICY = "/api/v1/policy"
OF_JOB = "/api/v1/runs/job/policy"
SMALL = generate(Scenario(degrees="dp=4", steps=140).with_fault("compute", 2, seconds=0.03, begin=60))  # 7 %


@pytest.fixture
async def site(token_file):
    async with Site(token_file=token_file) as made:
        yield made


def of(answer, name):
    return next(item for item in answer["thresholds"] if item["name"] == name)


def slow_ranks(site):
    return site.runs.by_name["job"].machine.tracker.slow_ranks


async def test_every_threshold_is_shown_with_default_source_and_reason(site):
    """All of them, as an operator needs them before a change."""
    answer = await get(site, POLICY)
    floor = of(answer, "excess.floor_ratio")
    assert (floor["value"], floor["default"], floor["source"], floor["unit"]) == (0.025, 0.025, "default", "ratio")
    assert (floor["least"], floor["greatest"], floor["can_change"]) == (0.001, 10.0, True)
    assert "smallest effect" in floor["reason"]
    assert of(answer, "scope.runs")["value"] == ["*"]
    assert not of(answer, "timeline.window_cells")["can_change"]
    assert answer["runs"] == {}
    assert of(await get(site, OF_JOB), "excess.floor_ratio") == floor


async def test_a_threshold_changes_the_verdict_of_a_run_in_progress(site):
    """A rank 7 % slow is silent under a floor of 20 %, and named within a few steps of lowering it: nothing is learnt again."""
    status, answer = await ask(site, "PATCH", POLICY, {"excess.floor_ratio": 0.2, "detectors.fluctuation": False})
    assert status == 200
    assert answer["changed"][0] == {"run": "", "name": "excess.floor_ratio", "before": 0.025, "after": 0.2}
    play(site.runs, SMALL, 0, 90)
    run = site.runs.by_name["job"]
    detector, evaluated = run.detector, run.machine.step_result
    assert (slow_ranks(site), evaluated.is_warm) == ([], True)
    await ask(site, "PATCH", POLICY, {"excess.floor_ratio": 0.025})
    play(site.runs, SMALL, 90, 98)
    assert slow_ranks(site) == [2]
    assert run.detector is detector
    (incident,) = run.machine.tracker.incidents.values()
    assert incident.explanation["thresholds"]["excess.floor_ratio"] == 0.025


async def test_a_detector_is_switched_off_and_on_while_a_run_goes_on(site):
    """Its incident closes by itself, and is back at once, without a warm-up."""
    play(site.runs, FAULTY, 0, 50)
    machine = site.runs.by_name["job"].machine
    machine.captures.current = None  # nothing is under way that would hold the incident open
    assert slow_ranks(site) == [2]
    await ask(site, "PATCH", POLICY, {"detectors.slow_rank": False, "detectors.fluctuation": False})
    machine.flow.diagnoses.pending.clear()
    play(site.runs, FAULTY, 50, 51)
    assert slow_ranks(site) == []
    play(site.runs, FAULTY, 51, 51 + Policy().run.recover_steps)
    assert machine.tracker.incidents == {}
    await ask(site, "PATCH", POLICY, {"detectors.slow_rank": None})
    play(site.runs, FAULTY, 70, 71)
    assert slow_ranks(site) == [2]


async def test_a_run_out_of_scope_is_evaluated_in_silence(site):
    """Nothing of it is reported; the list of runs states that."""
    await ask(site, "PATCH", POLICY, {"scope.runs": ["prod-*"]})
    assert play(site.runs, FAULTY, 0, 60) == []
    (shown,) = (await get(site, "/api/v1/runs"))["runs"]
    assert (shown["watched"], shown["slow_ranks"], shown["step"]) == (False, [], 59)
    await ask(site, "DELETE", POLICY)
    assert ("job", "OpenIncident") in play(site.runs, FAULTY, 60, 61)


async def test_one_run_has_thresholds_of_its_own_until_they_are_reset(site):
    """The others keep theirs; a budget of captures is a run's as well."""
    status, _ = await ask(site, "PATCH", OF_JOB, {"excess.floor_ratio": 0.9, "profile.per_day": 1})
    assert status == 200
    answer = await get(site, POLICY)
    assert answer["runs"] == {"job": {"excess.floor_ratio": 0.9, "profile.per_day": 1}}
    assert of(answer, "excess.floor_ratio")["value"] == 0.025
    assert of(await get(site, OF_JOB), "excess.floor_ratio")["source"] == "run"
    machine = site.runs.by_name["job"].machine
    assert machine.captures.budget.policy.per_day == 1
    status, answer = await ask(site, "DELETE", OF_JOB)
    assert [change["name"] for change in answer["changed"]] == ["excess.floor_ratio", "profile.per_day"]
    assert machine.captures.budget.policy.per_day == Policy().profile.per_day


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"excess.floor_ratio": 0.1, "excess.flor_ratio": 0.1}, "nearest is 'excess.floor_ratio'"),
        ({"excess.floor_ratio": "0.1"}, "policy: excess.floor_ratio: got '0.1', expected a number from 0.001 to 10"),
        ({"detectors.slow_link": False, "excess.warm_up_steps": 0}, "from 8 to"),
        ({"run.lost_seconds": 4000.0}, "expected less than run.lost_keep_seconds"),
        ([1], "got list, expected an object"),
    ],
)
async def test_a_wrong_change_is_refused_whole(site, body, named):
    """What, where, got and expected are reported; nothing of it is in force, kept or counted."""
    status, answer = await ask(site, "PATCH", POLICY, body)
    assert status == 400
    assert named in answer["error"]
    assert site.control.policy() == Policy()
    assert site.store.load_policy() == {}
    assert site.control.changes["api"] == 0


async def test_a_body_that_is_no_json_is_refused(site):
    """Broken, in another encoding, or with a number that no one can convert."""
    for raw in (b"{", b"\xff", b'{"excess.floor_ratio": ' + b"9" * 5000 + b"}", b"[" * 9000):
        assert (await ask(site, "PATCH", POLICY, raw=raw))[0] == 400


@pytest.mark.parametrize(
    "encoding",
    [{"Content-Encoding": "gzip"}, {"Content-Encoding": "deflate"}, {"Content-Type": "text/plain; charset=nothing"}],
)
async def test_a_body_that_is_not_encoded_as_declared_is_refused(site, encoding):
    """It is the client's mistake: an answer of 500 would be logged as ours, with a traceback."""
    headers = {"Authorization": "Bearer secret", **encoding}
    async with site.client.request("PATCH", POLICY, headers=headers, data=b"plain") as response:
        assert response.status == 400
        assert "body" in (await response.json())["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", POLICY), ("DELETE", POLICY), ("PATCH", OF_JOB), ("DELETE", OF_JOB), ("POST", "/-/reload")],
)
async def test_every_change_needs_the_token(site, method, path):
    """Without it nothing changes; reading is free."""
    for token in (None, "wrong"):
        status, answer = await ask(site, method, path, {"excess.floor_ratio": 0.1}, token=token)
        assert (status, "Authorization" in answer["error"]) == (401, True)
    assert site.control.policy() == Policy()


async def test_an_unknown_run_is_named(site):
    """Thresholds of its own belong to a run that is there."""
    status, answer = await ask(site, "PATCH", "/api/v1/runs/nobody/policy", {})
    assert (status, "'nobody'" in answer["error"]) == (404, True)
    await get(site, "/api/v1/runs/nobody/policy", 404)


async def test_the_error_of_an_unknown_run_lists_the_most_alike(site):
    """A few of the known names, those that begin alike first; or that there is none yet."""
    site.runs.forget("job")
    answer = await get(site, "/api/v1/runs/job/policy", 404)
    assert answer["error"] == "run: got 'job', but no run has reported yet"
    for name in ("a", "b", "c", "d", "job-1", "job-2"):
        site.runs.take(announce(0, run=name), NOW)
    answer = await get(site, "/api/v1/runs/job/policy", 404)
    assert answer["error"] == (
        "run: got 'job', expected one of 'job-1', 'job-2', 'a', 'b', 'c' or 1 more of /api/v1/runs"
    )


async def test_a_change_is_logged_and_counted(site, caplog):
    """Who, what, before and after."""
    caplog.set_level(logging.INFO)
    await ask(site, "PATCH", POLICY, {"excess.floor_ratio": 0.1, "detectors.hang": False, "run.recover_steps": 5})
    log_lines = [text for text in caplog.messages if "excess.floor_ratio" in text]
    assert log_lines == ["policy of all runs: excess.floor_ratio: 0.025 -> 0.1, by api client 127.0.0.1"]
    assert site.control.changes == {"api": 2, "file": 0}  # the third one was so before


async def test_changes_outlive_the_coordinator(token_file, tmp_path):
    """What was answered with 200 is in force after a restart, for all runs and for one."""
    async with Site(token_file=token_file, store=Store(str(tmp_path))) as site:
        await ask(site, "PATCH", POLICY, {"excess.floor_ratio": 0.1, "scope.runs": ["j*"]})
        await ask(site, "PATCH", OF_JOB, {"detectors.slow_rank": False})
    async with Site(token_file=token_file, store=Store(str(tmp_path))) as site:
        assert site.control.policy().scope.runs == ("j*",)
        assert site.runs.by_name["job"].policy.excess.floor_ratio == 0.1
        assert not site.runs.by_name["job"].policy.detectors.slow_rank
        await ask(site, "DELETE", OF_JOB)
        await ask(site, "DELETE", POLICY)
    async with Site(token_file=token_file, store=Store(str(tmp_path))) as site:
        assert site.control.policy() == Policy()


async def test_what_cannot_be_kept_is_not_put_into_force(site, monkeypatch):
    """A full disk answers 503, and the policy is the one from before."""

    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(site.store, "keep_policy", full)
    status, answer = await ask(site, "PATCH", POLICY, {"excess.floor_ratio": 0.1})
    assert (status, "disk is full" in answer["error"]) == (503, True)
    assert site.control.policy() == Policy()


async def test_a_reload_reports_what_it_applied_and_what_needs_a_restart(site, token_file, tmp_path):
    """Thresholds and degrees take effect; ports are named and stay."""
    file = policy_file(tmp_path, {"excess.floor_ratio": 0.1})
    site.reread = lambda: CoordinatorConfig(
        api_token_file=token_file, policy_file=file, http_port=1, runbook_base_url="http://x"
    )
    status, answer = await ask(site, "POST", "/-/reload")
    assert status == 200
    assert set(answer["applied"]) == {"policy_file", "runbook_base_url"}
    assert answer["needs_restart"] == ["http_port"]
    assert [change["name"] for change in answer["changed"]] == ["excess.floor_ratio"]
    assert site.runs.by_name["job"].policy.excess.floor_ratio == 0.1
    assert "http://x" in await get(site, "/")
    assert of(await get(site, POLICY), "excess.floor_ratio")["source"] == "file"


async def test_a_reload_of_a_wrong_configuration_changes_nothing(site):
    """The answer names what is wrong, the control remembers that it failed."""

    def wrong():
        raise ConfigError("unknown key in file: got 'x'")

    site.reread = wrong
    status, answer = await ask(site, "POST", "/-/reload")
    assert (status, "unknown key in file" in answer["error"]) == (500, True)
    assert (site.control.reload_ok, site.control.policy()) == (False, Policy())
    site.reread = lambda: site.control.config
    assert (await ask(site, "POST", "/-/reload"))[0] == 200
    assert site.control.reload_ok


async def test_another_token_is_in_force_after_a_reload(site, token_file):
    """A token is rotated without a restart."""
    with open(token_file, "w") as file:  # noqa: ASYNC230, PTH123  (a few bytes)
        file.write("fresh\n")
    assert (await ask(site, "POST", "/-/reload"))[0] == 200
    assert (await ask(site, "POST", "/-/reload"))[0] == 401
    assert (await ask(site, "POST", "/-/reload", token="fresh"))[0] == 200


async def test_policy_changes_reach_runs_as_instructions_of_none(site):
    """A change by itself opens, closes and asks for nothing."""
    play(site.runs, FAULTY, 0, 30)
    assert names(site.runs.set_policies(site.control.policy, 0.0)) == []
