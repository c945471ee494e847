"""Why a whole run is slower."""

import pytest

from coordinator.detect.ranks.components import medians, middling
from coordinator.detect.runs.run_cause import explain_run
from coordinator.settings.policy import CausePolicy
from tests.coordinator.scenarios import Scenario, generate

POLICY = CausePolicy()
BEFORE = {"compute": 0.4, "data": 0.01, "host": 0.02, "gc": 0.002, "self": 0.432, "wait": 0.06}


def grown(**seconds):
    """Return a step in which parts take so much longer, own work with them."""
    now = {name: value + seconds.get(name, 0.0) for name, value in BEFORE.items()}
    return now | {"self": BEFORE["self"] + sum(value for name, value in seconds.items() if name != "wait")}


@pytest.mark.parametrize("part", ["compute", "data", "host", "gc"])
def test_what_all_ranks_do_longer_is_the_cause(part):
    """A part that grew on every rank is named with high confidence, in a job that is generated too."""
    rows = list(generate(Scenario(degrees="tp=2,pp=2,dp=2").with_fault(part, *range(8), seconds=0.05, begin=60)).rows())
    found = explain_run(middling(medians(rows[50:60])), middling(medians(rows[60:66])), POLICY)
    assert (found.cause, found.confidence) == (part, "high")
    assert found.growth[part] == pytest.approx(0.05, abs=0.01)
    assert found.evidence[0].startswith(f"{part}: ")


@pytest.mark.parametrize(("asleep", "cause"), [(False, "compute"), (True, "off_cpu")])
def test_a_run_that_sleeps_is_told_from_one_that_computes(asleep, cause):
    """All ranks slower in one phase: the evidence names it, and whether their threads were on the CPU."""
    scenario = Scenario(degrees="dp=8").with_fault("backward", *range(8), seconds=0.05, begin=60, asleep=asleep)
    rows = list(generate(scenario).rows())
    found = explain_run(middling(medians(rows[50:60])), middling(medians(rows[60:66])), POLICY)
    assert (found.cause, found.confidence) == (cause, "high")
    assert found.evidence[0].startswith("compute: ")
    assert found.evidence[1].startswith("backward: ")
    assert found.numbers["backward_growth_seconds"] == pytest.approx(0.05, abs=0.01)
    assert found.numbers["off_cpu_growth_seconds"] == pytest.approx(0.05 * asleep, abs=0.01)


def test_compute_is_the_cause_though_waiting_grows_more():
    """A pipeline's bubble grows with its stages: a third of the growth is enough, with less confidence."""
    found = explain_run(BEFORE, grown(compute=0.02, wait=0.04), POLICY)
    assert (found.cause, found.confidence) == ("compute", "low")
    assert found.share == pytest.approx(1 / 3)


def test_own_work_below_a_quarter_is_no_cause():
    """A fault of the links makes own work look a little longer, not a quarter of what the step grew by."""
    found = explain_run(BEFORE, grown(compute=0.019, wait=0.081), POLICY)
    assert (found.cause, found.confidence) == ("link", "high")
    assert explain_run(BEFORE, grown(compute=0.026, wait=0.074), POLICY).cause == "compute"


def test_two_parts_that_grew_alike_are_not_told_with_confidence():
    """The larger of two is named, and that the other one is as large."""
    found = explain_run(BEFORE, grown(data=0.051, compute=0.049), POLICY)
    assert (found.cause, found.confidence) == ("data", "low")
    assert list(found.growth)[:2] == ["data", "compute"]
    assert len(found.evidence) == 2


def test_waiting_for_a_few_slow_ranks_is_no_slow_link():
    """What the slowest ranks work longer than their peers explains the others' waiting."""
    now = grown(wait=0.1)
    assert explain_run(BEFORE, now, POLICY).cause == "link"
    assert explain_run(BEFORE, now, POLICY, few_ranks_seconds=0.09).cause == "unknown"
    assert explain_run(BEFORE, now, POLICY, unsynchronised_gc_seconds=0.09).cause == "gc"


def test_a_step_that_did_not_grow_has_no_cause():
    """Nothing to explain, and parts that were measured on one side only, are unknown."""
    assert explain_run(BEFORE, BEFORE, POLICY).cause == "unknown"
    assert explain_run({}, BEFORE, POLICY).cause == "unknown"
    assert explain_run(BEFORE, {"compute": 0.5}, POLICY).cause == "compute"


def test_numbers_hold_what_the_words_say():
    """Growth in seconds by part, and of the step."""
    found = explain_run(BEFORE, grown(host=0.03), POLICY)
    assert found.numbers["host_growth_seconds"] == pytest.approx(0.03)
    assert found.numbers["step_growth_seconds"] == pytest.approx(0.03)
    assert found.evidence == ("host: 20.0 ms a step before, 50.0 ms now, 100% of what the step grew by",)


def test_what_another_rank_does_longer_in_each_step_is_no_link():
    """A loader that jitters on all ranks: most of the step's growth is waiting for the longest rank."""
    now = grown(data=0.02, wait=0.2)
    assert explain_run(BEFORE, now, POLICY).cause == "link"
    found = explain_run(BEFORE, now, POLICY, longest_growth={"data": 0.21, "self": 0.21})
    assert (found.cause, found.confidence) == ("data", "high")
    assert explain_run(BEFORE, now, POLICY, longest_growth={"data": 0.03, "self": 0.03}).cause == "link"


@pytest.mark.parametrize(
    ("ratio", "collecting_seconds", "cause"), [(0.5, 0.0, "compute"), (0.1, 0.4, "gc"), (0.0, 0.1, "gc")]
)
def test_what_slows_all_work_is_not_blamed_on_the_collections_of_every_step(ratio, collecting_seconds, cause):
    """Own work that takes longer as a whole collects for longer; the evidence holds what was measured."""
    before = BEFORE | {"gc": 0.6, "self": 1.03}
    more = {"compute": 0.4 * ratio, "host": 0.02 * ratio, "gc": 0.6 * ratio + collecting_seconds}
    now = before | {name: before[name] + seconds for name, seconds in more.items()}
    now["self"] = before["self"] + sum(more.values())
    found = explain_run(before, now, POLICY)
    assert found.cause == cause
    assert found.growth["gc"] == pytest.approx(more["gc"])
