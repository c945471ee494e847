"""What is written down of an incident: enough to follow the decision, little enough to keep."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coordinator.decide import events as ev
from coordinator.decide.explain import CHANGES_MAX, ExplanationContext, explain_instructions, explanation, history
from coordinator.detect.anomalies import CRASH, FLUCTUATION, HANG, SLOW_LINK
from coordinator.settings.policy import ExcessPolicy, Policy
from lockstep.contracts.domains import from_degrees
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_store import incident

BYTES_MAX = 8 << 10
EVENT = ev.TickEvent(unix_s=1.0, cause_id="step:69")


def scene(scenario, *, until=70, steps=32, **more):
    recording = generate(scenario)
    rows = list(recording.rows())[until - steps : until]
    values = {"rows": rows, "topology": recording.topology, "policy": Policy(), "hostname": lambda r: f"host{r}"}
    return ExplanationContext(**(values | more))


def opened(**more):
    values = {"explanation": {}, "onset_step": 60, "detected_step": 62, "ranks": (3,)}
    return incident(**(values | more))


def size(values):
    return len(json.dumps(values, allow_nan=False))


def test_a_slow_rank_is_explained_by_its_samples_and_its_peers():
    """Own work and reference step by step, peers by name, noise from before, thresholds in force, the rule in words."""
    described = explanation(opened(), scene(Scenario(degrees="dp=16").with_fault("compute", 3, seconds=0.06, begin=60)))
    samples = described["samples"]
    assert samples["steps"] == list(range(38, 70))
    own, reference = np.array(samples["own_seconds"]), np.array(samples["reference_seconds"])
    assert own[-10:] - reference[-10:] == pytest.approx(np.full(10, 0.06), abs=0.012)
    assert own[:22] == pytest.approx(reference[:22], rel=0.04)
    assert (described["reference"]["members"], described["reference"]["quantile"], described["reference"]["stage"]) == (
        16,
        0.3,
        0,
    )
    peers = described["reference"]["peers"]
    assert [peer["rank"] for peer in peers] == [0, 1, 2, 4, 5, 6, 7, 8]
    assert (peers[0]["hostname"], peers[0]["median_seconds"]) == ("host0", pytest.approx(0.432, rel=0.02))
    assert 0.001 < described["noise"]["sigma_ratio"] < 0.01
    assert described["noise"]["median_excess_ratio"] == pytest.approx(0.06 / 0.432, rel=0.1)
    assert described["thresholds"]["excess.floor_ratio"] == Policy().excess.floor_ratio
    assert "2.5%" in described["rule"]
    assert size(described) < BYTES_MAX


def test_the_rule_is_that_of_the_test_that_raised_the_alarm():
    """A part's test has a slack, a clip and a limit of its own, which the noise of the job raises."""
    own = {"floor_ratio": 0.05, "clip_sigmas": 3.46, "slack_sigmas": 1.0, "alarm_sigmas": 14.28}
    shown = scene(Scenario(degrees="dp=16").with_fault("compute", 3, seconds=0.06, begin=60))
    rule = explanation(opened(numbers=own, part="backward"), shown)["rule"]
    assert rule.startswith("backward, a part of own work longer than the reference by 5.0% or more")
    assert "(at most 3.46 a step, less 1) exceeds 14.3" in rule
    assert "(at most 6 a step, less 2) exceeds 11" in explanation(opened(), shown)["rule"]


def test_the_rule_names_the_part_that_alarmed_whatever_its_limits():
    """What the alarm is of does not follow from its numbers: a policy may give both tests the same slack."""
    scenario = Scenario(degrees="dp=16").with_fault("compute", 3, seconds=0.06, begin=60)
    policy = Policy(excess=ExcessPolicy(slack_sigmas=1.0))
    numbers = {"slack_sigmas": 1.0}
    of_part = explanation(opened(numbers=numbers, part="backward"), scene(scenario, policy=policy))["rule"]
    of_all = explanation(opened(numbers=numbers), scene(scenario, policy=policy))["rule"]
    assert of_part.startswith("backward, a part of own work longer")
    assert of_all.startswith("own work longer")


