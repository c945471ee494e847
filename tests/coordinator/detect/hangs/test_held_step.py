"""Which ranks held a step for minutes that ended after all."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.detect.hangs.held_step import held_step
from coordinator.settings.policy import Policy
from tests.coordinator.scenarios import Scenario, generate

POLICY = Policy()


def row(held, seconds, *, part="host"):
    """Return a step of eight ranks in which some did so much more of a part, and the others waited for them."""
    (usual,) = generate(Scenario(degrees="dp=8", steps=1)).rows()
    more = np.zeros(8)
    more[list(held)] = seconds
    return replace(
        usual,
        duration=usual.duration + more.max(),
        self_seconds=usual.self_seconds + more,
        components=usual.components | {part: usual.components[part] + more},
    )


def found(each, usual_seconds=0.5):
    """Return what is found of a step, given how long one usually takes."""
    return held_step(each, float(np.median(each.duration)), usual_seconds, POLICY)


@pytest.mark.parametrize(("part", "held"), [("host", (3,)), ("data", (1, 6))])
def test_the_ranks_that_held_a_step_are_named_with_the_part(part, held):
    """Their own work is the step; what they did in it is the cause, and the evidence has the figures."""
    anomaly = found(row(held, 180.0, part=part))
    assert (anomaly.ranks, anomaly.cause, anomaly.scope, anomaly.kind) == (held, part, "rank", "hang")
    assert anomaly.excess_seconds == pytest.approx(180.0, rel=0.01)
    assert anomaly.evidence[0].startswith("step 0 took 180.")
    assert anomaly.evidence[2] == f"{part}: 180.0 s of it"


@pytest.mark.parametrize("held", [range(8), range(4)])
def test_what_most_ranks_do_is_a_pause(held):
    """A step that is long on half of the ranks or more was held by none of them."""
    assert found(row(held, 180.0)) is None


@pytest.mark.parametrize(("seconds", "usual_seconds", "is_held"), [(58, 0.5, False), (62, 0.5, True), (62, 14, False)])
def test_the_limit_is_a_minute_and_five_usual_steps(seconds, usual_seconds, is_held):
    """A rank may write a checkpoint for half a minute, and long steps may vary."""
    assert (found(row((3,), seconds), usual_seconds) is not None) == is_held


def test_own_work_that_was_not_measured_names_no_rank():
    """Without a wait nothing shows who was waited for."""
    blind = replace(row((3,), 180.0), self_seconds=np.full(8, np.nan))
    assert found(blind) is None
