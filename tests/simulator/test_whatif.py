"""Alternatives: healed, changed, searched; sorted, with gains that the forecasts themselves give."""

import pytest

from lockstep.contracts.errors import LockstepError
from lockstep.simulator.spec import load_spec
from lockstep.simulator.whatif import MEMORY_RESERVE_RATIO, Change, attributions, divisors, evaluate, search

SPEC = """\
model: {type: gpt, layers: 8, hidden: 1024, heads: 16, sequence: 512, vocabulary: 1024}
batch: 64
strategy: {tp: 2, pp: 2, dp: 4, micro_batches: 4}
cluster:
  preset: HC2
  health: {links: {network/1: 0.3}, ranks: {5: 0.7}}
"""


FEW = """\
model: {type: gpt, layers: 2, hidden: 256, heads: 4, sequence: 256, vocabulary: 1024}
batch: 8
strategy: {tp: 2, dp: 2, micro_batches: 2}
cluster:
  device: {name: A100}
  levels: [{name: NVLink, fanout: 4, bytes_per_second: 300e9}]
"""


@pytest.fixture
def spec():
    return load_spec(SPEC, "job")


@pytest.fixture
def few():
    """Return a job of four ranks, whose spreads are few."""
    return load_spec(FEW, "few")


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
    """However fast, what does not fit is no answer; what cannot be is told with its reason."""
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


def test_progress_is_told(spec):
    """Each alternative is counted as it is done."""
    heard = []
    evaluate(spec, attributions(spec), on_done=lambda done, count: heard.append((done, count)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_a_search_finds_no_worse_than_now(few):
    """Among the spreads is the job's own; the best is at least as good, and all use as many ranks."""
    found, is_whole = search(few)
    assert is_whole
    assert found[0].gain_ratio >= 0
    for each in found:
        changed = each.change.of(few)
        assert changed.degrees.ranks == 4
        assert changed.batch == few.batch
        assert 4 % changed.degrees.tp == 0
    own = {"strategy.tp": 2, "strategy.pp": 1, "strategy.dp": 2, "strategy.micro_batches": 2}
    assert any(own.items() <= each.change.values.items() for each in found)
    times = [each.seconds_per_token for each in found if not each.forecast.out_of_memory]
    assert times == sorted(times)
    assert len({str(sorted(each.change.values.items(), key=str)) for each in found}) == len(found)


def test_a_search_recomputes_no_more_than_it_must(few):
    """Where no recomputation fits nothing is recomputed; where memory is short, spreads that fit come first."""
    found, _ = search(few)
    assert {each.change.values["strategy.recompute"] for each in found} == {"none"}
    peaks = sorted(max(each.forecast.peak_memory_bytes) for each in found)
    small = few.changed("cluster.device.memory_bytes", peaks[len(peaks) // 3])
    short, _ = search(small)
    fitting = [each for each in short if not each.forecast.out_of_memory]
    assert fitting
    assert short[: len(fitting)] == fitting
    assert len({each.change.values["strategy.recompute"] for each in short}) > 1


def test_a_search_leaves_a_reserve_of_memory(few):
    """A spread that fits to the byte is recomputed where that leaves the reserve free."""
    widest = max(search(few)[0], key=lambda each: max(each.forecast.peak_memory_bytes))
    needed = max(each.needed for each in widest.forecast.stage_memory_bytes)
    tight = few.changed("cluster.device", {"name": "A100", "memory_bytes": needed, "unusable_ratio": 0})
    spread = {name: value for name, value in widest.change.values.items() if "bucket" not in name}
    assert not tight.changed_by(spread).forecast().out_of_memory
    found, _ = search(tight)
    for each in found:
        values = {name: value for name, value in each.change.values.items() if "bucket" not in name}
        if {**values, "strategy.recompute": "none"} == spread:
            assert values["strategy.recompute"] != "none"
            break
    else:
        pytest.fail("the widest spread was not searched")
    assert widest.forecast.free_memory_ratio >= MEMORY_RESERVE_RATIO


def test_a_search_says_when_it_stopped(few):
    """Within its limit it tries that many spreads and no more."""
    heard = []
    _, is_whole = search(few, limit=5, on_done=lambda done, _: heard.append(done))
    assert not is_whole
    assert heard[:5] == [1, 2, 3, 4, 5]


def test_a_job_that_cannot_be_is_refused():
    """Where the job itself cannot be simulated there is nothing to compare with."""
    with pytest.raises(LockstepError, match="micro-batches"):
        search(
            load_spec(
                SPEC.replace("pp: 2", "pp: 2, virtual: 2").replace(
                    "dp: 4, micro_batches: 4", "dp: 4, micro_batches: 1"
                ),
                "x",
            )
        )


def test_divisors():
    """Least first."""
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
