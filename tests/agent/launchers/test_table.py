"""The table of launchers: its scripts exist, and the page shows each row."""

from tests.agent.launchers.page import render
from tests.agent.launchers.table import STARTS
from tests.agent.launchers.test_launchers import SCRIPTS


def test_every_script_is_started():
    """No script is left out of the table, and none is named that is not there."""
    scripts = {path.name for path in SCRIPTS.glob("*.py")} - {"training.py"}
    named = {name for name in scripts for start in STARTS.values() if f"{{scripts}}/{name}" in start.command}
    assert named == scripts
    assert all(
        (SCRIPTS / start.command.split("{scripts}/")[1].split()[0].strip("'")).is_file() for start in STARTS.values()
    )


def test_the_page_shows_every_row():
    """One line of docs/launchers.md per way to start."""
    lines = render().splitlines()
    for start in STARTS.values():
        assert f"| {start.title} | `{start.shown}` | {start.source} | {start.run_shown} |" in lines
