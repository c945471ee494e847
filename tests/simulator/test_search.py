"""The search: no worse than now, the best of each layout, within its time and with a reserve of memory."""

import itertools

import pytest

from lockstep.contracts.errors import LockstepError
from lockstep.simulator.search import MEMORY_RESERVE_RATIO, search
from lockstep.simulator.spec import load_spec

FEW = """\
model: {type: gpt, layers: 2, hidden: 256, heads: 4, sequence: 256, vocabulary: 1024}
batch: 8
strategy: {tp: 2, dp: 2, micro_batches: 2}
cluster:
  device: {name: A100}
  levels: [{name: NVLink, fanout: 4, bytes_per_second: 300e9}]
"""
LONG = FEW.replace("sequence: 256", "sequence: 4096, fused_attention: true")
IMPOSSIBLE = FEW.replace("tp: 2, dp: 2, micro_batches: 2", "tp: 1, pp: 2, virtual: 2, dp: 2, micro_batches: 1")


@pytest.fixture
def few():
    """Return a job of four ranks, whose spreads are few."""
    return load_spec(FEW, "few")


def layout(each):
    return tuple(each.change.values[f"strategy.{name}"] for name in ("tp", "cp", "ep", "dp", "pp"))


def test_a_search_finds_no_worse_than_now(few):
    """The best is at least as good as the job is; all use as many ranks and the same batch, sorted by time."""
    found, is_whole = search(few)
    assert is_whole
    assert found[0].gain_ratio >= 0
    for each in found:
        changed = each.change.of(few)
        assert changed.degrees.ranks == 4
        assert changed.batch == few.batch
        assert each.forecast == changed.forecast()
    times = [each.seconds_per_token for each in found if not each.forecast.out_of_memory]
    assert times == sorted(times)


def test_each_layout_is_shown_once(few):
    """Five ways to divide four ranks by tp, pp and dp, each with its best micro-batches, ZeRO stage and buckets."""
    found, _ = search(few)
    layouts = [layout(each) for each in found]
    assert sorted(layouts) == [(1, 1, 1, 2, 2), (1, 1, 1, 4, 1), (2, 1, 1, 1, 2), (2, 1, 1, 2, 1), (4, 1, 1, 1, 1)]
    own = next(each for each in found if layout(each) == (2, 1, 1, 2, 1))
    assert own.forecast.step_seconds <= few.forecast().step_seconds


def test_long_sequences_are_divided_over_context_parallel_ranks():
    """Where a rank keeps 1,024 tokens: cp 2 and 4 of 4,096 tokens, none of 256."""
    found, _ = search(load_spec(LONG, "long"))
    assert {each.change.values["strategy.cp"] for each in found} == {1, 2, 4}


def test_zero_is_tried_where_memory_is_short(few):
    """A device on which data parallelism fits only with divided optimizer and weights gets a ZeRO stage."""
    spread = {"strategy.tp": 1, "strategy.dp": 4, "strategy.micro_batches": 2, "strategy.recompute": "full"}
    needed = [
        few.changed_by({**spread, "strategy.zero": zero}).forecast().stage_memory_bytes[0].needed for zero in (0, 3)
    ]
    small = few.changed("cluster.device", {"name": "A100", "memory_bytes": sum(needed) / 2, "unusable_ratio": 0})
    found, _ = search(small)
    parallel = next(each for each in found if layout(each) == (1, 1, 1, 4, 1))
    assert not parallel.forecast.out_of_memory
    assert parallel.change.values["strategy.zero"] > 0
    assert "zero=" in parallel.change.name


def test_a_search_recomputes_no_more_than_it_must(few):
    """Where no recomputation fits nothing is recomputed; where memory is short, spreads that fit come first."""
    found, _ = search(few)
    assert {each.change.values["strategy.recompute"] for each in found} == {"none"}
    peaks = sorted(max(each.forecast.peak_memory_bytes) for each in found)
    short, _ = search(few.changed("cluster.device.memory_bytes", peaks[len(peaks) // 3]))
    fitting = [each for each in short if not each.forecast.out_of_memory]
    assert fitting
    assert short[: len(fitting)] == fitting


def test_a_search_leaves_a_reserve_of_memory(few):
    """Of two ways that fit, one to the byte, the other with the reserve free is shown, and such layouts come first."""
    bare = {"name": "A100", "context_bytes": 0, "communicator_bytes": 0, "unusable_ratio": 0}
    ample = few.changed("cluster.device", bare)
    wide = next(each for each in search(ample)[0] if layout(each) == (1, 1, 1, 4, 1))
    needed = max(each.needed for each in wide.forecast.stage_memory_bytes)
    tight = few.changed("cluster.device", {**bare, "memory_bytes": needed})
    assert not wide.change.of(tight).forecast().out_of_memory
    found, _ = search(tight)
    again = next(each for each in found if layout(each) == layout(wide))
    assert again.forecast.free_memory_ratio >= MEMORY_RESERVE_RATIO
    assert again.change.values != wide.change.values
    has_reserve = [each.forecast.free_memory_ratio >= MEMORY_RESERVE_RATIO for each in found]
    assert has_reserve == sorted(has_reserve, reverse=True)


def test_a_search_reports_when_it_stopped(few):
    """Within its limit it tries that many spreads and no more, and counts them of all."""
    counted = []
    _, is_whole = search(few, limit=5, on_done=lambda done, count: counted.append((done, count)))
    assert not is_whole
    assert counted == [(done, 5) for done in range(1, 6)]


def test_a_search_ends_in_time(few):
    """A clock that gains a second at each look ends it after as many spreads; what was found is returned."""
    ticks = itertools.count()
    found, is_whole = search(few, seconds_max=3.5, clock_s=lambda: float(next(ticks)))
    assert not is_whole
    assert 1 <= len(found) <= 3


def test_a_job_that_cannot_be_is_refused():
    """Where the job itself cannot be simulated there is nothing to compare with."""
    with pytest.raises(LockstepError, match="micro-batches"):
        search(load_spec(IMPOSSIBLE.replace("layers: 2", "layers: 4"), "x"))
