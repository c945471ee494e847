# ruff: noqa: N806  (names of arrays end in their shape: K steps, R ranks)
"""Explains an incident: the data behind the decision, as plain values of a few kilobytes that are stored with it.

Pure. The explanation is made from the rows that the detectors have just evaluated, so it stays readable when the run
has moved on and after a restart of the coordinator. Nothing is decided here: `numbers` are those of the detector,
`samples` show them step by step, and `noise` is measured on the samples themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.decide import events as ev
from coordinator.decide import samples as of
from coordinator.detect.anomalies import CRASH, FLUCTUATION, HANG, MEMORY_GROWTH, SLOW_LINK, SLOW_RANK
from coordinator.detect.ranks.components import medians
from coordinator.detect.ranks.groups import REFERENCE_QUANTILE
from coordinator.intake.replicas import replica_members

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import Policy
    from lockstep.contracts.domains import Topology

STEPS_MAX = 32  # samples shown
PEERS_MAX = 8  # peers listed by name
CHANGES_MAX = 16  # changes of an incident's ranks and causes that are listed: the first and the last ones
_CELLS_MAX = 1 << 20  # steps x ranks read; at 102,400 ranks these are 10 steps and take 80 ms per incident
_PARTS_STEPS = 3  # the median of three is quick
_TEXT_MAX = 64  # characters of a name
_RULE_MAX = 500  # characters
_SECTIONS = {  # sections of the policy by kind of incident; `run` for other kinds
    SLOW_RANK: ("excess", "rank", "cause"),
    SLOW_LINK: ("excess", "link"),
    FLUCTUATION: ("excess", "fluctuation", "cause"),
    MEMORY_GROWTH: ("memory",),
}
_RULES = {FLUCTUATION: "steps are longer than noise and additional work explain, by at least the minimum effect: "}

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationContext:
    """The data to explain an incident with. `rows` are the last undisturbed steps, the newest last; may be empty."""

    rows: "Sequence[StepRow]"
    topology: "Topology"
    policy: "Policy"
    hostname: Callable[[int], str]


def explain_instructions(
    instructions: "Sequence[ev.Instruction]", scene: ExplanationContext, event: ev.Event
) -> list[ev.ExplainedEvent]:
    """Return explanations of the incidents that `event` opened, or whose ranks or cause it changed."""
    described = []
    for instruction in instructions:
        if not isinstance(instruction, ev.OpenIncident | ev.UpdateIncident):
            continue
        incident = instruction.incident
        if isinstance(instruction, ev.UpdateIncident) and not incident.explanation:
            continue  # stored by a version that wrote none, perhaps for another shape of the run
        before = incident.explanation or explanation(incident, scene)
        changes = list(before.get("changes", ()))
        if changes and not _is_other(changes[-1], incident):
            continue
        changes.append(_change(incident, _step_of_change(incident, scene)))
        values = before | {"changes": changes[:1] + changes[1:][1 - CHANGES_MAX :]}
        described.append(
            ev.ExplainedEvent(unix_s=event.unix_s, cause_id=event.cause_id, incident_id=incident.id, explanation=values)
        )
    return described


def explanation(incident: "Incident", scene: ExplanationContext) -> Values:
    """Return the data behind an incident: quantity, reference, samples, noise, thresholds, rule, numbers.

    Times are seconds per step; None stands for unknown.
    """
    rows = list(scene.rows)[-STEPS_MAX:]
    if rows:
        rows = rows[-max(1, _CELLS_MAX // max(1, len(rows[-1].ranks))) :]
    common: Values = {
        "numbers": {name: of.number(value) for name, value in incident.numbers.items()},
        "thresholds": _thresholds(scene.policy, (incident.kind, *_SECTIONS.get(incident.kind, ("run",)))),
    }
    if incident.kind == MEMORY_GROWTH:
        return common | _of_memory(incident)
    if rows and incident.kind == SLOW_RANK and incident.ranks:
        return common | _of_rank(incident, rows, scene)
    if rows and incident.kind == SLOW_LINK and incident.domain is not None:
        return common | _of_domain(incident, incident.domain, rows, scene)
    return common | _of_job(incident, rows) | _of_stop(incident, scene.policy)


def history(incident: "Incident") -> list[Values]:
    """Return the changes of an incident, step by step."""
    changes = incident.explanation.get("changes", [])
    described: list[Values] = []
    if incident.onset_step is not None:
        described.append({"step": incident.onset_step, "what": "began"})
    described.append({**(changes[0] if changes else {}), "step": incident.detected_step, "what": "detected"})
    described += [{**each, "what": "changed"} for each in changes[1:]]
    if incident.closed_step is not None:
        described.append({"step": incident.closed_step, "what": "closed"})
    return described


def _of_rank(incident: "Incident", rows: "list[StepRow]", scene: ExplanationContext) -> Values:
    rank, ranks = incident.ranks[0], rows[-1].ranks
    stage_R, stage = np.asarray(scene.topology.stages)[ranks], scene.topology.stages[rank]
    members = np.flatnonzero(stage_R == stage)
    own_K = of.own_work(rows, int(np.searchsorted(ranks, rank)))
    reference_K = of.references(rows, members)
    replica = of.columns_of(rows, list(replica_members(scene.topology, rank)))
    shared_K = of.replica_excess(rows, replica, stage_R)
    steps = [row.step for row in rows]
    described: Values = {"steps": steps, "own_seconds": of.numbers(own_K)}
    is_alone = len(members) == 1
    if is_alone:
        how = f"its own past, scaled by the other stages' steps: no other rank works on pipeline stage {stage}"
    else:
        how = f"the lower {REFERENCE_QUANTILE:.0%} quantile of the ranks of pipeline stage {stage}, step by step"
        described["reference_seconds"] = of.numbers(reference_K)
    if shared_K is not None:
        how += ", plus the excess that all ranks of its replica share"
        described["replica_seconds"] = of.numbers(shared_K)
    excess_K = (own_K - reference_K - (0.0 if shared_K is None else shared_K)) / reference_K
    return {
        "quantity": "own work of the rank: its step minus its waits in every domain, seconds",
        "reference": {
            "how": how,
            "stage": stage,
            "members": len(members),
            "quantile": None if is_alone else REFERENCE_QUANTILE,
            "peers": _peers(incident, rows, [int(column) for column in members], scene),
        },
        "samples": described,
        "noise": {} if is_alone else of.noise(excess_K, _healthy(incident, steps)),
        "rule": _rule(scene.policy, scene.policy.excess.floor_ratio, "own work longer than the reference", incident),
    }


def _peers(incident: "Incident", rows: "list[StepRow]", members: list[int], scene: ExplanationContext) -> list[Values]:
    slow, ranks = set(incident.ranks), rows[-1].ranks
    shown = [column for column in members if int(ranks[column]) not in slow][:PEERS_MAX]
    return [
        {
            "rank": int(ranks[column]),
            "hostname": scene.hostname(int(ranks[column]))[:_TEXT_MAX],
            "median_seconds": of.median(of.own_work(rows, column)),
        }
        for column in shown
    ]


def _of_domain(
    incident: "Incident", domain: tuple[str, str], rows: "list[StepRow]", scene: ExplanationContext
) -> Values:
    kind, name = domain
    steps = [row.step for row in rows]
    own_K = of.transfers(rows, kind, of.columns_of(rows, incident.ranks))
    healthy = _healthy(incident, steps)
    past = of.median(own_K[: max(1, healthy)])
    others = [other for other in scene.topology.domains if other.kind == kind and other.name != name]
    peers = [
        {
            "domain": other.name[:_TEXT_MAX],
            "median_seconds": of.median(of.transfers(rows, kind, of.columns_of(rows, other.ranks))),
        }
        for other in others[:PEERS_MAX]
    ]
    return {
        "quantity": "transfer time of the domain: the shortest time that any of its members was blocked in it, seconds",
        "reference": {
            "how": f"per byte, its own past and the other domains of kind {kind}",
            "members": len(others),
            "past_seconds": past,
            "peers": peers,
        },
        "samples": {"steps": steps, "own_seconds": of.numbers(own_K)},
        "noise": of.noise(own_K / past - 1, healthy) if past else {},
        "rule": _rule(scene.policy, scene.policy.link.effect_ratio, "transfers longer than the reference", incident),
    }


def _of_job(incident: "Incident", rows: "list[StepRow]") -> Values:
    described: Values = {"steps": [row.step for row in rows], "step_seconds": [of.median(row.duration) for row in rows]}
    if incident.cause == "gc":
        collecting = [np.nan_to_num(row.components["gc"]) for row in rows]
        described["longest_gc_seconds"] = [of.number(float(gc_R.max(initial=0))) for gc_R in collecting]
        described["ranks_collecting"] = [int((gc_R > 0).sum()) for gc_R in collecting]
    baseline = incident.numbers.get("baseline_step_seconds")
    parts = medians(rows[-_PARTS_STEPS:]) if rows else {}
    return {
        "quantity": "duration of the run's steps, which all ranks end together, seconds",
        "reference": {
            "how": "the run's own history",
            "step_seconds": None if baseline is None else of.number(baseline),
        },
        "samples": described,
        "parts_seconds": {name: of.median(value) for name, value in parts.items()},
        "rule": (_RULES.get(incident.kind, "") + "; ".join(incident.evidence))[:_RULE_MAX],
    }


def _of_stop(incident: "Incident", policy: "Policy") -> Values:
    """Return the explanation of a hang or a crash, which compare no step times; empty for other kinds."""
    if incident.kind == CRASH:
        return {
            "quantity": "when and how the process of each rank ended",
            "reference": {"how": "the other ranks' ends", "step_seconds": None},
            "rule": "the rank ended before the others, and was not asked to end",
        }
    if incident.kind != HANG:
        return {}
    run, usual_s = policy.run, incident.numbers.get("usual_step_seconds")
    return {
        "quantity": "time without a step, and which ranks have not arrived",
        "reference": {
            "how": "the run's usual step and its longest pause",
            "step_seconds": None if usual_s is None else of.number(usual_s),
        },
        "rule": f"no step for longer than {run.hang_steps:g} usual steps, {run.hang_seconds:g} s and "
        f"{run.hang_pause_factor:g} times the longest pause before",
    }


def _of_memory(incident: "Incident") -> Values:
    usual = incident.numbers.get("peers_bytes_per_step")
    return {
        "quantity": "slope of memory over a window of steps, bytes a step",
        "reference": {
            "how": "the ranks whose memory does not grow steadily, over a window of the same length",
            "bytes_per_step": None if usual is None else of.number(usual),
        },
        "samples": {},
        "rule": "; ".join(incident.evidence)[:_RULE_MAX],
    }


def _healthy(incident: "Incident", steps: list[int]) -> int:
    onset_step = incident.onset_step
    return 0 if onset_step is None else sum(step < onset_step for step in steps)


def _rule(policy: "Policy", floor_ratio: float, what: str, incident: "Incident") -> str:
    """Return the rule of the test that raised the alarm: its own limits if it reported them, else the policy's."""
    own = policy.excess
    limits = {
        "floor_ratio": floor_ratio,
        "clip_sigmas": own.clip_sigmas,
        "slack_sigmas": own.slack_sigmas,
        "alarm_sigmas": own.alarm_sigmas,
    }
    limits |= {name: incident.numbers[name] for name in limits if name in incident.numbers}
    if incident.part:
        what = f"{incident.part}, a part of {what}"
    return (
        f"{what} by {limits['floor_ratio']:.1%} or more that noise does not explain, until the CUSUM of the excess in "
        f"sigmas (at most {limits['clip_sigmas']:.3g} a step, less {limits['slack_sigmas']:g}) exceeds "
        f"{limits['alarm_sigmas']:.3g}"
    )


def _thresholds(policy: "Policy", sections: Sequence[str]) -> Values:
    own = {item.name: getattr(policy, item.name) for item in fields(policy) if item.name in ("budget", *sections)}
    return {f"{name}.{item.name}": getattr(group, item.name) for name, group in own.items() for item in fields(group)}


def _is_other(last: Values, incident: "Incident") -> bool:
    return bool((last["cause"], last["rank_count"]) != (incident.cause, len(incident.ranks)))


def _step_of_change(incident: "Incident", scene: ExplanationContext) -> int | None:
    """Return the last step with a row, but at least the step of detection: a hang has no row of its own step."""
    if not scene.rows:
        return incident.detected_step
    return max(scene.rows[-1].step, incident.detected_step or 0)


def _change(incident: "Incident", step: int | None) -> Values:
    return {
        "step": step,
        "cause": incident.cause,
        "ranks": list(incident.ranks[:PEERS_MAX]),
        "rank_count": len(incident.ranks),
    }
