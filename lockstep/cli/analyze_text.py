"""The summary of an analysis for people: where the time goes by rank, and what to do."""

from typing import Any

_RANKS_SHOWN = 32
_FINDINGS_SHOWN = 20
_PATH_SHOWN = 5
_PARTS = ("compute", "communication", "host", "overlap", "free")
_NAME_CHARS = 60
_NS_PER_MS = 1e6


def text_of(summary: dict[str, Any]) -> str:
    """Return the lines of a summary."""
    return "\n".join([*_table(summary["ranks"]), "", *_findings(summary["findings"]), "", *_refused(summary)])


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


def _findings(findings: list[dict[str, Any]]) -> list[str]:
    if not findings:
        return ["no findings"]
    lines = []
    for number, each in enumerate(findings[:_FINDINGS_SHOWN], 1):
        ranks = ",".join(map(str, each["ranks"][:8])) + (",..." if len(each["ranks"]) > 8 else "")  # noqa: PLR2004
        subject = f": {_short(each['subject'])}" if each["subject"] else ""
        lost = f", {_ms(each['lost_ns'])} lost" if each["lost_ns"] else ""
        plural = "s" if len(each["ranks"]) > 1 else ""
        lines.append(
            f"{number}. {each['bottleneck']}: {each['cause'].replace('_', ' ')} on rank{plural} {ranks}{subject} "
            f"({each['confidence']} confidence{lost})"
        )
        lines += [f"   {sentence}" for sentence in each["evidence"]]
        for advice in each["advice"]:
            gain = advice["predicted_gain_ratio"]
            lines.append(f"   -> {advice['suggestion']}" + (f" (up to {gain:.0%} of the step)" if gain else ""))
            lines.append(f"      {advice['how']}")
    if len(findings) > _FINDINGS_SHOWN:
        lines.append(f"... and {len(findings) - _FINDINGS_SHOWN} more (--json has all)")
    return lines


def _refused(summary: dict[str, Any]) -> list[str]:
    rules = list(dict.fromkeys(each["rule"] for each in summary["not_judged"]))
    return [f"not judged, insufficient evidence: {', '.join(rules)} (--json states why)"] if rules else []


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 3] + "..."


def _ms(ns: int) -> str:
    return f"{ns / _NS_PER_MS:.1f} ms"


def _percent(part_ns: int, whole_ns: int) -> str:
    return f"{part_ns / whole_ns:.1%}" if whole_ns else "-"
