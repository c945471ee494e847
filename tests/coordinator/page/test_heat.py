"""The map's figures: levels, scale, marks, and which rank is shown as worst."""

import base64

import numpy as np
import pytest

from coordinator.decide.explain import ExplanationContext
from coordinator.page.heat import MISSING, heat_map, quantised, slowest
from coordinator.page.lines import LINES_MAX, kinds_of, spans_text
from coordinator.page.rank_figures import figures
from coordinator.settings.policy import Policy
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_store import incident


def scene(degrees="tp=2,dp=4", steps=20, keep=12, rank=5, **fault):
    scenario = Scenario(degrees=degrees, steps=steps)
    recording = generate(scenario.with_fault("compute", rank, seconds=0.3, begin=12, **fault))
    rows = tuple(recording.rows())[-keep:]
    return ExplanationContext(
        rows=rows, topology=recording.topology, policy=Policy(), hostname=lambda rank: f"host-{rank // 4}"
    )


def cells(answer, name="self"):
    quantity = answer["quantities"][name]
    levels = np.frombuffer(base64.b64decode(quantity["cells"]), dtype=np.uint8).astype(float)
    levels[levels == MISSING] = np.nan
    span = quantity["high_seconds"] - quantity["low_seconds"]
    return (quantity["low_seconds"] + levels / 254 * span).reshape(-1, len(answer["steps"]))


def test_cells_are_the_ranks_own_work_and_waiting():
    """Within one level of what was measured, in the order of the rows; the slow rank works longer and waits less."""
    watched = scene()
    answer = heat_map(watched, (), "node")
    measured = np.stack([row.self_seconds for row in watched.rows]).T
    step = (answer["quantities"]["self"]["high_seconds"] - answer["quantities"]["self"]["low_seconds"]) / 254
    assert answer["rows"]["ranks"] == [str(rank) for rank in range(8)]
    assert np.abs(cells(answer) - measured).max() <= step
    assert answer["steps"] == list(range(8, 20))
    assert cells(answer)[5, -1] > 1.5 * cells(answer)[4, -1]
    assert cells(answer, "wait")[5, -1] < cells(answer, "wait")[6, -1]
    assert slowest(watched)[0]["rank"] == 5
    assert slowest(watched)[0]["excess_ratio"] == pytest.approx(0.3 / 0.432, rel=0.1)


def test_rows_stand_by_domain():
    """Grouped by dp: ranks of one domain are neighbours, and each group states who is in it."""
    answer = heat_map(scene(), (), "dp")
    assert [group["ranks"] for group in answer["groups"]] == ["0, 2 ... 6", "1, 3 ... 7"]
    assert answer["rows"]["ranks"] == ["0", "2", "4", "6", "1", "3", "5", "7"]
    assert answer["rows"]["domains"][-1] == "tp3 dp1"
    assert kinds_of(scene()) == ["node", "tp", "dp"]


def test_noise_does_not_look_like_a_fault():
    """A tenth of the median to both sides at least; what was not measured is no level."""
    answer = heat_map(scene(degrees="dp=4", steps=10, keep=8, rank=0), (), "node")
    low, high = (answer["quantities"]["self"][f"{end}_seconds"] for end in ("low", "high"))
    assert high / low > 1.2
    assert quantised(np.array([np.nan, 0.0, 1.0, 9.0]), 0.0, 1.0).tolist() == [MISSING, 0, 254, 254]


@pytest.mark.parametrize(("onset", "column"), [(3, -1), (12, 4), (8, 0)])
def test_incidents_are_marked_at_their_onset(onset, column):
    """On their ranks, in the column of the step; before the first one shown, they state that."""
    (mark,) = heat_map(scene(), [incident(1, ranks=(1, 5), onset_step=onset)], "dp")["incidents"]
    assert (mark["column"], mark["rows"]) == (column, [[4, 4], [6, 6]])


def test_a_large_run_has_a_bounded_map_that_states_it():
    """10,240 ranks: the slow one and an incident's have their own rows, the others are medians, all within 512 rows."""
    ranks, steps = 10_240, 25
    small = scene(degrees="dp=4", steps=steps, keep=steps, rank=0)
    topology = generate(Scenario(degrees="tp=8,dp=1280", steps=1)).topology
    rng = np.random.default_rng(3)
    rows = []
    for row in small.rows:
        own = rng.normal(0.4, 0.002, ranks).astype(np.float32)
        own[7777] += 0.2
        more = {"ranks": np.arange(ranks), "self_seconds": own, "duration": np.full(ranks, 0.7, np.float32)}
        rows.append(type(row)(**{name: getattr(row, name) for name in row.__slots__} | more))
    large = ExplanationContext(
        rows=tuple(rows), topology=topology, policy=Policy(), hostname=lambda rank: f"host-{rank // 8}"
    )
    for by in ("node", "dp", "tp"):
        answer = heat_map(large, [incident(1, ranks=(4242,), onset_step=20)], by)
        shown = answer["rows"]["ranks"]
        assert len(shown) <= LINES_MAX
        assert {"7777", "4242"} <= set(shown)
        assert sum(answer["rows"]["counts"]) == ranks
        assert "10240 ranks" in answer["note"]
        assert len(base64.b64decode(answer["quantities"]["self"]["cells"])) == len(shown) * steps
        assert np.nanmax(cells(answer)[shown.index("7777")]) > 0.55
        assert np.nanmax(cells(answer)[np.array(answer["rows"]["counts"]) > 1]) < 0.42


def test_before_the_first_step_there_is_nothing():
    """No rows, no figures, an empty map."""
    empty = ExplanationContext(rows=(), topology=scene().topology, policy=Policy(), hostname=str)
    assert figures(empty) is None
    assert (heat_map(empty, (), "node")["steps"], slowest(empty)) == ([], [])


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((3,), "3"), (range(8), "0-7"), ((0, 8), "0, 8"), (range(3, 60, 8), "3, 11 ... 59"), ((1, 2, 9), "1-2, 9")],
)
def test_ranks_are_written_as_people_do(ranks, text):
    """Ranges, strides, and single ones."""
    assert spans_text(tuple(ranks)) == text
