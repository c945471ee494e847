"""Which ranks held a step for minutes that ended after all: known by its own work, for which the others waited.

Pure. While it lasts it is a hang, which counts of collectives name (`hang.py`). A log has none, nor have agents that
see no collectives: there such a step is one long record among short ones, and no sum of slow steps ever shows it.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.anomalies import HANG, UNKNOWN, Anomaly
from coordinator.detect.hangs.ranks_text import ranks_text
from coordinator.detect.ranks.groups import median_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import Policy

_HELD_SHARE = 0.5  # of what the step took longer than usual, that a rank worked longer than its peers: it held the step


def held_step(row: "StepRow", step_seconds: float, usual_seconds: float, policy: "Policy") -> Anomaly | None:
    """Return the ranks that a step of minutes waited for; None where it was short, or longer on most of them.

    The step must have taken longer than `run.lost_seconds` and `run.hang_steps` usual ones.
    """
    longer_s = step_seconds - usual_seconds
    if step_seconds <= max(policy.run.lost_seconds, policy.run.hang_steps * usual_seconds):
        return None
    known = np.flatnonzero(~np.isnan(row.self_seconds))
    if not len(known):
        return None
    own, usual_own = row.self_seconds[known], median_of(row.self_seconds[known])
    held = known[own - usual_own > _HELD_SHARE * longer_s]
    if not 0 < 2 * len(held) < len(known):
        return None
    part, part_s = _part(row, held)
    cause = part if part_s > policy.cause.share_min * longer_s else UNKNOWN
    ranks = row.ranks[held]
    most_s = float(row.self_seconds[held].max())
    return Anomaly(
        kind=HANG,
        cause=cause,
        scope="rank",
        ranks=tuple(ranks.tolist()),
        domain=None,
        onset_step=row.step,
        excess_ratio=longer_s / usual_seconds if usual_seconds else 0.0,
        excess_seconds=longer_s,
        evidence=(
            f"step {row.step} took {step_seconds:.1f} s; one usually takes {usual_seconds:.3g} s",
            f"{ranks_text(ranks.tolist())} worked {most_s:.1f} s by itself, its peers {usual_own:.3g} s and waited",
            *([f"{part}: {part_s:.1f} s of it"] if cause != UNKNOWN else []),
        ),
        numbers={"late_ranks": float(len(held)), "silence_seconds": step_seconds, "usual_step_seconds": usual_seconds},
    )


def _part(row: "StepRow", held: "NDArray[np.intp]") -> tuple[str, float]:
    """Return the part of own work that was longest on the ranks that held the step, and its seconds."""
    seconds = {name: float(np.nan_to_num(values[held]).max()) for name, values in row.components.items()}
    longest = max(seconds, key=lambda name: seconds[name])
    return longest, seconds[longest]
