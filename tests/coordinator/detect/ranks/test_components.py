"""Which part of a rank's work is to blame."""

import numpy as np
import pytest

from coordinator.detect.ranks.components import Explainer, medians, parts_of, slowed_alike
from coordinator.detect.ranks.groups import Groups
from coordinator.settings.policy import CausePolicy
from tests.coordinator.scenarios import Scenario, generate

POLICY = CausePolicy()


def slow(*columns, ranks=8):
    mask = np.zeros(ranks, dtype=bool)
    mask[list(columns)] = True
    return mask


def explain(rows, slow_r, stages, typical, replicas=None):
    """Explain slow ranks from their last steps; with `replicas`, they are slower than their own replica."""
    explainer = Explainer(stages, replicas)
    return explainer.explain(medians(rows), slow_r, slow_r, typical, POLICY, slow_parts=lambda _: ())


@pytest.mark.parametrize("part", ["compute", "data", "gc", "host"])
def test_the_part_that_grew_is_the_cause(part):
    """Each part that makes a rank slow is named, from three slow steps, with both sides' figures."""
    rows = list(generate(Scenario().with_fault(part, 3, seconds=0.05, begin=60)).rows())
    explained = explain(rows[60:63], slow(3), Groups([0] * 8), {})
    assert explained.keys() == {3}
    assert (explained[3].cause, explained[3].confidence) == (part, "high")
    assert explained[3].own[part] - explained[3].peers[part] == pytest.approx(0.05, abs=0.01)
    assert explained[3].own["wait"] < explained[3].peers["wait"]


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("asleep", [False, True])
def test_the_phase_of_compute_that_grew_is_named(phase, asleep):
    """A rank that computes more is distinguished from one that sleeps, and in either which phase of compute holds the excess."""
    scenario = Scenario().with_fault(phase, 3, seconds=0.05, begin=60, asleep=asleep)
    explained = explain(list(generate(scenario).rows())[60:63], slow(3), Groups([0] * 8), {})[3]
    assert (explained.cause, explained.confidence) == ("off_cpu" if asleep else "compute", "high")
    assert (explained.component, explained.phase) == ("compute", phase)
    assert explained.own[phase] - explained.peers[phase] == pytest.approx(0.05, abs=0.01)
    off_cpu = explained.own["off_cpu"] - explained.peers["off_cpu"]
    assert off_cpu == pytest.approx(0.05 if asleep else 0.0, abs=0.01)


def test_a_rank_that_computes_more_of_everything_has_no_phase():
    """No phase holds most of an excess that is spread over all of them as they are."""
    scenario = Scenario().with_fault("compute", 3, seconds=0.05, begin=60)
    explained = explain(list(generate(scenario).rows())[60:63], slow(3), Groups([0] * 8), {})[3]
    assert (explained.cause, explained.phase) == ("compute", "")


def test_a_rank_that_sleeps_between_its_steps():
    """Sleep in host time or in a collection is reported as sleep, with where; a wait for data stays the loader's."""
    for part, cause in (("host", "off_cpu"), ("data", "data"), ("gc", "off_cpu")):
        scenario = Scenario().with_fault(part, 3, seconds=0.05, begin=60, asleep=True)
        explained = explain(list(generate(scenario).rows())[60:63], slow(3), Groups([0] * 8), {})[3]
        assert (explained.cause, explained.component, explained.phase) == (cause, part, "")


def test_a_rank_that_waits_less_for_data_because_it_sleeps():
    """Its loader has time to fetch ahead: its excess is less than its sleep, and is sleep all the same."""
    scenario = Scenario(data=0.04).with_fault("forward", 3, seconds=0.08, begin=60, asleep=True)
    rows = list(generate(scenario.with_fault("data", 3, seconds=-0.04, begin=60)).rows())
    assert explain(rows[60:63], slow(3), Groups([0] * 8), {})[3].cause == "off_cpu"


def test_half_an_excess_off_the_cpu_is_no_sleep():
    """A rank that computes more on a core that it shares is descheduled in what it computes more."""
    scenario = Scenario().with_fault("forward", 3, seconds=0.03, begin=60)
    rows = list(generate(scenario.with_fault("forward", 3, seconds=0.03, begin=60, asleep=True)).rows())
    assert explain(rows[60:63], slow(3), Groups([0] * 8), {})[3].cause == "compute"


