"""The summary of an analysis as text: where the time goes by rank, and what to do."""

from statistics import median
from typing import Any

from lockstep.diagnosis.frames import readable

_RANKS_SHOWN = 32
_FINDINGS_SHOWN = 20
_PATH_SHOWN = 5
_PARTS = ("compute", "communication", "host", "overlap", "free")
_NAME_CHARS = 60
_NS_PER_MS = 1e6


def text_of(summary: dict[str, Any]) -> str:
    """Return the lines of a summary."""
    ranks, findings = summary["ranks"], summary["findings"]
    parts = [[_headline(ranks, findings)], _table(ranks), _findings(findings, ranks), _refused(summary)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _headline(ranks: list[dict[str, Any]], findings: list[dict[str, Any]]) -> str:
    """Return how much was read, and how many findings there are."""
    steps = max((each["steps"]["count"] for each in ranks if _has_steps(each)), default=0)
    length_ns = median(each["window_ns"] for each in ranks) if ranks else 0
    of_steps = (
        f"{_count(steps, 'step')} of {_ms(length_ns / steps)}" if steps else f"{_ms(length_ns)} without marked steps"
    )
    found = _count(len(findings), "finding") if findings else "no findings"
    return f"{_count(len(ranks), 'rank')}, {of_steps}: {found}"


def _has_steps(rank: dict[str, Any]) -> bool:
    return bool(rank["steps"]["source"] != "whole" and rank["steps"]["count"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _table(ranks: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'rank':>6} {'window':>12} " + " ".join(f"{name:>14}" for name in _PARTS) + "  longest on critical path"]
    for rank in ranks[:_RANKS_SHOWN]:
        window_ns, parts = rank["window_ns"], rank["breakdown"]
        shares = (f"{_percent(parts[f'{name}_ns'], window_ns):>14}" for name in _PARTS)
        path = rank["critical_path"]
        longest = f"{_short(path[0]['name'])} {_percent(path[0]['ns'], window_ns)}" if path else ""
        lines.append(f"{rank['rank']:>6} {_ms(window_ns):>12} {' '.join(shares)}  {longest}")
    if len(ranks) > _RANKS_SHOWN:
        lines.append(f"  ... and {len(ranks) - _RANKS_SHOWN} more ranks")
    if len(ranks) == 1:
        lines += ["", "critical path:"]
        lines += [
            f"  {_percent(each['ns'], ranks[0]['window_ns']):>6} {each['class']:<13} {_short(each['name'])}"
            for each in ranks[0]["critical_path"][:_PATH_SHOWN]
        ]
    return lines


def _findings(findings: list[dict[str, Any]], ranks: list[dict[str, Any]]) -> list[str]:
    by_rank = {each["rank"]: each for each in ranks}
    lines = []
    for number, each in enumerate(findings[:_FINDINGS_SHOWN], 1):
        named = ",".join(map(str, each["ranks"][:8])) + (",..." if len(each["ranks"]) > 8 else "")  # noqa: PLR2004
        subject = f": {_short(readable(each['subject']))}" if each["subject"] else ""
        plural = "s" if len(each["ranks"]) > 1 else ""
        ranks_of = [by_rank[rank] for rank in each["ranks"] if rank in by_rank]
        cost, unit = _cost(each, ranks_of), "step" if all(map(_has_steps, ranks_of)) else "window"
        lines.append(
            f"{number}. {each['bottleneck']}: {each['cause'].replace('_', ' ')} on rank{plural} {named}{subject} "
            f"({cost}{each['confidence']} confidence)"
        )
        lines += [f"   {sentence}" for sentence in each["evidence"]]
        for advice in each["advice"]:
            gain = advice["predicted_gain_ratio"]
            lines.append(f"   -> {advice['suggestion']}" + (f" (up to {gain:.0%} of the {unit})" if gain else ""))
            lines.append(f"      {advice['how']}")
    if len(findings) > _FINDINGS_SHOWN:
        lines.append(f"... and {len(findings) - _FINDINGS_SHOWN} more (--json has all)")
    return lines


def _cost(finding: dict[str, Any], ranks: list[dict[str, Any]]) -> str:
    """Return the cost of a finding, per step if steps are marked."""
    if not finding["lost_ns"]:
        return ""
    steps = min((each["steps"]["count"] for each in ranks if _has_steps(each)), default=0)
    return f"{_ms(finding['lost_ns'] / steps)} a step, " if steps else f"{_ms(finding['lost_ns'])}, "


def _refused(summary: dict[str, Any]) -> list[str]:
    rules = list(dict.fromkeys(each["rule"] for each in summary["not_evaluated"]))
    named = ", ".join(rule.replace("_", " ") for rule in rules)
    return [f"not evaluated for lack of evidence: {named} (--json states why)"] if rules else []


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 3] + "..."


def _ms(ns: float) -> str:
    return f"{ns / _NS_PER_MS:.1f} ms"


def _percent(part_ns: int, whole_ns: int) -> str:
    return f"{part_ns / whole_ns:.1%}" if whole_ns else "-"
