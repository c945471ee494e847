"""Parses values.yaml into rows: path, default, and the text of the `# -- ` comment above each key."""

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_][\w.-]*):(?P<rest>.*)$")


@dataclass(frozen=True, slots=True)
class ChartValue:
    """One key that a site may set; `default` is its value in values.yaml."""

    path: str
    default: Any
    text: str


def read_values(text: str) -> list[ChartValue]:
    """Return every documented key in the order of the file."""
    tree = yaml.safe_load(text)
    found: list[ChartValue] = []
    parents: list[tuple[int, str]] = []
    note: list[str] = []
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("# -- "):
            note = [comment.removeprefix("# -- ")]
        elif comment.startswith("# ") and note:
            note.append(comment.removeprefix("# "))
        elif match := _KEY.match(line):
            parents = [parent for parent in parents if parent[0] < len(match["indent"])]
            parents.append((len(match["indent"]), match["key"]))
            if note:
                path = ".".join(name for _, name in parents)
                found.append(ChartValue(path, value_at(tree, path), " ".join(note)))
            note = []
    return found


def value_at(tree: Any, path: str) -> Any:
    """Return the default at a path."""
    for key in path.split("."):
        tree = tree[key]
    return tree


def table(values: list[ChartValue]) -> str:
    """Return the rows as Markdown."""
    lines = ["| key | default | meaning |\n", "| --- | --- | --- |\n"]
    for value in values:
        default = json.dumps(value.default).replace("|", "\\|")
        text = value.text.replace("|", "\\|")
        lines.append(f"| `{value.path}` | `{default}` | {text} |\n")
    return "".join(lines)
