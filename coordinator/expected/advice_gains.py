"""Keeps what an incident's advice promises within what the incident costs. Pure.

A cause measured on one rank may hold more than the incident lost, and several remedies often remove the same excess:
their gains do not add up. The largest comes first; each later one is left what those before it do not give back.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep.contracts.finding import Advice

SHOWN_MIN_RATIO = 0.005
"""Least gain of a step that is promised: less reads as 0 %, and is what rounding leaves of a loss."""


def within_loss(advice: "Iterable[Advice]", *, excess_seconds: float, step_seconds: float) -> tuple["Advice", ...]:
    """Return the advice with gains that sum to at most the excess of a step, as a share of the step.

    A gain of which less than half a percent of the step is left becomes None: what the remedy gives back is promised
    already, or is no loss.
    """
    left = min(excess_seconds, step_seconds) / step_seconds if step_seconds > 0 else 0.0
    made = []
    for item in advice:
        gain = None if item.predicted_gain_ratio is None else min(item.predicted_gain_ratio, left)
        left -= gain or 0.0
        made.append(replace(item, predicted_gain_ratio=gain if gain is not None and gain >= SHOWN_MIN_RATIO else None))
    return tuple(made)
