"""Limits the gains predicted by an incident's advice to the cost of the incident. Pure.

A cause measured on one rank may exceed the loss of the incident, and several remedies often remove the same excess, so
their gains do not add up. The advice keeps its order; each item is limited to the loss that the items before it leave.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.contracts.finding import Advice

SHOWN_MIN_RATIO = 0.005
"""Smallest gain that is shown, as a share of the step: less reads as 0 % and may be a rounding error."""


def within_loss(advice: "Iterable[Advice]", *, excess_seconds: float, step_seconds: float) -> tuple["Advice", ...]:
    """Return the advice with gains that sum to at most the excess, as a share of the step.

    A gain that is reduced to less than half a percent of the step becomes None: earlier items already account for it,
    or there is no such loss.
    """
    left = min(excess_seconds, step_seconds) / step_seconds if step_seconds > 0 else 0.0
    made = []
    for item in advice:
        gain = None if item.predicted_gain_ratio is None else min(item.predicted_gain_ratio, left)
        left -= gain or 0.0
        made.append(replace(item, predicted_gain_ratio=gain if gain is not None and gain >= SHOWN_MIN_RATIO else None))
    return tuple(made)
