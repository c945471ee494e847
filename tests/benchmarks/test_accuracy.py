"""The table counts what it claims to, and the detector keeps what it has reached on a few of its scenarios."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import accuracy, baselines
from benchmarks.accuracy import main, measure
from benchmarks.scenarios.acceptance import DEMANDS, PAGES_MAX, missed, undemanded
from benchmarks.scenarios.catalogue import FAULTS, HEALTHY
from benchmarks.scenarios.job import Fault, Interruptions, Scenario
from benchmarks.scenarios.model import generate
from benchmarks.scenarios.report import report
from benchmarks.scenarios.score import JOB, Named, Score, score
from benchmarks.scenarios.table import OURS, Table, line, rate_bound
from coordinator.record.backtest import ReplayResult
from lockstep.contracts.domains import from_degrees

TOPOLOGY = from_degrees({"tp": 2, "dp": 8}, 16)
RANK = Fault(cause="compute", ranks=(3, 4), ratio=0.1, begin=50)
GROUP = Fault(cause="link", ranks=(2,), ratio=1.0, kinds=("tp",), wanted="group", begin=50)
NODE = Fault(cause="link", ranks=tuple(range(8, 16)), ratio=1.0, kinds=("dp",), wanted="node", begin=50)
WHOLE = Fault(cause="data", ranks=tuple(range(16)), ratio=0.1, wanted="job", begin=50)


def scored(fault, *named):
    """Return the score of what was named in a run with `fault`, or in a healthy one."""
    faults = () if fault is None else (fault,)
    return score(Scenario(name="test", degrees="tp=2,dp=8", seed=1, steps=100, faults=faults), TOPOLOGY, named)


def rank(row, which, cause="compute"):
    """Return a rank named after a row."""
    return Named(row, ("rank", which), cause)


def test_finds_are_counted_once_with_their_latency_and_cause():
    """The first naming of a rank at fault counts; its first slow step is latency 1."""
    result = scored(RANK, rank(52, 3), rank(60, 3), rank(70, 4, "data"))
    assert (result.wanted, result.found, result.wrong) == (2, 2, 0)
    assert result.latency_rows == [3, 21]
    assert (result.causes_named, result.causes_right) == (2, 1)


def test_innocents_and_alarms_before_the_fault_are_wrong():
    """Another rank is wrong at any time, the right one before its fault, and so is a group that only waits."""
    result = scored(RANK, rank(52, 5), rank(10, 3), Named(60, ("group", (2, 3))))
    assert (result.found, result.wrong, result.wrong_ranks) == (0, 3, 2)
    assert (result.alarms_in_health, result.healthy_rows) == (1, 50)


def test_a_healthy_run_has_no_right_answer():
    """Everything named in it is wrong, the job included, and all its rows count as healthy."""
    result = scored(None, rank(5, 1), Named(80, JOB))
    assert (result.wanted, result.wrong, result.alarms_in_health, result.healthy_rows) == (0, 2, 2, 100)


@pytest.mark.parametrize(
    ("fault", "right", "symptom", "wrong"),
    [
        (RANK, ("rank", 3), JOB, ("group", (4, 5))),
        (GROUP, ("group", (2, 3)), JOB, ("group", (4, 5))),
        (NODE, ("node", 1), ("group", (0, 2, 4, 6, 8, 10, 12, 14)), ("group", (0, 1))),
        (WHOLE, JOB, JOB, ("rank", 0)),
    ],
)
def test_what_only_feels_the_fault_counts_neither_way(fault, right, symptom, wrong):
    """The right thing is a find, a victim of the fault is no mistake, anything else is."""
    assert scored(fault, Named(60, right)).found == 1
    assert scored(fault, Named(60, symptom)).wrong == 0
    assert scored(fault, Named(60, wrong)).wrong == 1


def test_where_no_rank_is_at_fault_the_job_may_be_named():
    """A job whose noise grows is longer as a whole: naming it is no mistake, naming a rank is one."""
    result = scored(replace(WHOLE, wanted=""), Named(60, JOB), rank(60, 3))
    assert (result.wanted, result.found, result.wrong, result.wrong_ranks) == (0, 0, 1, 1)


def test_a_line_of_the_table_leaves_out_what_was_not_measured():
    """A dash where there is nothing to measure, sums of runs elsewhere."""
    total = Score()
    for result in (scored(RANK, rank(52, 3)), scored(RANK, rank(53, 3), rank(54, 4), rank(10, 9))):
        total.add(result)
    assert line(total).split() == ["0.750", "0.750", "100.00", "1", "4", "5", "1.000"]
    assert line(Score()).split() == ["-", "-", "-", "0", "-", "-", "-"]


@pytest.mark.parametrize(
    "name",
    ["slow 5 %", "gc on one", "link tp", "quiet", "batch ramp, one loader a group, no bytes", "gradual ramp, no bytes"],
)
def test_the_detector_keeps_what_it_has_reached(name):
    """On a fresh seed at 128 ranks: found within 4 steps by its cause, nothing else named."""
    _, scores, _ = measure((name, 128, 77, False))
    ((method, result),) = scores
    assert method == OURS
    assert result.wrong == 0
    assert result.found == result.wanted == result.causes_right
    assert max(result.latency_rows, default=0) <= 4


def test_the_table_is_printed(capsys):
    """Every method has its rows for faults and healthy runs."""
    assert main(["--ranks", "8", "--seeds", "1", "--scenario", "slow 10 %", "quiet"]) == 0
    out = capsys.readouterr().out
    for method in (OURS, *baselines.BASELINES):
        assert f"{method}, faults" in out
        assert f"{method}, healthy" in out


def test_things_of_one_page_are_one_false_alarm():
    """A page that names four ranks wakes one person once; without a page each name is one."""
    page = [Named(10, ("rank", which), "compute", "run-1") for which in range(4)]
    assert scored(None, *page, Named(50, JOB, "data", "run-2")).alarms_in_health == 2
    assert scored(None, rank(10, 1), rank(10, 2)).alarms_in_health == 2


def test_several_faults_are_wanted_at_once():
    """Each fault's thing is a find from its own begin on, and no rank of the other one is excused."""
    both = Scenario(name="test", degrees="tp=2,dp=8", seed=1, steps=100, faults=(replace(RANK, ranks=(9,)), GROUP))
    result = score(both, TOPOLOGY, [rank(52, 9), Named(53, ("group", (2, 3)), "link"), rank(53, 2)])
    assert (result.wanted, result.found, result.wrong_ranks, result.causes_right) == (2, 2, 1, 2)


