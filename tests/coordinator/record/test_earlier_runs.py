"""A run against runs that are over: of its name after its series went, and of other names with the same workload."""

from dataclasses import replace

import pytest

from coordinator.intake.workload import Workload
from coordinator.record.attempt_history import ALIKE_MAX, ATTEMPTS_KEPT, Attempt, AttemptHistory
from coordinator.record.earlier_attempts import RUNS_NAMED, compare_attempts
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.facts import RankFacts
from tests.coordinator.conftest import announce
from tests.coordinator.record.test_earlier_attempts import attempts
from tests.coordinator.test_runs import FAULTY, NOW, play, runs
from tests.coordinator.web import Site, get

H100 = RankFacts(device="NVIDIA H100 80GB HBM3", device_kind="cuda", dtype="bf16", parameters=7_000_000_000)
KEEP_S = 900.0
"""A run that ended stays for so long."""
DAY_S = 86_400.0
STEPS = 200


def begin(watch, run, *, at_s, facts=H100, more=None):
    """Have both nodes of a run announce it, and a few steps evaluated; return the run."""
    more = {"attempt": int(at_s), **(more or {})}
    for ranks, node in (((0, 1), "n0"), ((2, 3), "n1")):
        watch.take(announce(*ranks, facts=facts, run=run, node=node, heartbeat_s=at_s, **more), at_s)
    play(watch, FAULTY, 0, 5, run=run, now=at_s)
    return watch.by_name[run]


def made(run, step_s, *, begin_s, steps=STEPS, **more):
    """Give a run the steps of one attempt, and return what it is compared with."""
    series = attempts((step_s, 0.1 * step_s, steps, {"tokens": 100.0, **more}), begin_s=begin_s, series=run.series)
    assert series
    return run.snapshot().earlier


def end(watch, run, at_s):
    """Have a run end and its history leave the table."""
    for ranks, node in (((0, 1), "n0"), ((2, 3), "n1")):
        watch.take(announce(*ranks, run=run, node=node, state="finished", heartbeat_s=at_s), at_s)
    watch.forget(run)
    assert run not in watch.by_name


def over(watch, run, step_s, *, begin_s, **more):
    """Run a job to its end."""
    made(begin(watch, run, at_s=NOW + begin_s, **more), step_s, begin_s=begin_s)
    end(watch, run, NOW + begin_s + STEPS * step_s + KEEP_S)


def test_a_job_of_the_same_name_is_compared_after_its_series_went():
    """A night later, by the same coordinator and by one that was started between them."""
    watch = runs()
    over(watch, "job", 1.0, begin_s=0.0)
    kept = {"job": watch._table._past.memory("job")}
    assert kept["job"].series is None
    for later in (watch, runs(kept)):
        found = made(begin(later, "job", at_s=NOW + DAY_S), 1.3, begin_s=DAY_S)
        assert found is not None
        assert (found.match, found.runs, found.attempts) == ("name", ("job",), 1)
        assert found.slowdown_ratio == pytest.approx(0.3)


def test_a_run_of_another_name_is_compared_by_its_workload():
    """Jobs whose names hold a date: each is the first of its name."""
    watch = runs()
    for number, step_s in enumerate((1.0, 1.02, 1.04)):
        over(watch, f"train-{number}", step_s, begin_s=number * DAY_S)
    found = made(begin(watch, "train-3", at_s=NOW + 3 * DAY_S), 1.3, begin_s=3 * DAY_S)
    assert found is not None
    assert (found.match, found.attempts) == ("workload", 3)
    assert found.runs == ("train-2", "train-1", "train-0")
    assert found.step_seconds == pytest.approx(1.02)
    assert found.slowdown_ratio == pytest.approx(1.3 / 1.02 - 1)


