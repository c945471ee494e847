"""The demonstration's final verdict, and whether it is right. Pure: computed from the services' responses."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected outcome of a fault.

    `kind` and `cause` are those of the only incident, empty if none may be opened. `function` is the function of
    demo/training.py that has the fault. `state` is the run's at the end, empty if it does not matter.
    """

    kind: str = ""
    cause: str = ""
    function: str = ""
    state: str = ""

    @property
    def ends_run(self) -> bool:
        """Whether this fault ends the run."""
        return self.state in ("crashed", "cancelled")


EXPECTED: Mapping[str, Expected] = MappingProxyType(
    {
        "compute": Expected(kind="slow_rank", cause="compute", function="redundant_attention"),
        "data": Expected(kind="slow_rank", cause="data", function="read_document"),
        "gc": Expected(kind="slow_rank", cause="gc", function="sweep_cache"),
        "hang": Expected(kind="hang", cause="data", function="stuck_in_download", state="hung"),
        "crash": Expected(kind="crash", cause="process", function="reject_document", state="crashed"),
        "cancel": Expected(state="cancelled"),
        "none": Expected(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    """The verdict, together with the injected fault.

    `kind`, `rank`, `cause` and `function` are None if nothing was found.

    `state` is the run's at the end; `root_cause` and `stacks` belong to a crash or a hang. `agent_share_ratio` is the
    time that the agent took from the training threads, relative to the step time, from the first observed steps until
    there was an incident; None if no step was observed. `agent_capture_seconds` is the time that it took from the mean
    rank after that, i.e. for captures; None without an incident.
    """

    run: str
    fault: str
    faulty_rank: int | None
    fault_step: int | None
    state: str | None
    kind: str | None
    rank: int | None
    cause: str | None
    root_cause: str | None
    function: str | None
    operator: str | None
    onset_step: int | None
    detected_step: int | None
    slowdown_ratio: float | None
    lost_device_seconds: float | None
    healthy_step_seconds: float | None
    evidence: list[str] = field(default_factory=list)
    advice: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    agent_share_ratio: float | None = None
    agent_capture_seconds: float | None = None
    incidents: int = 0
    steps: int = 0
    correct: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def make_verdict(
    incidents: list[dict[str, Any]],
    *,
    run: str,
    fault: str,
    rank: int,
    fault_step: int,
    steps: int,
    healthy: float | None,
    state: str | None = None,
    agent_share: float | None = None,
    capture_seconds: float | None = None,
) -> DemoVerdict:
    """Return the verdict over all incidents of the run, including closed ones.

    It is right if exactly the faulty rank was named, with the right cause and the function that has the fault; without
    a faulty rank, if no rank was named. `state` is the run's, None before it has one.
    """
    expected = EXPECTED[fault]
    is_of_rank = bool(expected.kind)
    matching = [incident for incident in incidents if incident["kind"] == (expected.kind or "slow_rank")]
    first = matching[0] if matching else (incidents[0] if incidents else None)
    found = first or {}
    return DemoVerdict(
        run=run,
        fault=fault,
        faulty_rank=rank if is_of_rank else None,
        fault_step=None if fault == "none" else fault_step,
        state=state,
        kind=found.get("kind"),
        rank=found["ranks"][0] if found.get("ranks") else None,
        cause=found.get("cause"),
        root_cause=found.get("root_cause") or None,
        function=found.get("function") or None,
        operator=found.get("operator") or None,
        onset_step=found.get("onset_step"),
        detected_step=found.get("detected_step"),
        slowdown_ratio=found.get("slowdown_ratio"),
        lost_device_seconds=found.get("lost_device_seconds"),
        healthy_step_seconds=healthy,
        evidence=list(found.get("evidence", ())),
        advice=list(found.get("advice", ())),
        stacks=list(found.get("stacks", ())),
        agent_share_ratio=agent_share,
        agent_capture_seconds=capture_seconds,
        incidents=len(incidents),
        steps=steps,
        correct=_is_correct(expected, incidents, matching, rank, state),
    )


def agent_share(before: str, after: str, run: str) -> float | None:
    """Return the agent's share of the step time of a run between two readings of an exporter's metrics page.

    This is the quotient of the recording rule `run:lockstep_agent_time_per_step_time:ratio_rate1m`, which the
    dashboard's panel shows. Like `rate`, it excludes what was counted before the first reading. None if no step was
    counted in between.
    """
    step_s = _growth(before, after, "lockstep_step_time_seconds_total", run)
    return agent_seconds(before, after, run) / step_s if step_s > 0 else None


def agent_implementation(page: str, run: str) -> str | None:
    """Return the languages in which a run's agents are written, from an exporter's metrics page.

    None before a rank has reported it.
    """
    found = set()
    for labels, _ in _series(page, "lockstep_rank_agent_info", run):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if "collective_kernels" in label:
            found.add(f"marks by {label['mark_writer']}, kernels of collectives in {label['collective_kernels']}")
    return "; ".join(sorted(found)) or None


def agent_seconds(before: str, after: str, run: str) -> float:
    """Return the time that the agent took from all training threads of a run between two readings."""
    return _growth(before, after, "lockstep_agent_time_seconds_total", run)


def _growth(before: str, after: str, name: str, run: str) -> float:
    """Return the growth of the sum over a run's series of a metric."""
    first, last = (sum(float(value) for _, value in _series(page, name, run)) for page in (before, after))
    return last - first


def _series(page: str, name: str, run: str) -> list[tuple[str, str]]:
    """Return labels and value of each series of a run."""
    pattern = rf'^{name}\{{([^}}\n]*run="{re.escape(run)}"[^}}\n]*)\}} (\S+)'
    return re.findall(pattern, page, re.MULTILINE)


def _is_correct(
    expected: Expected,
    incidents: list[dict[str, Any]],
    matching: list[dict[str, Any]],
    rank: int,
    state: str | None,
) -> bool:
    if expected.state and state != expected.state:
        return False
    if not expected.kind:
        return not incidents
    return (
        len(matching) == 1
        and (not expected.state or len(incidents) == 1)
        and matching[0]["ranks"] == [rank]
        and matching[0]["cause"] == expected.cause
        and expected.function in (matching[0]["function"] or "")
    )
