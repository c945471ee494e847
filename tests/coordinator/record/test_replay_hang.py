"""Step logs of runs that stand still: told by the live state machine, through the ticks of the log's own time."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios.job import Interruptions
from benchmarks.scenarios.job import Scenario as Job
from benchmarks.scenarios.model import generate
from coordinator.record.replay import replay, to_line, topology_of
from coordinator.record.steplog import StepLog
from coordinator.settings.policy import Policy, RunPolicy

CALM = Interruptions(checkpoint_every=0, evaluation_every=0, missing=0.0, late=0.0)
S = 10**9
TRUSTING = Policy(run=RunPolicy(hang_lacking_max=0.02))
"""Believes a lacking record after 50 steps without a lost one; by default thousands are asked for."""


def log_of(*, steps=80, **more):
    return generate(Job(name="job", degrees="dp=8", seed=4, steps=steps, interruptions=replace(CALM, **more))).log()


def rows(log, kept):
    return StepLog(log.run, {name: values[kept] for name, values in log.columns.items()})


def silent(log, *, after, seconds, lacking=()):
    """Return the log with a silence behind a step, whose records the ranks in `lacking` never wrote."""
    step, rank = log.columns["step"], log.columns["rank"]
    for name in ("start_ns", "received_ns"):
        log.columns[name][step > after] += seconds * S
    return rows(log, ~((step == after) & np.isin(rank, lacking)))


def told(log, policy=TRUSTING):
    lines = [to_line(incident) for incident in replay(log, topology_of(8, "dp=8"), policy).incidents.values()]
    return [line for line in lines if line["kind"] == "hang"]


def test_the_rank_that_lacks_the_last_step_before_a_silence_has_not_arrived():
    """A minute without records, behind a step that one rank did not end: one incident, closed when steps come again."""
    (line,) = told(silent(log_of(), after=50, seconds=60, lacking=(5,)))
    assert {name: line[name] for name in ("cause", "scope", "ranks", "domain", "onset_step", "closed_step")} == {
        "cause": "unknown",
        "scope": "rank",
        "ranks": [5],
        "domain": {"kind": "dp", "id": "dp0"},
        "onset_step": 50,
        "closed_step": 51,
    }
    assert 8 * 50 < line["lost_device_seconds"] < 8 * 65
    assert any("the last step of rank 5 is 49" in each for each in line["evidence"])


@pytest.mark.parametrize("lacking", [(), (5,)])
def test_a_log_that_ends_is_no_hang(lacking):
    """Whether all ranks ended the last step or not."""
    log = log_of(steps=60)
    assert told(rows(log, ~((log.columns["step"] == 59) & np.isin(log.columns["rank"], lacking)))) == []


def test_a_silence_that_explains_nothing_is_no_incident():
    """All ranks ended the same step, as when a job is killed and started again minutes later."""
    assert told(silent(log_of(), after=50, seconds=200)) == []
    assert told(log_of(steps=160, restart_at=80)) == []


def test_lost_records_are_no_late_ranks():
    """Where records get lost now and then, one that lacks before a silence names nobody."""
    log = log_of()
    lost = (log.columns["step"] == 30) & (log.columns["rank"] == 2)
    assert told(silent(rows(log, ~lost), after=50, seconds=60, lacking=(5,))) == []
    assert told(silent(log_of(), after=50, seconds=60, lacking=(5,)), Policy()) == []
