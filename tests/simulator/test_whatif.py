"""Alternatives: healed, changed, searched; sorted, with gains that the forecasts themselves give."""

import pytest

from lockstep.simulator.spec import load_spec
from lockstep.simulator.whatif import Change, attributions, divisors, evaluate, variations

SPEC = """\
model: {type: gpt, layers: 8, hidden: 1024, heads: 16, sequence: 512, vocabulary: 1024}
batch: 64
strategy: {tp: 2, pp: 2, dp: 4, micro_batches: 4}
cluster:
  preset: HC2
  health: {links: {network/1: 0.3}, ranks: {5: 0.7}}
"""


@pytest.fixture
def spec():
    return load_spec(SPEC, "job")


def test_attribution_heals_each_and_all(spec):
    """Every sick element alone, all together; each gain is that of the healed job, and all is the largest."""
    changes = attributions(spec)
    assert [(change.name, change.heal) for change in changes] == [
        ("heal network/1", ("network/1",)),
        ("heal rank/5", ("rank/5",)),
        ("heal all", ("network/1", "rank/5")),
    ]
    found = evaluate(spec, changes)
    assert found[0].change.name == "heal all"
    now = spec.forecast().step_seconds
    for each in found:
        healed = spec.healed(*each.change.heal).forecast().step_seconds
        assert each.gain_ratio == pytest.approx(1 - healed / now)
    assert attributions(spec.healed()) == []


def test_the_round_trip_of_a_repair(spec):
    """Healing what was made sick gives the healthy job's step back, exactly (T18 without measurement)."""
    healthy = spec.healed()
    hurt = healthy.changed("cluster.health", {"ranks": {"3": 0.5}})
    (found,) = evaluate(hurt, attributions(hurt))
    assert found.forecast == healthy.forecast()


def test_other_batches_are_compared_by_token(spec):
    """A batch twice as large takes longer for a step and less for a token: it comes first."""
    found = evaluate(spec, [Change(name=str(batch), values={"batch": batch}) for batch in (32, 64, 128)])
    assert [each.change.name for each in found] == ["128", "64", "32"]
    assert found[1].gain_ratio == 0.0
    assert found[0].forecast.step_seconds > found[1].forecast.step_seconds


def test_out_of_memory_comes_last_and_what_cannot_be_after_it(spec):
    """However fast, what does not fit is no answer; what cannot be is reported with its reason."""
    peaks = [max(spec.changed("strategy.recompute", what).forecast().peak_memory_bytes) for what in ("full", "none")]
    small = spec.changed("cluster.device", {"memory_bytes": sum(peaks) / 2})
    changes = [
        Change(name="bad", values={"batch": 63}),
        Change(name="full", values={"strategy.recompute": "full"}),
        Change(name="none", values={"strategy.recompute": "none"}),
    ]
    found = evaluate(small, changes)
    assert [each.change.name for each in found] == ["full", "none", "bad"]
    assert [each.forecast.out_of_memory for each in found[:2]] == [False, True]
    assert found[1].forecast.step_seconds < found[0].forecast.step_seconds
    assert "multiple of 16" in found[2].refused


def test_progress_is_reported(spec):
    """Each alternative is counted as it is done."""
    progress = []
    evaluate(spec, attributions(spec), on_done=lambda done, count: progress.append((done, count)))
    assert progress == [(1, 3), (2, 3), (3, 3)]


def test_a_running_job_is_varied_one_thing_at_a_time(spec):
    """Batch, micro-batches, buckets, tensor and pipeline degrees, with data parallelism taking the rest of the ranks."""
    changes = {change.name: change for change in variations(spec)}
    assert {"batch=32", "batch=128", "micro_batches=2", "micro_batches=8", "one bucket"} <= changes.keys()
    assert changes["tp=4 dp=2"].values == {"strategy.tp": 4, "strategy.dp": 2}
    assert changes["pp=1 dp=8"].of(spec).degrees.ranks == spec.degrees.ranks


def test_divisors():
    """Least first."""
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
