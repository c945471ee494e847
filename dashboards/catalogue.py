"""The list of all dashboards. A new one is a module or a package with a `BOARD`, added here."""

from pathlib import Path

from dashboards import builders, diagnoses, domains, fleet, rank, self_monitoring
from dashboards.run import board as run

RENDERED = Path(__file__).parent / "rendered"

BOARDS = {
    "fleet": fleet.BOARD,
    "run": run.BOARD,
    "domains": domains.BOARD,
    "rank": rank.BOARD,
    "diagnoses": diagnoses.BOARD,
    "self-monitoring": self_monitoring.BOARD,
}
"""Dashboards by file name without its extension."""


def render() -> dict[Path, str]:
    """Return the text of every rendered file."""
    return {RENDERED / f"{name}.json": builders.render(board) for name, board in BOARDS.items()}