def test_the_name_goes_before_the_workload():
    """Its own attempts are of the same code and data; a sweep's are not."""
    watch = runs()
    over(watch, "other", 2.0, begin_s=0.0)
    over(watch, "job", 1.0, begin_s=DAY_S)
    found = made(begin(watch, "job", at_s=NOW + 2 * DAY_S), 1.3, begin_s=2 * DAY_S)
    assert found is not None
    assert (found.match, found.step_seconds) == ("name", pytest.approx(1.0))


@pytest.mark.parametrize(
    ("facts", "more"),
    [
        (replace(H100, device="NVIDIA A100-SXM4-80GB"), {}),
        (replace(H100, parameters=H100.parameters + 1), {}),
        (replace(H100, dtype="fp32"), {}),
        (replace(H100, parameters=None), {}),
        (None, {}),
        (H100, {"groups": []}),
    ],
    ids=["device", "parameters", "format", "no parameters", "no facts", "groups"],
)
def test_another_workload_is_not_compared(facts, more):
    """What may take another time by right; and what is not known is like nothing."""
    watch = runs()
    over(watch, "one", 1.0, begin_s=0.0)
    assert made(begin(watch, "two", at_s=NOW + DAY_S, facts=facts, more=more), 1.3, begin_s=DAY_S) is None


@pytest.mark.parametrize("more", [{"tokens": 200.0}, {"model_flops": 2e12}], ids=["tokens", "model FLOPs"])
def test_the_same_workload_with_other_work_per_step_is_not_compared(more):
    """A larger batch, longer sequences of as many tokens in all."""
    peak = replace(H100, peak_flops_per_second=1e15)
    watch = runs()
    one = begin(watch, "one", at_s=NOW, facts=peak)
    made(one, 1.0, begin_s=0.0, model_flops=1e12)
    two = begin(watch, "two", at_s=NOW + DAY_S, facts=peak)
    assert made(two, 1.3, begin_s=DAY_S, **{"model_flops": 1e12, **more}) is None
    three = begin(watch, "three", at_s=NOW + 2 * DAY_S, facts=peak)
    found = made(three, 1.3, begin_s=2 * DAY_S, model_flops=1e12)
    assert found is not None
    assert found.runs == ("one",)


def test_a_run_that_began_later_is_no_measure():
    """Of two runs at a time the younger is compared with the older, not the other way about."""
    watch = runs()
    older, younger = begin(watch, "older", at_s=NOW), begin(watch, "younger", at_s=NOW + 1000)
    made(older, 1.0, begin_s=0.0)
    assert made(younger, 1.3, begin_s=1000.0).runs == ("older",)
    older.attempts._due_at = 0
    assert older.snapshot().earlier is None


def test_a_restart_with_other_devices_is_another_workload():
    """Its nodes announce it before its first step; the attempt before keeps its own."""
    watch = runs()
    run = begin(watch, "job", at_s=NOW)
    made(run, 1.0, begin_s=0.0)
    begin(watch, "job", at_s=NOW + 1000, facts=replace(H100, device="other"))
    made(run, 1.0, begin_s=1000.0)
    first, second = run.history.of_run("job")
    assert first.workload
    assert second.workload
    assert first.workload != second.workload


def attempt(run, begin_s, *, workload="w", figures=None):
    usual = {"step_s": 1.0, "tokens": 100.0} if figures is None else figures
    return Attempt(run=run, begin_unix_s=begin_s, end_unix_s=begin_s + 10, workload=workload, figures=usual)


def test_the_history_is_bounded_in_attempts_names_and_what_is_compared():
    """A run that restarts a thousand times, and a sweep of a thousand runs."""
    history = AttemptHistory()
    history.replace("job", [attempt("job", 100.0 * number) for number in range(1000)])
    assert history.of_run("job")[0].begin_unix_s == 100.0 * (1000 - ATTEMPTS_KEPT)
    for number in range(1000):
        history.replace(f"sweep-{number}", [attempt(f"sweep-{number}", number, workload="sweep")])
    history.replace("last", [attempt("last", 1e6, workload="sweep")])
    found = compare_attempts("last", history)
    assert found is not None
    assert (found.attempts, len(found.runs), found.runs[0]) == (ALIKE_MAX, RUNS_NAMED, "sweep-999")
    for number in range(1000):
        history.drop(f"sweep-{number}")
    for run in ("job", "last"):
        history.drop(run)
    assert (history._of_run, history._runs) == ({}, {})


