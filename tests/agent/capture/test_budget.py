"""What a capture may take, in numbers alone."""

import pytest

from lockstep.agent.capture import budget as module
from lockstep.agent.capture.budget import TraceSizeEstimator
from lockstep.contracts.limits import PROFILE_EVENTS_MAX, PROFILE_SECONDS_MAX
from tests.agent.orders import make_order

SECOND_NS = 1_000_000_000
PLENTY = 1 << 50


def budget(step_ns, **order):
    return TraceSizeEstimator().budget(make_order(1, steps=3, **{"stacks": True, "shapes": False, **order}), step_ns)


def test_short_steps_fit():
    """Steps of usual length go on to their end."""
    made = budget(100_000_000)
    assert made.obstacle(PLENTY) == ""
    assert made.exhausted(200_000_000, 100_000_000, PLENTY) == ""


def test_memory_that_is_short_is_named():
    """One step that could take more than is left is refused with both figures; what nothing shows is no obstacle."""
    made = budget(SECOND_NS)
    needed = module.STACK_EVENTS_PER_S * module.EVENT_BYTES + module.FREE_MARGIN_BYTES
    assert made.obstacle(needed) == ""
    assert made.obstacle(needed - 1) == f"memory: got {needed - 1} bytes available, expected at least {needed}"
    assert made.obstacle(None) == ""


def test_shapes_need_more_and_no_stacks_less():
    """The same step needs more memory with shapes and less without stacks."""
    enough = module.STACK_EVENTS_PER_S * module.EVENT_BYTES + module.FREE_MARGIN_BYTES
    assert budget(SECOND_NS, shapes=True).obstacle(enough)
    assert budget(SECOND_NS, stacks=False).obstacle(enough // 2) == ""


def test_memory_that_others_take_meanwhile_ends_it():
    """What is left is looked at during the capture too."""
    assert budget(100_000_000).exhausted(200_000_000, 100_000_000, 300 << 20).startswith("memory: got ")


def test_events_end_it_before_one_step_too_many():
    """Steps of 1 s could make more events than the limit with a second one; of known appetite they do not."""
    reason = budget(SECOND_NS).exhausted(SECOND_NS, SECOND_NS, PLENTY)
    assert reason == f"events: got up to 2500000 with one more step, expected at most {PROFILE_EVENTS_MAX}"
    appetite = TraceSizeEstimator()
    order = make_order(1, steps=3, stacks=True)
    appetite.learn(order, events=100_000, captured_ns=SECOND_NS)
    assert appetite.budget(order, SECOND_NS).events_per_s == 200_000
    assert appetite.budget(order, SECOND_NS).exhausted(SECOND_NS, SECOND_NS, PLENTY) == ""
    assert appetite.budget(make_order(2, stacks=False), SECOND_NS).events_per_s == module.EVENTS_PER_S


@pytest.mark.parametrize(
    ("step_ns", "spent_ns", "ends"),
    [
        (1_000_000, 999_000_000, False),  # short steps have a second
        (1_000_000, 1_001_000_000, True),
        (40_000_000, 1_199_000_000, False),  # 10 times 3 steps
        (40_000_000, 1_201_000_000, True),
    ],
)
def test_far_slower_steps_end_it(step_ns, spent_ns, ends):
    """A capture that takes ten times as long as its steps did before is over at the next boundary."""
    reason = budget(step_ns, stacks=False).exhausted(spent_ns, 0, PLENTY)
    assert reason.startswith("captured time: got 1.") == ends


def test_seconds_are_limited():
    """However long the steps are."""
    appetite = TraceSizeEstimator()
    order = make_order(1, steps=100)
    appetite.learn(order, events=1, captured_ns=SECOND_NS)
    made = appetite.budget(order, 10 * SECOND_NS)
    assert made.exhausted(PROFILE_SECONDS_MAX * SECOND_NS, 0, PLENTY) == ""
    assert made.exhausted(PROFILE_SECONDS_MAX * SECOND_NS + SECOND_NS, 0, PLENTY) == (
        f"captured time: got {PROFILE_SECONDS_MAX + 1:.1f} s, expected at most {PROFILE_SECONDS_MAX} s"
    )
