"""What the demonstration says at its end, and whether it is right. Pure: from incidents as the API returns them."""

from dataclasses import asdict, dataclass, field
from typing import Any

# The function of demo/training.py that each fault lives in.
FUNCTIONS = {"compute": "redundant_attention", "data": "read_document", "gc": "sweep_cache"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, beside the question. `rank`, `cause` and `function` are None where nothing was found."""

    run: str
    fault: str
    faulty_rank: int | None
    fault_step: int | None
    rank: int | None
    cause: str | None
    function: str | None
    operator: str | None
    onset_step: int | None
    detected_step: int | None
    slowdown_ratio: float | None
    lost_device_seconds: float | None
    healthy_step_seconds: float | None
    evidence: list[str] = field(default_factory=list)
    advice: list[dict[str, Any]] = field(default_factory=list)
    incidents: int = 0
    steps: int = 0
    correct: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def judge(
    incidents: list[dict[str, Any]],
    *,
    run: str,
    fault: str,
    rank: int,
    fault_step: int,
    steps: int,
    healthy: float | None,
) -> Verdict:
    """Return the verdict over all incidents of the run, closed ones included.

    It is right if exactly the faulty rank was named, with the right cause and the function that the fault lives in;
    without a fault, if nothing was.
    """
    about = [incident for incident in incidents if incident["kind"] == "slow_rank"]
    first = about[0] if about else (incidents[0] if incidents else None)
    if fault == "none":
        correct = not incidents
    else:
        correct = (
            len(about) == 1
            and about[0]["ranks"] == [rank]
            and about[0]["cause"] == fault
            and FUNCTIONS[fault] in (about[0]["function"] or "")
        )
    found = first or {}
    return Verdict(
        run=run,
        fault=fault,
        faulty_rank=None if fault == "none" else rank,
        fault_step=None if fault == "none" else fault_step,
        rank=found["ranks"][0] if found.get("ranks") else None,
        cause=found.get("cause"),
        function=found.get("function") or None,
        operator=found.get("operator") or None,
        onset_step=found.get("onset_step"),
        detected_step=found.get("detected_step"),
        slowdown_ratio=found.get("slowdown_ratio"),
        lost_device_seconds=found.get("lost_device_seconds"),
        healthy_step_seconds=healthy,
        evidence=list(found.get("evidence", ())),
        advice=list(found.get("advice", ())),
        incidents=len(incidents),
        steps=steps,
        correct=correct,
    )
