"""Generates the JSON schema and the table in docs/simulator.md from the fields of a job specification."""

import json
from pathlib import Path

from lockstep.simulator.spec.schema import rows, schema

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "lockstep" / "simulator" / "spec" / "schema.json"
PAGE = ROOT / "docs" / "simulator.md"
BEGIN = "<!-- fields: written by make generate from lockstep/simulator/spec -->\n"
END = "<!-- end of fields -->\n"


def render() -> dict[Path, str]:
    """Return the text of the schema and of the page, by path; only the table of the page is replaced."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return {SCHEMA: json.dumps(schema(), indent=1) + "\n", PAGE: f"{head}{BEGIN}\n{_table()}\n{END}{tail}"}


def _table() -> str:
    lines = [("field", "holds", "default", "meaning"), ("---",) * 4]
    lines += [(f"`{path}`", holds, default and f"`{default}`", meaning) for path, holds, default, meaning in rows()]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