def test_attempts_too_short_to_be_known_displace_none():
    """A job that crashes at its start ten times over."""
    history = AttemptHistory()
    short = [attempt("job", 100.0 * number, figures={}) for number in range(1, 12)]
    history.replace("job", [attempt("job", 0.0), *short])
    assert [each.begin_unix_s for each in history.of_run("job")] == [0.0, 1100.0]


@pytest.mark.parametrize(
    "damage",
    [
        {"begin_unix_s": float("nan")},
        {"figures": {"step_s": "long"}},
        {"figures": None},
        {"end_unix_s": None},
    ],
)
def test_damaged_attempts_are_discarded_with_a_line_in_the_log(damage, caplog):
    """What else the run remembers is of use without them."""
    history = AttemptHistory()
    history.replace("job", [attempt("job", 0.0)])
    (kept,) = history.to_json("job")
    history.drop("job")
    history.adopt("job", [kept | damage])
    assert history.of_run("job") == ()
    assert "attempts of run job: got" in caplog.text
    history.adopt("job", [kept])
    assert history.of_run("job") == (attempt("job", 0.0),)


def test_a_workload_is_of_ranks_groups_and_placement_and_not_of_names():
    """Hosts, nodes and versions are what a slower job may be slow by; a moved rank counts where it lives."""
    topology = from_degrees({"dp": 2, "tp": 2}, 4)
    one, other = Workload(), Workload()
    assert one.digest(topology, {}) == ""
    for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
        one.note(announce(*ranks, node=node, facts=H100))
        renamed = replace(H100, torch_version="2.14", backend="nccl")
        other.note(announce(*ranks, node=f"host-{node}", run="other", facts=renamed))
    nodes = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
    digest = one.digest(topology, nodes)
    assert digest
    assert other.digest(topology, {rank: f"host-{node}" for rank, node in nodes.items()}) == digest
    assert one.digest(from_degrees({"dp": 4}, 4), nodes) not in ("", digest)
    one.note(announce(1, 2, node="n2", facts=H100))
    moved = one.digest(topology, {0: "n0", 1: "n2", 2: "n2", 3: "n1"})
    assert moved not in ("", digest)
    one.note(announce(2, 3, node="n1"))
    assert one.digest(topology, nodes) == ""


async def test_the_page_the_api_and_the_metric_show_which_of_the_two_matched():
    """A fifth slower than two runs of other names: they are named, and it is not marked as bad."""
    async with Site() as site:
        for number in range(2):
            over(site.runs, f"<train {number}>", 1.0, begin_s=number * DAY_S)
        run = begin(site.runs, "job", at_s=NOW + 2 * DAY_S)
        attempts((1.2, 0.28, STEPS, {}), begin_s=2 * DAY_S, series=run.series)
        page, answer = await get(site, "/runs/job"), await get(site, "/api/v1/runs/job")
        metrics = await get(site, "/metrics")
    assert (
        '<dt>Same workload</dt><dd>1 s<small class="soft">this one undisturbed +20%, data +180 ms</small><small class="soft">'
        '<a href="/runs/%3Ctrain%201%3E">&lt;train 1&gt;</a>, <a href="/runs/%3Ctrain%200%3E">&lt;train 0&gt;</a>'
    ) in page
    assert "Earlier attempts" not in page
    assert (answer["earlier"]["match"], answer["earlier"]["runs"]) == ("workload", ["<train 1>", "<train 0>"])
    assert 'lockstep_run_earlier_step_duration_seconds{match="workload",run="job"} 1.0' in metrics
