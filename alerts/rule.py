"""The parts of a rule file, and their YAML. No metric is named here."""

from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Literal

import yaml

from alerts import links
from alerts.policy import Site, duration

Severity = Literal["critical", "warning", "info", "none"]
"""critical pages, warning opens a ticket, info needs no action, none goes to the dead man's switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """A recorded series, named level:metric:operations. `help` goes into docs/metrics.md; rule files cannot hold it."""

    record: str
    expr: str
    help: str

    def to_yaml(self, _site: Site) -> dict[str, Any]:
        """Return the rule's mapping."""
        return {"record": self.record, "expr": _tidy(self.expr)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert. `summary` is a static sentence, `description` a template; `per_run`: it has a label `run`.

    `headline` is a template of one sentence that states what is known; notifications use it instead of the summary.
    `resolves` completes "it resolves when". `incidents` is the query of the incidents concerned. `dashboard` is the
    template of its link, unless that is the dashboard of the run or of Lockstep's services.
    """

    name: str
    severity: Severity
    expr: str
    for_seconds: int
    summary: str
    description: str
    resolves: str
    headline: str = ""
    keep_seconds: int = 0
    per_run: bool = True
    incidents: str = ""
    dashboard: str = ""

    def to_yaml(self, site: Site) -> dict[str, Any]:
        """Return the rule's mapping; it builds the links, so that none can be forgotten."""
        keep = {"keep_firing_for": duration(self.keep_seconds)} if self.keep_seconds else {}
        return {
            "alert": self.name,
            "expr": _tidy(self.expr),
            "for": duration(self.for_seconds),
            **keep,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.headline or self.summary,
                "description": _tidy(self.description),
                "runbook_url": f"{site.runbooks_url}/{self.name}.md",
                "dashboard_url": self.dashboard or self._board(site),
                "incident_url": self._incident(site),
            },
        }

    def _board(self, site: Site) -> str:
        return links.run_dashboard(site) if self.per_run else links.services_dashboard(site)

    def _incident(self, site: Site) -> str:
        if not self.per_run:
            return f"{site.coordinator_url}/"
        if not self.incidents:
            return f"{site.coordinator_url}/runs/{{{{ $labels.run }}}}"
        return links.incident_url(site, self.incidents)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleGroup:
    """Rules that are evaluated in order. `limit` bounds the series or alerts of each; 0 is unlimited."""

    name: str
    rules: tuple[RecordingRule | Alert, ...]
    limit: int = 0

    def to_yaml(self, site: Site) -> dict[str, Any]:
        """Return the group's mapping."""
        limit = {"limit": self.limit} if self.limit else {}
        return {"name": self.name, **limit, "rules": [rule.to_yaml(site) for rule in self.rules]}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as YAML blocks, as a person would."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def dump(groups: tuple[RuleGroup, ...], site: Site, *, heading: str, frame: dict[str, Any] | None = None) -> str:
    """Return the rule file. `heading` becomes a comment at its top; a `frame` takes the groups as its `spec`."""
    document: dict[str, Any] = {"groups": [group.to_yaml(site) for group in groups]}
    if frame is not None:
        document = {**frame, "spec": document}
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return "".join(f"# {line}\n" for line in heading.splitlines()) + body


def _tidy(text: str) -> str:
    return dedent(text).strip()