def test_what_a_replica_shares_is_shown_apart():
    """Under uneven batches, the reference alone would not show why a rank was named."""
    scenario = Scenario(degrees="tp=4,dp=4", sequence_sigma=0.12).with_fault("compute", 3, seconds=0.06, begin=60)
    samples = explanation(opened(), scene(scenario))["samples"]
    own, reference, shared = (np.array(samples[f"{name}_seconds"]) for name in ("own", "reference", "replica"))
    assert (own - reference - shared)[-10:] == pytest.approx(np.full(10, 0.06), abs=0.02)
    assert np.abs((own - reference)[:20]).max() > 0.02


def test_a_rank_without_peers_is_explained_by_its_past():
    """No reference is made up where no one does the same work."""
    described = explanation(opened(), scene(Scenario(degrees="pp=4").with_fault("compute", 3, seconds=0.06, begin=60)))
    assert "its own past" in described["reference"]["how"]
    assert "reference_seconds" not in described["samples"]
    assert (described["reference"]["peers"], described["noise"]) == ([], {})


def test_a_slow_link_is_explained_in_transfers():
    """Its transfers step by step, its past, and the other domains of its kind."""
    scenario = Scenario(degrees="tp=2,dp=4").with_fault("tp", 2, 3, seconds=0.03, begin=60)
    described = explanation(
        opened(kind=SLOW_LINK, cause="link", scope="group", domain=("tp", "tp1"), ranks=(2, 3)), scene(scenario)
    )
    assert described["reference"]["past_seconds"] == pytest.approx(0.05, rel=0.1)
    assert described["samples"]["own_seconds"][-1] == pytest.approx(0.08, rel=0.1)
    assert [peer["domain"] for peer in described["reference"]["peers"]] == ["tp0", "tp2", "tp3"]
    assert "link.effect_ratio" in described["thresholds"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kind": FLUCTUATION, "cause": "data", "numbers": {"baseline_step_seconds": 0.5}}, "fluctuation.floor_ratio"),
        ({"kind": SLOW_LINK, "cause": "link", "scope": "node"}, "link.job_share"),
        ({"kind": HANG, "cause": "unknown"}, "run.hang_steps"),
        ({"kind": "unsynchronised_gc", "cause": "gc"}, "run.recover_steps"),
    ],
)
def test_what_concerns_more_than_one_rank_or_domain_is_explained_by_the_steps(values, named):
    """Step durations, what they consist of, and the thresholds of its detector."""
    described = explanation(opened(domain=None, ranks=(), **values), scene(Scenario(degrees="dp=4")))
    assert described["samples"]["step_seconds"][0] == pytest.approx(0.48, rel=0.1)
    assert described["parts_seconds"]["compute"] == pytest.approx(0.4, rel=0.05)
    assert named in described["thresholds"]
    assert ("longest_gc_seconds" in described["samples"]) == (values["cause"] == "gc")
    assert described["reference"]["step_seconds"] == values.get("numbers", {}).get("baseline_step_seconds")


@pytest.mark.parametrize(
    ("values", "quantity", "compared_with", "rule"),
    [
        (
            {"kind": HANG, "cause": "data", "numbers": {"usual_step_seconds": 0.25}},
            "time without a step, and which ranks have not arrived",
            "the run's usual step and its longest pause",
            "no step for longer than 5 usual steps, 5 s and 1.5 times the longest pause before",
        ),
        (
            {"kind": CRASH, "cause": "process"},
            "when and how the process of each rank ended",
            "the other ranks' ends",
            "the rank ended before the others, and was not asked to end",
        ),
    ],
)
def test_a_run_that_stopped_is_explained_by_what_stopped_it(values, quantity, compared_with, rule):
    """No comparison of step times decides a hang or a crash; their evidence is not repeated as a rule."""
    described = explanation(opened(domain=None, **values), scene(Scenario()))
    assert (described["quantity"], described["reference"]["how"], described["rule"]) == (quantity, compared_with, rule)
    assert described["reference"]["step_seconds"] == values.get("numbers", {}).get("usual_step_seconds")


