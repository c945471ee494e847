"""Which of some slow steps are on a schedule, as those with a checkpoint are: they are no fault.

Pure.
"""

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVENTS_MIN = 4  # slow steps that make a schedule if there are no others
_SCHEDULED_MIN = 5  # slow steps that make a schedule; fewer do if there are no others
_PERIOD_MIN = 10  # steps: checkpoints are not written more often
_PERIOD_JITTER = 0.05
_MISSED_MAX = 2  # steps of a short schedule that may not have been slow, or not been evaluated
_EXACT_SHARE = 0.8  # of the slow steps of a schedule of which any steps may be unknown
_ANCHORS = 3  # last slow steps from which a schedule is followed back


def on_schedule(steps: "Sequence[int]") -> set[int]:
    """Return those of some slow steps, in ascending order, that are on one schedule; empty if none are.

    Any steps of a schedule may be unknown if nearly all slow steps are multiples of its period apart: of a rank that is
    slow in one step of 20 by chance, four or five steps in a row have such a period in 1 of 100 cases. A schedule that
    is kept less exactly, or that begins after other slow steps, shows by steps that follow each other.
    """
    gaps = {later - step for step, later in itertools.combinations(steps, 2)}
    gaps |= {math.gcd(last - step, last - later) for last in steps for step, later in itertools.pairwise(steps)}
    periods = sorted(gap for gap in gaps if gap >= _PERIOD_MIN)
    best = set[int]()
    for period, last in itertools.product(periods, steps[-_ANCHORS:]):
        exact = {step for step in steps if (step - last) % period == 0}
        if len(exact) >= max(_EVENTS_MIN, math.ceil(_EXACT_SHARE * len(steps))):
            return exact
        best = max(best, _followed(steps, period, last), key=len)
    least = _EVENTS_MIN if len(best) == len(steps) else _SCHEDULED_MIN
    return best if len(best) >= least else set()


def _followed(steps: "Sequence[int]", period: int, last: int) -> set[int]:
    """Return the slow steps that are on a schedule back from one of them, as far as few steps of it are missing."""
    slack = max(1, round(_PERIOD_JITTER * period))
    found, at, missed = {last}, last, 0
    while missed <= max(_MISSED_MAX, len(found) // 2) and at > steps[0]:
        near = min(steps, key=lambda step: abs(step - (at - period)))
        is_on = abs(near - (at - period)) <= slack
        at, missed = (near, missed) if is_on else (at - period, missed + 1)
        if is_on:
            found.add(near)
    return found
