"""Generates docs/settings.md: the settings of detection, incidents and captures, from the policy's annotations."""

from itertools import groupby

from coordinator.settings.thresholds import PolicyThreshold, catalogue
from lockstep.cli.markdown import markdown_table

_HEADING = """\
# Settings of detection

Written by `make generate` from `coordinator/settings/policy.py` and `run_policy.py`; change it there.

Set them in [policy.yaml](../examples/policy.yaml), or over HTTP while runs go on ([control](control.md)). Start
with three: `budget.false_page_steps`, how many steps to expect between false pages of a run; `excess.floor_ratio`, the
smallest slowdown of a rank that matters; `run.pending_seconds`, how long an anomaly lasts before it opens an incident.
All other numbers of detection follow from the budget or are constants ([detection](detection.md)). Reasons that begin
with "reference" were measured on production logs and on generated runs of 8 to 102,400 ranks.
"""
_SECTIONS = {
    "timeline": "Waiting for records",
    "budget": "Error budget",
    "excess": "Slow ranks, replicas and stages",
    "fluctuation": "A slower run",
    "link": "Links",
    "gc": "Unsynchronised garbage collection",
    "cause": "Causes",
    "run": "Incidents, hangs and endings",
    "profile": "Captures",
    "memory": "Growing memory",
    "detectors": "Which detectors report",
    "scope": "What is watched",
}
_HEADS = ("name", "default", "range", "unit", "reason")


def render() -> str:
    """Return the page."""
    parts = []
    for section, settings in groupby(catalogue().values(), key=lambda setting: setting.name.partition(".")[0]):
        rows = [_row(setting) for setting in settings]
        parts.append(f"## {_SECTIONS[section]}\n\n{markdown_table(_HEADS, rows)}")
    return _HEADING + "\n".join(parts)


def _row(setting: PolicyThreshold) -> tuple[str, ...]:
    bounds = "" if setting.low is None else f"{setting.low:,.12g} to {setting.high:,.12g}"
    reason = setting.reason if setting.is_live else f"{setting.reason}; fixed when a run begins"
    return f"`{setting.name}`", _text(setting.default), bounds, setting.unit, reason


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    assert isinstance(value, int | float)
    return f"{value:,.12g}"
