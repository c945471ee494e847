"""The commands that take a node out of scheduling: what stands on the page is what a shell passes on, word for word."""

import shlex
import subprocess

import pytest

from coordinator.detect.anomalies import FLUCTUATION, SLOW_RANK
from coordinator.page.incident_report import render_report
from coordinator.page.node_commands import NODES_MAX, node_commands
from coordinator.settings.config import CoordinatorConfig
from tests.coordinator.test_store import incident


def test_a_slow_rank_gets_the_command_of_each_scheduler():
    """The node by its exporter's name, the incident as the reason; two ranks of one node are one command."""
    slow = incident(kind=SLOW_RANK, scope="rank")
    assert node_commands(slow, ["gpu-7", "gpu-7"]) == (
        ("Kubernetes", "kubectl cordon gpu-7"),
        ("Slurm", f"scontrol update NodeName=gpu-7 State=DRAIN 'Reason=Lockstep incident {slow.id}'"),
    )


@pytest.mark.parametrize("run", ["job'; touch gone; '", "a$(touch gone)b", 'a"b`touch gone`', "two\nlines"])
def test_a_shell_passes_on_what_was_written(tmp_path, run):
    """Whatever a run is called, scontrol gets five arguments and nothing else is run."""
    (_, _), (_, command) = node_commands(incident(id=f"{run}-1", kind=SLOW_RANK, scope="rank"), ["gpu-7"])
    shown = f"scontrol() {{ printf '%s\\0' \"$@\"; }}; {command}"
    done = subprocess.run(["sh", "-c", shown], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == shlex.split(command)[1:]
    assert len(shlex.split(command)) == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("node", ["--all", "n[1-1000]", "a,b", "a b", "", "x;reboot", "n\n"])
def test_a_name_that_means_more_than_a_node_gets_no_command(node):
    """Neither an option, nor a host list of Slurm, nor a second command."""
    assert node_commands(incident(kind=SLOW_RANK, scope="rank"), [node]) == ()


def test_where_no_node_is_to_blame_there_is_none():
    """A run that is slower as a whole, a network, and more nodes than can be at fault one by one."""
    assert node_commands(incident(kind=FLUCTUATION, scope="job"), ["gpu-7"]) == ()
    assert node_commands(incident(kind=SLOW_RANK, scope="rank"), [f"n{i}" for i in range(NODES_MAX + 1)]) == ()
    assert "scheduling" not in render_report(incident(kind=FLUCTUATION, scope="job"), CoordinatorConfig())