def test_a_change_is_not_before_the_incident_was_found():
    """A hang begins in the step after the last one that has a row."""
    stage = scene(Scenario())
    now = opened(kind=HANG, cause="unknown", detected_step=71, domain=None)
    (described,) = explain_instructions([ev.OpenIncident(cause_id="c", incident=now)], stage, EVENT)
    update = ev.UpdateIncident(cause_id="c", incident=replace(now, cause="data", explanation=described.explanation))
    (described,) = explain_instructions([update], stage, EVENT)
    assert [each["step"] for each in described.explanation["changes"]] == [71, 71]


def test_without_a_step_nothing_is_made_up():
    """A run that hangs before its first evaluated step has no samples."""
    described = explanation(opened(kind=HANG, domain=None), replace(scene(Scenario()), rows=()))
    assert described["samples"] == {"steps": [], "step_seconds": []}


def test_ten_thousand_ranks_make_no_longer_explanation():
    """Neither do long names, and what was not measured is null."""
    many = 10_240
    topology = from_degrees({"tp": 8, "pp": 8, "dp": 160}, many)
    rows = [
        replace(row, ranks=np.arange(many), **{name: np.tile(getattr(row, name), many // 8) for name in ARRAYS})
        for row in scene(Scenario(degrees="dp=8")).rows
    ]
    rows[5].self_seconds[3] = np.nan
    wide = ExplanationContext(rows=rows, topology=topology, policy=Policy(), hostname=lambda r: f"{r}" * 100)
    described = explanation(opened(ranks=tuple(range(3, 2000))), wide)
    assert described["samples"]["own_seconds"][5] is None
    assert size(described | {"changes": CHANGES_MAX * [change(62)]}) < BYTES_MAX


ARRAYS = ("present", "flags", "duration", "self_seconds")


def change(step):
    return {"step": step, "cause": "compute", "ranks": list(range(10_000, 10_008)), "rank_count": 2000}


def test_what_becomes_of_an_incident_is_written_down():
    """Another cause and more ranks are changes, growing figures are none; the list is bounded, its first entry stays."""
    stage = scene(Scenario(degrees="dp=8"))
    now = opened()
    (described,) = explain_instructions([ev.OpenIncident(cause_id="c", incident=now)], stage, EVENT)
    now = replace(now, explanation=described.explanation)
    assert (
        explain_instructions([ev.UpdateIncident(cause_id="c", incident=replace(now, slowdown_ratio=2.0))], stage, EVENT)
        == []
    )
    for ranks in range(2, 40):
        update = ev.UpdateIncident(cause_id="c", incident=replace(now, ranks=tuple(range(ranks)), cause="host"))
        (described,) = explain_instructions([update], stage, EVENT)
        now = replace(update.incident, explanation=described.explanation)
    changes = now.explanation["changes"]
    assert (len(changes), changes[0]["cause"], changes[-1]["rank_count"]) == (CHANGES_MAX, "compute", 39)
    story = history(replace(now, closed_step=90))
    assert [each["what"] for each in story[:3]] == ["began", "detected", "changed"]
    assert (story[0]["step"], story[1]["step"], story[1]["ranks"], story[-1]) == (
        60,
        62,
        [3],
        {"step": 90, "what": "closed"},
    )


def test_an_incident_of_an_earlier_version_is_left_alone():
    """It has no explanation, and the rows at hand are not those that it was decided from."""
    update = ev.UpdateIncident(cause_id="c", incident=opened(ranks=(700,)))
    assert explain_instructions([update], scene(Scenario()), EVENT) == []
    assert [each["what"] for each in history(update.incident)] == ["began", "detected"]
