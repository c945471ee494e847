# ruff: noqa: N806  (names of arrays end in their shape)
"""Which amount of a record explains how long a step is."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.detect.detector import Detector
from coordinator.detect.work_figure import WorkFigure
from coordinator.settings.policy import Policy
from tests.coordinator.scenarios import Scenario, generate

RANKS = 4


def amounts(row, *, tokens=8192.0, flops=None, work=None):
    """Return the step with these amounts on all ranks; None is not measured."""

    def everywhere(value):
        return np.full(RANKS, np.nan if value is None else value, dtype=np.float32)

    tokens_R = everywhere(tokens)
    return replace(
        row,
        tokens=tokens_R,
        work=tokens_R if work is None else everywhere(work),
        flops=None if flops is None else everywhere(flops),
    )


def figures(steps, figure=None):
    """Return the figure of rank 0 in steps of these amounts."""
    (row,) = generate(Scenario(degrees="dp=4", steps=1)).rows()
    figure = figure or WorkFigure()
    return [float(figure.of_step(amounts(row, **step))[0]) for step in steps]


def test_flops_that_follow_the_tokens_show_nothing_more():
    """FLOPs of so many a token leave tokens the figure, whatever the batch."""
    steps = [{"tokens": tokens, "flops": 6e9 * tokens} for tokens in (8192, 8192, 4096, 8192)]
    assert figures(steps) == [8192, 8192, 4096, 8192]


def test_constant_flops_explain_nothing():
    """A figure that does not move while tokens change is an estimate, no measurement."""
    assert figures([{"tokens": tokens, "flops": 5e13} for tokens in (8192, 4096, 16384)]) == [8192, 4096, 16384]


def test_flops_that_change_by_themselves_continue_the_tokens():
    """From the first step whose FLOPs per token changed, the figure is FLOPs, in the tokens of the step before."""
    steps = [{"flops": flops} for flops in (5e13, 5e13, 6e13, 6e13)] + [{"tokens": 4096, "flops": 3e13}]
    assert figures(steps) == pytest.approx([8192, 8192, 9830.4, 9830.4, 4915.2], rel=1e-5)


def test_flops_without_tokens_are_a_figure():
    """Where no tokens are counted there is nothing to continue: FLOPs count as they are."""
    assert figures([{"tokens": None, "flops": flops} for flops in (5e13, 6e13)])[1] == pytest.approx(6e13)


def test_what_was_learnt_outlives_a_restart_of_the_coordinator():
    """The scale comes back with the memory, so the figure goes on where it was."""
    figure = WorkFigure()
    figures([{"flops": 5e13}, {"flops": 6e13}], figure)
    again = WorkFigure()
    again.load_state_dict(figure.state_dict())
    assert figures([{"flops": 6e13}], again) == pytest.approx([9830.4], rel=1e-5)


@pytest.mark.parametrize("flops_known", [True, False])
def test_steps_that_grow_with_their_flops_are_no_slower_run(flops_known):
    """Wider attention windows lengthen steps at equal tokens: explained where FLOPs are known, a slower run where not."""
    recording = generate(Scenario(degrees="dp=4", steps=160))
    detector, fluctuating = Detector(np.arange(RANKS), recording.topology, Policy()), []
    for row in recording.rows():
        windows = 1.1 ** ((row.step >= 60) + (row.step >= 90))
        more = (windows - 1) * row.components["compute"]
        longer = replace(
            row,
            duration=row.duration + more.max(),
            self_seconds=row.self_seconds + more,
            components=row.components | {"compute": row.components["compute"] + more},
        )
        evaluated = detector.evaluate(amounts(longer, flops=5e13 * windows if flops_known else None))
        fluctuating.append(evaluated.fluctuating)
    assert any(fluctuating) != flops_known