@pytest.mark.parametrize(("asleep_seconds", "cause"), [(0.04, "compute"), (0.05, "off_cpu")])
def test_where_all_ranks_share_cores_a_sleep_must_be_plainer(asleep_seconds, cause):
    """Peers that are descheduled for three quarters of their work: so is what a rank computes more, for as much."""
    computing = 0.05 - asleep_seconds
    scenario = Scenario().with_fault("forward", 3, seconds=computing, begin=60)
    scenario = scenario.with_fault("forward", 3, seconds=asleep_seconds, begin=60, asleep=True)
    rows = list(generate(scenario).rows())[60:63]
    for row in rows:
        row.views["off_cpu"] += 0.75 * scenario.compute
    assert explain(rows, slow(3), Groups([0] * 8), {})[3].cause == cause


@pytest.mark.parametrize(("computing_seconds", "cause"), [(0.02, "compute"), (0.005, "off_cpu")])
def test_a_rank_whose_cpu_time_doubles_computes_more(computing_seconds, cause):
    """On a crowded machine it is off the CPU for most of what it computes more, while the short work of peers is not."""
    scenario = Scenario(compute=0.01, host=0.001, gc=0.0).with_fault("forward", 3, seconds=computing_seconds, begin=60)
    scenario = scenario.with_fault("forward", 3, seconds=0.08, begin=60, asleep=True)
    rows = list(generate(scenario).rows())[60:63]
    assert explain(rows, slow(3), Groups([0] * 8), {})[3].cause == cause


def test_without_views_compute_is_all_that_is_known():
    """Records of agents that do not measure them, or of some ranks only, have the component as their cause."""
    rows = list(generate(Scenario().with_fault("forward", 3, seconds=0.05, begin=60, asleep=True)).rows())
    for row in rows:
        row.views.clear()
    explained = explain(rows[60:63], slow(3), Groups([0] * 8), {})[3]
    assert (explained.cause, explained.component, explained.phase) == ("compute", "compute", "")
    assert "off_cpu" not in explained.own


def test_views_that_some_rows_lack():
    """A view counts where at least one of the last rows has it."""
    rows = list(generate(Scenario().with_fault("forward", 3, seconds=0.05, begin=60, asleep=True)).rows())[60:63]
    rows[2].views.clear()
    assert explain(rows, slow(3), Groups([0] * 8), {})[3].cause == "off_cpu"


def test_slow_peers_are_no_reference():
    """With seven of eight ranks slow, the eighth is the measure."""
    rows = list(generate(Scenario().with_fault("data", *range(7), seconds=0.05)).rows())
    explained = explain(rows[-3:], slow(*range(7)), Groups([0] * 8), {})
    assert {item.cause for item in explained.values()} == {"data"}
    assert len(explained) == 7


def test_a_rank_alone_in_its_stage_is_compared_with_its_past():
    """Where no one does the same work, what the rank's steps used to consist of is the reference."""
    rows = list(generate(Scenario(degrees="pp=2").with_fault("host", 1, seconds=0.05, begin=60)).rows())
    explained = explain(rows[60:63], slow(1, ranks=2), Groups([0, 1]), parts_of(rows[50]))
    assert explained[1].cause == "host"


