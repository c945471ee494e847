"""The exporter level (`metrics_level`) that a panel needs, and what the panel shows at lower levels."""

import re
from typing import Any

from lockstep.contracts.metric import LEVELS, Level
from lockstep.contracts.metrics import BY_NAME

_RECORDED_BY_HOST = ("run_rank_hostname:", "run_hostname_phase:")  # joined with lockstep_rank_info
OF_NODE = 'rank=""'
"""The matcher of series that an exporter exports once for all ranks of a run."""
_PART = re.compile(r"_(bucket|sum|count)\Z")


def families_of(expr: str) -> set[str]:
    """Return the families of the catalogue that a query reads."""
    names = re.findall(r"(?<![\w:])lockstep_\w+(?![\w:])", expr)
    return {name if name in BY_NAME else _PART.sub("", name) for name in names} & set(BY_NAME)


def level_of(expr: str) -> Level:
    """Return the lowest level at which a query has data.

    A query that names the label rank needs families that are exported by rank. For other queries, and for families with
    the matcher `rank=""`, one series for all ranks of a node is enough.
    """
    is_by_rank = re.search(r"\brank\b", expr.replace(OF_NODE, "")) is not None
    needed = [LEVELS[1]] if any(prefix in expr for prefix in _RECORDED_BY_HOST) else [LEVELS[0]]
    for name in families_of(expr):
        forms = {level: BY_NAME[name].form(level) for level in LEVELS}
        is_of_node = re.search(rf"\b{name}{{[^}}]*{OF_NODE}", expr) is not None
        useful = ("whole",) if is_by_rank and not is_of_node else ("whole", "node")
        if BY_NAME[name].source == "exporter":
            needed.append(next(level for level in LEVELS if forms[level] in useful))
    return max(needed, key=LEVELS.index)


def explain(panel: dict[str, Any]) -> None:
    """Add to a Grafana panel's description which level it needs, unless that is the lowest."""
    needed = sorted({level_of(target["expr"]) for target in panel.get("targets", ())}, key=LEVELS.index)
    if not needed or needed[-1] == LEVELS[0]:
        return
    part = "" if len(needed) == 1 else " for all of it"
    panel["description"] += f" Needs exporters at `metrics_level: {needed[-1]}`{part}."
    if needed[0] != LEVELS[0]:
        defaults = panel.setdefault("fieldConfig", {}).setdefault("defaults", {})
        enough = " or ".join(LEVELS[LEVELS.index(needed[0]) :])
        defaults["noValue"] = f"no data (exported at metrics_level {enough})"
