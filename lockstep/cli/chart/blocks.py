"""The blocks of values.yaml that repeat a dataclass: a service's keys, the alerts' thresholds.

A block lies between `# BEGIN <path>, from <file>` and `# END <path>` and has its keys with default and description.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from textwrap import wrap
from typing import Any

from alerts.policy import AlertPolicy
from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.contracts.settings import descriptions_of
from lockstep.serving.broker import BrokerConfig

_WIDTH = 128
_BROKER = frozenset(field.name for field in fields(BrokerConfig))
_HTTP = frozenset({"http_host", "http_port", "web_config_file"})
OWNED = {
    "exporter.config": _BROKER | _HTTP | {"root", "node", "spool_directory"},
    "coordinator.config": _BROKER | _HTTP | {"state_directory", "record_directory", "api_token_file", "policy_file"},
}
"""Keys that the chart itself sets, from where it puts files and ports; values cannot set them."""
FORMS: dict[str, type] = {
    "exporter.config": ExporterConfig,
    "coordinator.config": CoordinatorConfig,
    "prometheusRule.thresholds": AlertPolicy,
}
"""Path in values.yaml to the dataclass that it repeats."""


def keys_of(path: str) -> dict[str, Any]:
    """Return the keys of a block with their defaults, in the order of the dataclass."""
    return {
        field.name: field.default for field in fields(FORMS[path]) if field.name not in OWNED.get(path, frozenset())
    }


def blocks() -> dict[str, list[str]]:
    """Return the lines of each block by its path, not indented."""
    return {path: list(_lines(path)) for path in FORMS}


def fill(text: str, filled: Mapping[str, list[str]]) -> str:
    """Return values.yaml with every block replaced; each block must exist."""
    for path, lines in filled.items():
        name = re.escape(path)
        pattern = re.compile(
            rf"^(?P<indent> *)(?P<begin># BEGIN {name},.*\n)(?s:.*?)(?P<end> *# END {name}\n)", re.MULTILINE
        )
        found = pattern.search(text)
        assert found is not None, f"values.yaml has no block {path}"
        body = "".join(f"{found['indent']}{line}\n" for line in lines)
        text = text[: found.start()] + found["indent"] + found["begin"] + body + found["end"] + text[found.end() :]
    return text


def _lines(path: str) -> Iterator[str]:
    yield f"{path.rpartition('.')[2]}:"
    descriptions = descriptions_of(FORMS[path])
    for key, default in keys_of(path).items():
        for number, line in enumerate(wrap(descriptions[key], _WIDTH - 8)):
            yield f"  # {'' if number else '-- '}{line}"
        yield f"  {key}: {json.dumps(default)}"
