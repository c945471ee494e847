"""Which ranks held up a step that took minutes but ended: those whose own work was long while the others waited.

Pure. While such a step lasts it is a hang, and the collective counts name its ranks (`hang.py`). A step log has no
counts, nor do agents that see no collectives: there the step is one long record among short ones, and a sum of slow
steps never shows it.
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

_HELD_SHARE = 0.5  # of the step's excess that a rank must have worked longer than its peers to have held it up


def held_step(row: "StepRow", step_seconds: float, usual_seconds: float, policy: "Policy") -> Anomaly | None:
    """Return the ranks that a step of minutes waited for; None if it was short, or if most ranks worked longer.

    The step must have taken longer than `run.lost_seconds` and than `run.hang_steps` usual steps.
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
    """Return the part of own work that was longest on the ranks that held up the step, and its seconds."""
    seconds = {name: float(np.nan_to_num(values[held]).max()) for name, values in row.components.items()}
    longest = max(seconds, key=lambda name: seconds[name])
    return longest, seconds[longest]