@pytest.mark.parametrize(("count", "mean"), [(0, 2.9957), (1, 4.7439), (3, 7.7537), (20, 29.0620)])
def test_the_bound_of_a_rate_is_the_printed_one(count, mean):
    """The one-sided 95 % bound of a Poisson count, as printed in tables."""
    assert rate_bound(count, 1000) == pytest.approx(mean / 1000, rel=1e-4)


def table_of(name, ranks=128, **sums):
    """Return a table with one scenario of a healthy million steps."""
    table = Table()
    table.add(OURS, name, ranks, Score(**{"healthy_rows": 1_000_000} | sums))
    return table


def found(count, *, wanted=None, rows=3, right=None):
    """Return the sums of so many finds."""
    return {
        "wanted": count if wanted is None else wanted,
        "found": count,
        "latency_rows": [rows] * count,
        "causes_named": count,
        "causes_right": count if right is None else right,
    }


def test_every_row_has_a_demand():
    """A row that no one demands anything of would pass unseen; no fault may be missed altogether."""
    assert set(DEMANDS) == set(FAULTS)
    assert set(PAGES_MAX) == set(HEALTHY)
    assert all(demand.recall > 0 for demand in DEMANDS.values())


@pytest.mark.parametrize(
    ("table", "expected_parts"),
    [
        (table_of("slow 5 %", **found(1000)), []),
        (table_of("slow 5 %", **found(994, wanted=1000)), ["recall 0.994"]),
        (
            table_of("slow 5 %", **found(100, rows=6)),
            ["p50 6", "p95 6", "sudden faults: p50 6", "sudden faults: p95 6"],
        ),
        (table_of("slow 5 %", **found(100, right=98)), ["cause right in 0.980"]),
        (table_of("slow 5 %", wrong_ranks=1, **found(100)), ["1 innocent ranks"]),
        (table_of("noise to 2 %", wrong_ranks=1), ["1 innocent ranks"]),
        (table_of("slow, noisy", wrong_ranks=1, **found(100, rows=8)), []),
        (table_of("slow 3 %", **found(100, rows=9)), ["recall 0.000 within 8"]),
        (table_of("slow 3 %", ranks=8, **found(100, rows=9)), []),
        (table_of("drift", **found(100, rows=29)), ["p95 29"]),
        (table_of("quiet", alarms_in_health=2), []),
        (table_of("quiet", alarms_in_health=3), ["quiet: 3 pages in 1,000,000", "false alarms: 3 in 1,000,000"]),
        (table_of("experts, no tokens", alarms_in_health=3), ["experts, no tokens: 3 pages in 1,000,000"]),
        (table_of("hang, two records", **found(0, wanted=2)), ["hang, two records: recall 0.000, at least 0.95"]),
        (table_of("hang", **found(0, wanted=2)), []),
    ],
)
def test_what_misses_the_acceptance_is_printed(table, expected_parts):
    """Recall, latency, innocents, cause and false alarms each have their limit, just met and just missed."""
    lines = list(missed(table))
    assert len(lines) == len(expected_parts)
    assert all(part in each for part, each in zip(expected_parts, lines, strict=True))


def test_what_no_test_can_find_is_not_demanded_and_printed():
    """A hang by one record that lacks, where chance loses one as often; two that lack together are demanded."""
    (line,) = undemanded(table_of("hang", **found(0, wanted=2)))
    assert line == "128 ranks, hang: recall of any test at most 0.009"
    assert list(undemanded(table_of("hang, two records", **found(0, wanted=2)))) == []
    assert list(undemanded(table_of("slow 5 %", **found(100)))) == []


