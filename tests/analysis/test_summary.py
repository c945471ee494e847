"""The JSON form: its keys, its sums, no number that JSON lacks."""

import json
from dataclasses import replace

import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.sources import SkippedPath
from lockstep.analysis.summary import PATH_MAX, REST, STEPS_MAX, summary_of
from lockstep.contracts.finding import CPU, Finding
from lockstep.trace.columns import ANNOTATION, OPERATOR
from tests.analysis.job import FORWARD, RANKS, SLEEP, STEPS, rank_columns
from tests.trace.made import columns_of, made

RANK_KEYS = {
    *("rank", "host", "path", "vendor", "devices", "window_ns", "steps", "breakdown", "steps_breakdown"),
    *("critical_path", "critical_path_guessed_ratio", "collectives", "patterns", "roofline", "components"),
    *("findings", "not_evaluated", "trace_bytes", "event_count", "dropped_count"),
}
BREAKDOWN_KEYS = {
    *("compute_ns", "communication_ns", "host_ns", "memory_ns", "overlap_ns", "free_ns"),
    *("overlap_ratio", "compute_communication_overlap_ratio"),
}
FINDING_KEYS = {
    *("bottleneck", "cause", "ranks", "subject", "evidence", "advice", "predicted_gain_ratio", "lost_ns", "confidence"),
    "steps",
}


@pytest.fixture(scope="module")
def summary():
    found = [analyse_rank(rank_columns(rank, slept_ms={2: 40}), rank=rank) for rank in RANKS]
    paths = {rank: f"{rank}.json" for rank in RANKS}
    return summary_of(analyse_cluster(found), paths, [SkippedPath("x.json", "it is none")])


def test_the_whole_is_json(summary):
    """No NaN, no infinity, nothing but JSON's types; the keys are those that a report reads."""
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary.keys() == {
        *("format", "tool", "ranks", "collectives", "groups", "localisation", "findings", "not_evaluated", "skipped")
    }
    assert summary["format"] == 1
    assert summary["skipped"] == [{"path": "x.json", "error": "it is none"}]


def test_a_rank_has_its_keys_and_sums(summary):
    """Each rank: breakdown, steps and path account for the window."""
    for rank in summary["ranks"]:
        assert rank.keys() == RANK_KEYS
        assert rank["path"] == f"{rank['rank']}.json"
        assert rank["breakdown"].keys() == BREAKDOWN_KEYS
        for part in (rank["breakdown"], *rank["steps_breakdown"]):
            assert part["memory_ns"] <= part["compute_ns"]
        total = sum(ns for key, ns in rank["breakdown"].items() if key.endswith("_ns") and key != "memory_ns")
        assert total == rank["window_ns"] == sum(each["ns"] for each in rank["critical_path"])
        assert rank["steps"]["numbers"] == list(range(STEPS))
        assert rank["collectives"][0]["bus_bandwidth_bytes_per_second"] > 0


def test_findings_groups_and_localisation_agree(summary):
    """The rank that others wait for, its share of the blame, and its function: one story."""
    first = summary["findings"][0]
    assert first.keys() == FINDING_KEYS
    named = {(each["cause"], tuple(each["ranks"])) for each in summary["findings"]}
    assert ("slow_function", (2,)) in named
    assert (first["subject"], first["ranks"]) == (FORWARD, [2])
    assert not {rank for _, ranks in named for rank in ranks if len(ranks) == 1} - {2}
    assert first["advice"][0].keys() == {"suggestion", "how", "predicted_gain_ratio", "source"}
    (group,) = summary["groups"]
    assert (group["slowest_rank"], group["ranks"]) == (2, list(RANKS))
    assert group["blame"]["2"] > 0.9
    assert sum(group["blame"].values()) == pytest.approx(1)
    by_function = {each["function"]: each for each in summary["localisation"]}
    assert not by_function[SLEEP]["is_finding"]  # it is a part of what the call trees found
    assert by_function[SLEEP]["ranks"] == [2]


def test_a_rank_has_what_was_found_on_it(summary):
    """Who reads the entry of one rank finds there what only a look at all ranks could show too, each cause once."""
    named = {(each["cause"], each["subject"], rank) for each in summary["findings"] for rank in each["ranks"]}
    by_rank = [(each["cause"], each["subject"], rank["rank"]) for rank in summary["ranks"] for each in rank["findings"]]
    assert sorted(by_rank) == sorted(named)
    assert ("slow_function", FORWARD, 2) in named


def test_long_lists_are_cut_and_still_sum():
    """A hundred operators and steps: 50 and the rest, 64 steps."""
    events = []
    for step in range(100):
        events.append(made(f"ProfilerStep#{step}", ANNOTATION, 1, 1000 * step, 1000))
        events.append(made(f"aten::op{step}", OPERATOR, 1, 1000 * step, 500 + step))
    analysis = analyse_rank(columns_of(events), rank=0)
    (rank,) = summary_of(analyse_cluster([analysis]), {}, [])["ranks"]
    assert len(rank["critical_path"]) == PATH_MAX + 1
    assert rank["critical_path"][-1]["name"] == REST
    assert sum(each["ns"] for each in rank["critical_path"]) == rank["window_ns"] == 100_000
    assert rank["steps"]["count"] == 100
    assert len(rank["steps"]["numbers"]) == len(rank["steps_breakdown"]) == STEPS_MAX


def test_a_trace_without_work_has_nulls_not_zeros():
    """What could not be evaluated is null or empty, and the reason is there."""
    analysis = analyse_rank(columns_of([made("x", ANNOTATION, 1, 0, 0)]), rank=0)
    summary = summary_of(analyse_cluster([analysis]), {}, [])
    (rank,) = summary["ranks"]
    assert (rank["window_ns"], rank["critical_path"], rank["patterns"], rank["roofline"]) == (0, [], [], None)
    assert (rank["critical_path_guessed_ratio"], rank["components"]) == (None, None)
    assert [each["rule"] for each in rank["not_evaluated"]] == ["all rules"]


def test_many_ranks_have_fewer_patterns_each():
    """The patterns of a thousand ranks take no more room than those of two hundred."""
    events = [made(f"aten::op{at}", OPERATOR, 1, 1000 * at, 900) for at in range(150)]
    analysis = analyse_rank(columns_of(events), rank=0)
    counts = {}
    for ranks in (1, 1000):
        cluster = replace(analyse_cluster([analysis]), ranks=(analysis,) * ranks)
        counts[ranks] = len(summary_of(cluster, {}, [])["ranks"][0]["patterns"])
    assert counts == {1: 100, 1000: 20}


def test_a_rank_has_each_loss_once():
    """What is rolled up on each rank is one finding of all ranks, under the kernels of the one that loses most."""
    ranks = []
    for rank, subject in enumerate(("mul + add", "add + mul")):
        finding = Finding(bottleneck=CPU, cause="dispatch", ranks=(rank,), evidence=(), subject=subject, lost_ns=10**6)
        ranks.append(replace(analyse_rank(rank_columns(rank), rank=rank), findings=(finding,)))
    found = summary_of(analyse_cluster(ranks), {}, [])
    shown = [[each["subject"] for each in rank["findings"] if each["cause"] == "dispatch"] for rank in found["ranks"]]
    assert shown == [["mul + add"], ["add + mul"]]
    assert [each["ranks"] for each in found["findings"] if each["cause"] == "dispatch"] == [[0, 1]]
