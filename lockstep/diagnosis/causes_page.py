"""Renders docs/causes.md: the causes, with rules, limits, their sources, and remedies."""

from collections.abc import Iterable, Iterator
from types import ModuleType

from lockstep.contracts.finding import COMMUNICATION, COMPUTE
from lockstep.diagnosis.communication_causes import thresholds as communication_limits
from lockstep.diagnosis.host_causes import thresholds as host_limits
from lockstep.diagnosis.remedies import FRAMEWORKS, Cause, Table, TableRow, table
from lockstep.diagnosis.roofline import roofline_limits as operator_limits
from lockstep.diagnosis.threshold import Threshold

_LIMITS_BY_BOTTLENECK: dict[str, ModuleType] = {COMPUTE: operator_limits, COMMUNICATION: communication_limits}
"""Modules with the limits of a bottleneck's rules, which several of its causes share."""

_HEADING = """\
# Causes and remedies

`make generate` writes this page from `lockstep/diagnosis/remedies.toml` and the limits of the rules. Edit those, not
this page.

The causes are those of Hermes (USENIX ATC'25, tables 2 to 4) and, inside an operator, of the component roofline (ASPLOS
2025). A rule returns findings, or why it could not be evaluated. The share of a bottleneck is its share of Hermes'
135 cases. In the tables of limits, "own" marks a limit of this project and is followed by its reason.

The column "removes" states which part of the cost a remedy removes. Remedies other than "unknown" have a predicted
gain: that part, as a share of the window.

| removes | part of the cost |
| --- | --- |
| explained | the time of the named function, or of the finding |
| excess | the rank's whole excess over its peers |
| fused | the time that fusing collectives with adjacent operators saves |
| rest | the time outside the named function |
| unknown | not known |
"""


def render() -> str:
    """Return the page."""
    found = table()
    parts = [_HEADING]
    for key, bottleneck in found.bottlenecks.items():
        causes = {name: cause for name, cause in found.causes.items() if cause.bottleneck == key}
        parts.append(f"## {bottleneck.title} ({100 * bottleneck.share_ratio:.1f} % of the cases)\n")
        parts.extend(_cause(found, name, cause) for name, cause in causes.items())
        if module := _LIMITS_BY_BOTTLENECK.get(key):
            shared = [(name, value) for name, value in vars(module).items() if isinstance(value, Threshold)]
            parts.append(f"### Limits of {bottleneck.title.lower()}\n\n{_limits(shared)}")
    parts.append("## Measured\n\nOperators, and the remedies that made them faster (ASPLOS 2025, Table 1).\n")
    rows = [
        (each.operator, ", ".join(f"{cause}: {' '.join(keys)}" for cause, keys in each.by.items()), f"{each.speedup}")
        for each in found.measured
    ]
    parts.append(_table(("operator", "cause: remedies", "speedup"), rows))
    return "\n".join(parts)


def limits_of(cause: str) -> list[tuple[str, Threshold]]:
    """Return the named limits in the rules of a host cause; none for other causes."""
    return [(name, getattr(host_limits, name)) for name in host_limits.BY_CAUSE.get(cause, ())]


def _cause(found: Table, name: str, cause: Cause) -> str:
    share = f" {100 * cause.share_ratio:.1f} % of the {cause.share_of}." if cause.share_ratio is not None else ""
    lines = [
        f"### {cause.title} (`{name}`)\n",
        f"{cause.rule[0].upper()}{cause.rule[1:]}. Source: {cause.source}.{share}\n",
    ]
    if limits := limits_of(name):
        lines.append(_limits(limits))
    remedies = [tuple(_remedy(row)) for row in found.remedies if name in row.causes]
    lines.append(_table(("remedy", *FRAMEWORKS, "removes", "source"), remedies))
    return "\n".join(lines)


def _limits(limits: Iterable[tuple[str, Threshold]]) -> str:
    rows = [(f"`{key}`", f"{limit.value:,.10g} {limit.unit}", limit.source) for key, limit in limits]
    return _table(("limit", "value", "source"), rows)


def _remedy(row: TableRow) -> Iterator[str]:
    only = f" (if `{row.when}`)" if row.when else f" (unless `{row.unless}`)" if row.unless else ""
    yield f"{row.key}: {row.suggestion}{only}" if row.key else f"{row.suggestion}{only}"
    for framework in FRAMEWORKS:
        yield row.how.get(framework, "")
    yield row.removes
    yield row.source


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [heading, ("---",) * len(heading), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in cells)