def test_a_check_that_misses_fails_and_the_page_shows_it(tmp_path, monkeypatch, capsys):
    """`--check` returns 1 and names the row; the written page has it, the seeds and the table."""
    monkeypatch.setattr(accuracy, "backtest", lambda *_: ReplayResult())
    page = tmp_path / "accuracy.md"
    arguments = ["--ranks", "8", "--seeds", "2", "--no-baselines", "--scenario", "slow 10 %", "--write", str(page)]
    assert main([*arguments, "--check"]) == 1
    assert "MISSED 8 ranks, slow 10 %: recall 0.000" in capsys.readouterr().out
    text = page.read_text()
    assert ", seeds 1 to 2 of 1 scenarios: 0 pages in " in text
    assert "- missed: 8 ranks, slow 10 %: recall 0.000" in text
    assert "| slow 10 % | 0.000 |" in text
    assert main([*arguments, "--show"]) == 0
    assert "slow 10 %, 8 ranks, seed 2: missed ('rank', " in capsys.readouterr().out


def test_a_page_keeps_the_sections_of_other_numbers_of_ranks(monkeypatch):
    """A measurement replaces its own section, in ascending order, and leaves the marathon's figures alone."""
    marathon = "<!-- marathon -->\n## Marathon\n\nfigures\n<!-- end of marathon -->"
    page = f"# Accuracy\n\n{marathon}\n\n## 8 ranks\n\nformer\n\n## 128 ranks\n\nother\n\n## 1,024 ranks\n\nthird\n"
    page = report(table_of("slow 5 %", ranks=8, healthy_rows=1000), runs={8: 3}, first_seed=1, before=page)
    assert "former" not in page
    assert (
        page.index(marathon)
        < page.index("## 8 ranks")
        < page.index("| slow 5 % |")
        < page.index("## 128 ranks\n\nother")
    )
    assert page.endswith("## 128 ranks\n\nother\n\n## 1,024 ranks\n\nthird\n")
    assert report(table_of("slow 5 %", ranks=8, healthy_rows=1000), runs={8: 3}, first_seed=1, before=page) == page


@pytest.fixture(scope="module")
def slow_job():
    """Return a job without pauses in which rank 53 of 64, in the second stage, is 30 % slow from row 50 on."""
    slow = Fault(cause="compute", ranks=(53,), ratio=0.3, begin=50)
    calm = Interruptions(checkpoint_every=0, evaluation_every=0)
    return generate(
        Scenario(name="test", degrees="tp=2,pp=2,dp=16", seed=3, steps=80, faults=(slow,), interruptions=calm)
    )


def test_rules_that_compare_step_times_name_the_innocent(slow_job):
    """Synchronisation makes step times equal: the plain rule names somebody of each domain, by self time also him."""
    assert ("rank", 53) not in {each.thing for each in baselines.plain_rule(slow_job) if each.row >= 50}
    by_self = {each.thing for each in baselines.plain_rule_by_self(slow_job) if each.row >= 50}
    assert ("rank", 53) in by_self
    assert len(by_self) > 1


def test_rules_that_compare_work_name_him_among_others(slow_job):
    """Three sigma and the median deviation find a rank 30 % slow, and so does the shortest collective."""
    for rule in (baselines.three_sigma, baselines.median_deviation, baselines.shortest_collective):
        assert ("rank", 53) in {each.thing for each in rule(slow_job) if each.row >= 50}, rule.__name__


def test_three_sigma_cannot_speak_in_a_small_job():
    """The largest deviation of n values is sqrt(n - 1) standard deviations, so ten ranks are never enough."""
    slow = Fault(cause="compute", ranks=(1,), ratio=5.0, begin=5)
    assert baselines.three_sigma(generate(Scenario(name="t", degrees="dp=8", seed=1, steps=20, faults=(slow,)))) == []


def test_the_relative_score_needs_a_quarter():
    """A score of 0.75 lies beyond +33 %: 20 % are not reported, 100 % are."""
    slow = Fault(cause="compute", ranks=(1,), ratio=0.2, begin=0)
    job = Scenario(name="t", degrees="dp=8", seed=1, steps=32, faults=(slow,))
    assert baselines.relative_score(generate(job)) == []
    shown = baselines.relative_score(generate(replace(job, faults=(replace(slow, ratio=1.0),))))
    assert {each.thing for each in shown} == {("rank", 1)}


@pytest.mark.parametrize(("count", "published"), [(5, 0.821), (8, 0.725), (12, 0.675), (20, 0.562)])
def test_drawn_limits_are_the_published_ones(count, published):
    """The limits of Dixon's test agree with the printed table at 0.5 % to the second digit."""
    assert baselines._dixon_limit(count) == pytest.approx(published, abs=0.015)


def test_the_mean_over_the_best_names_only_the_job(slow_job):
    """PerfTracker's rule has no rank to name."""
    assert {each.thing for each in baselines.mean_over_best(slow_job)} <= {JOB}
    assert np.unique([each.row for each in baselines.mean_over_best(slow_job)]).size > 0
