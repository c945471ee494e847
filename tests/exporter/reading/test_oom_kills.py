"""The kernel's counts of what it killed for want of memory: of cgroup v1 and v2, of groups that change, of the host."""

from pathlib import Path

import pytest

from exporter.reading.oom_kills import SAMPLE_INTERVAL_NS, group_oom_kills, host_oom_kills

PID = 7


@pytest.fixture
def node(tmp_path):
    """Return a function that puts the process into groups: lines of its cgroup file, and kills by file."""

    def write(lines, kills):
        (tmp_path / "proc" / str(PID)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / str(PID) / "cgroup").write_text("".join(f"{line}\n" for line in lines))
        for name, count in kills.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
        return str(tmp_path / "proc"), str(tmp_path / "groups")

    return write


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        (["0::/job"], "groups/job/memory.events"),
        (["4:memory:/job", "0::/"], "groups/memory/job/memory.oom_control"),
        (["0::/", "4:cpu,memory:/job"], "groups/cpu,memory/job/memory.oom_control"),
        (["0::/job/step"], "groups/job/memory.events"),  # memory is not delegated to the step
    ],
)
def test_the_innermost_group_that_counts_is_asked(node, tmp_path, lines, file):
    """Of cgroup v2, of v1, and of both mounted at once."""
    (tmp_path / "groups" / "job" / "step").mkdir(parents=True)
    kills = group_oom_kills(PID, *node(lines, {file: 2}))
    assert kills.have_risen() is None
    kills.sample(0)
    assert kills.have_risen() is False
    node(lines, {file: 3})
    assert kills.have_risen() is True


def test_a_process_that_moves_takes_no_kill_of_its_new_group_for_its_own(node):
    """That one may have killed many before."""
    kills = group_oom_kills(PID, *node(["0::/a"], {"groups/a/memory.events": 0, "groups/b/memory.events": 5}))
    kills.sample(0)
    node(["0::/b"], {})
    kills.sample(SAMPLE_INTERVAL_NS - 1)  # too early
    kills.sample(SAMPLE_INTERVAL_NS)
    assert kills.have_risen() is False


def test_a_process_that_exits_is_shown_in_the_root_group(node):
    """By cgroup v1, for as long as the kernel takes its memory back; the kill was counted in its own group before."""
    files = {"groups/memory/job/memory.oom_control": 0, "groups/memory/memory.oom_control": 0}
    kills = group_oom_kills(PID, *node(["4:memory:/job"], files))
    kills.sample(0)
    node(["4:memory:/"], {"groups/memory/job/memory.oom_control": 1})
    kills.sample(SAMPLE_INTERVAL_NS)
    assert kills.have_risen() is True


def test_kills_of_long_ago_do_not_count(node):
    """A kill is counted when it begins, seconds before the process is gone at most."""
    kills = group_oom_kills(PID, *node(["0::/a"], {"groups/a/memory.events": 0}))
    kills.sample(0)
    node(["0::/a"], {"groups/a/memory.events": 1})
    for second in range(1, 6):
        kills.sample(second * SAMPLE_INTERVAL_NS)
    assert kills.have_risen() is True
    kills.sample(6 * SAMPLE_INTERVAL_NS)
    assert kills.have_risen() is False


def test_this_host_counts():
    """/proc/vmstat is longer than what one read returns, on some kernels."""
    kills = host_oom_kills()
    kills.sample(0)
    assert kills.have_risen() is not None
    assert "oom_kill" in Path("/proc/vmstat").read_text()
