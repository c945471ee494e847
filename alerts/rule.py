"""What a rule file consists of, and its YAML. No metric is named here."""

from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Literal

import yaml

from alerts.policy import Site, duration

Severity = Literal["critical", "warning", "none"]
"""critical pages, warning opens a ticket, none goes to the dead man's switch."""

RUN_DASHBOARD = "lockstep-run"
"""The uid of the dashboard that every alert links to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded series, named level:metric:operations; `help` goes into docs/metrics.md, rule files have no place."""

    record: str
    expr: str
    help: str

    def to_yaml(self, _site: Site) -> dict[str, Any]:
        """Return the rule's mapping."""
        return {"record": self.record, "expr": _tidy(self.expr)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert. `summary` is a static sentence, `description` a template; `per_run`: it has a label `run`."""

    name: str
    severity: Severity
    expr: str
    for_seconds: int
    summary: str
    description: str
    keep_seconds: int = 0
    per_run: bool = True

    def to_yaml(self, site: Site) -> dict[str, Any]:
        """Return the rule's mapping; both links are made from the name, so that none can be forgotten."""
        board = f"{site.grafana_url}/d/{RUN_DASHBOARD}"
        keep = {"keep_firing_for": duration(self.keep_seconds)} if self.keep_seconds else {}
        return {
            "alert": self.name,
            "expr": _tidy(self.expr),
            "for": duration(self.for_seconds),
            **keep,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": _tidy(self.description),
                "runbook_url": f"{site.runbooks_url}/{self.name}.md",
                "dashboard_url": f"{board}?var-run={{{{ $labels.run }}}}" if self.per_run else board,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated one after the other. `limit` bounds the series or alerts of each; 0 is no bound."""

    name: str
    rules: tuple[Recording | Alert, ...]
    limit: int = 0

    def to_yaml(self, site: Site) -> dict[str, Any]:
        """Return the group's mapping."""
        limit = {"limit": self.limit} if self.limit else {}
        return {"name": self.name, **limit, "rules": [rule.to_yaml(site) for rule in self.rules]}


class _Dumper(yaml.SafeDumper):
    """Writes long text as a block, the way a person would."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def dump(groups: tuple[Group, ...], site: Site, *, heading: str, frame: dict[str, Any] | None = None) -> str:
    """Return the rule file. `heading` becomes a comment at its top; a `frame` takes the groups as its `spec`."""
    document: dict[str, Any] = {"groups": [group.to_yaml(site) for group in groups]}
    if frame is not None:
        document = {**frame, "spec": document}
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return "".join(f"# {line}\n" for line in heading.splitlines()) + body


def _tidy(text: str) -> str:
    return dedent(text).strip()
