"""The matrices themselves: what they name exists, and the page shows it."""

from tests.agent.frameworks.distributed import jobs as distributed_jobs
from tests.agent.frameworks.distributed import matrix as distributed
from tests.agent.frameworks.jobs import SCRIPTS
from tests.agent.frameworks.matrix import ABSENT, FRAMEWORKS, SIGNALS, Cell
from tests.agent.frameworks.page import render


def test_every_script_has_a_row():
    """No training script is left out of the matrix, and none is named that is not there."""
    scripts = {path.name for path in SCRIPTS.glob("*.py")} - {"workload.py"}
    assert {framework.script for framework in FRAMEWORKS.values()} == scripts


def test_rows_name_signals():
    """A misspelt signal would be asserted nowhere."""
    assert {signal for framework in FRAMEWORKS.values() for signal in framework.cells} == set(SIGNALS)
    assert all(framework.cell("no such signal") is ABSENT for framework in FRAMEWORKS.values())


def test_the_page_shows_every_cell():
    """One line of docs/frameworks.md per framework, with its cells in the order of the signals, each cell explained."""
    lines = render().splitlines()
    for framework in FRAMEWORKS.values():
        cells = " | ".join(framework.cell(signal).value for signal in SIGNALS)
        assert f"| {framework.title} | {cells} |" in lines
    for cell in Cell:
        assert any(line.startswith(f"- *{cell.value}*: ") for line in lines)


def test_every_distributed_script_has_a_row():
    """No training script is left out of the matrix but the modules that scripts import, and each launcher has a command."""
    scripts = {path.name for path in distributed_jobs.SCRIPTS.glob("*.py")} - {"ledger.py", "megatron_cpu.py"}
    assert {framework.script for framework in distributed.FRAMEWORKS.values()} == scripts
    for framework in distributed.FRAMEWORKS.values():
        assert str(distributed_jobs.SCRIPTS / framework.script) in distributed_jobs.command(framework, port=1)
        assert 0 <= framework.slow_rank < framework.ranks


def test_distributed_rows_name_signals():
    """A misspelt signal would be asserted nowhere."""
    assert {signal for framework in distributed.FRAMEWORKS.values() for signal in framework.cells} <= set(
        distributed.SIGNALS
    )


def test_the_page_shows_every_distributed_cell():
    """One line of docs/frameworks.md per framework over several ranks, and one per framework that does not run."""
    lines = render().splitlines()
    for framework in distributed.FRAMEWORKS.values():
        cells = " | ".join(framework.cell(signal).value for signal in distributed.SIGNALS)
        assert f"| {framework.title} | {framework.launcher} | {cells} |" in lines
    for tried in distributed.NOT_RUN:
        assert f"- **{tried.title}**: {tried.reason}." in lines