def test_an_uneven_batch_is_not_blamed_for_a_slow_loader():
    """Compute that the whole replica shares is no part of what makes one of its ranks slower than the others."""
    scenario = Scenario(degrees="tp=4,dp=4", sequence_sigma=0.12).with_fault("data", 5, seconds=0.04, begin=60)
    rows = list(generate(scenario).rows())
    longest = max(range(60, 118), key=lambda step: rows[step].components["compute"][4])
    replicas = Groups([rank // 4 for rank in range(16)])
    explained = explain(rows[longest : longest + 1], slow(5, ranks=16), Groups([0] * 16), {}, replicas)[5]
    assert explained.cause == "data"
    alone = explain(rows[longest : longest + 1], slow(5, ranks=16), Groups([0] * 16), {})[5]
    assert alone.cause == "compute"


@pytest.mark.parametrize("ranks", [8, 16])
def test_a_slow_loader_is_not_compared_with_those_that_load_for_others(ranks):
    """Once one rank is slow, those that load for their groups are most of the healthy ones: they are no measure."""
    rows = list(
        generate(Scenario(degrees=f"tp=2,dp={ranks // 2}").with_fault("data", 5, seconds=0.02, begin=60)).rows()
    )
    own, loads = medians(rows[60:63]), np.arange(ranks) % 2 == 0
    own["data"] = own["data"] + np.where(loads, 0.02, 0.0)
    own["self"] = own["self"] + np.where(loads, 0.02, 0.0)
    explainer = Explainer(Groups([0] * ranks), None, Groups(np.arange(ranks) % 2))
    mask = slow(5, ranks=ranks)
    explained = explainer.explain(own, mask, mask, {}, POLICY, differs_R=loads, slow_parts=lambda _: ())[5]
    assert explained.cause == "data"
    assert explained.own["data"] - explained.peers["data"] == pytest.approx(0.02, abs=0.005)


def test_an_excess_that_nothing_holds_is_unknown():
    """Parts that were not measured cannot be blamed."""
    rows = list(generate(Scenario().with_fault("data", 3, seconds=0.05, begin=60)).rows())
    for row in rows:
        row.components["data"][:] = np.nan
    explanation = explain(rows[60:63], slow(3), Groups([0] * 8), {})[3]
    assert (explanation.cause, explanation.confidence) == ("unknown", "low")
    assert "data" not in explanation.own


@pytest.mark.parametrize(
    ("slower_ratio", "collecting_seconds", "cause"),
    [(0.5, 0.0, "compute"), (2.0, 0.0, "compute"), (0.5, 0.05, "compute"), (0.1, 0.5, "gc"), (0.0, 0.1, "gc")],
)
def test_a_slow_core_is_not_blamed_on_the_collections_of_every_step(slower_ratio, collecting_seconds, cause):
    """A job that collects in each step does so for longest: only what its collections grow by alone is theirs."""
    gc_seconds = 0.6  # of a step whose other work is 0.4 s
    scenario = Scenario().with_fault("gc", *range(8), seconds=gc_seconds, begin=0)
    scenario = scenario.with_fault("gc", 3, seconds=gc_seconds * slower_ratio + collecting_seconds, begin=60)
    others_seconds = 0.4 * slower_ratio
    rows = list(generate(scenario.with_fault("compute", 3, seconds=others_seconds, begin=60)).rows())
    assert explain(rows[60:63], slow(3), Groups([0] * 8), {})[3].cause == cause


@pytest.mark.parametrize(
    ("more_gc_ms", "off_cpu_ms", "component"),
    [(22.7, 13.1, "compute"), (79.7, 72.9, "compute"), (43.3, 37.9, "compute"), (43.3, 5.0, "gc"), (79.7, None, "gc")],
)
def test_collections_that_are_descheduled_are_no_more_collections(more_gc_ms, off_cpu_ms, component):
    """Figures of ranks on cores that others share: on the CPU they collect 4 to 7 % longer. Unknown is not descheduled."""
    usual = {"compute": 0.0114, "host": 0.001, "gc": 0.1428}
    off_cpu_s = None if off_cpu_ms is None else off_cpu_ms / 1e3
    excess = slowed_alike({"compute": 0.0005, "host": 0.0, "gc": more_gc_ms / 1e3}, usual, off_cpu_s)
    assert max(excess, key=excess.get) == component
    assert sum(excess.values()) == pytest.approx(0.0005 + more_gc_ms / 1e3)


@pytest.mark.parametrize(
    ("usual_off_cpu_ms", "more_gc_ms", "off_cpu_ms", "component"),
    [
        (40.2, 38.8, 22.5, "compute"),  # a crowd that begins: seen with 20 processes on the other cores
        (0.0, 60.0, 33.0, "compute"),
        (40.2, 60.0, 16.0, "gc"),  # descheduled as the core's usual work is
        (75.0, 142.8, 71.4, "gc"),  # twice the collections on a core that is always shared
        (40.2, 38.8, None, "gc"),
    ],
)
def test_a_crowd_that_begins_slows_collections_on_the_cpu_as_well(usual_off_cpu_ms, more_gc_ms, off_cpu_ms, component):
    usual = {"compute": 0.0114, "host": 0.001, "gc": 0.1374, "self": 0.15, "off_cpu": usual_off_cpu_ms / 1e3}
    off_cpu_s = None if off_cpu_ms is None else off_cpu_ms / 1e3
    excess = slowed_alike({"compute": 0.0005, "host": 0.0, "gc": more_gc_ms / 1e3}, usual, off_cpu_s)
    assert max(excess, key=excess.get) == component
