"""A /proc and a /sys/fs/cgroup of our own, as the kernel writes them."""

from pathlib import Path

import pytest

TICK_NS = 10_000_000
MS = 1_000_000
S = 1_000_000_000


class FakeNode:
    """Files below `proc` and `cgroups`; what is not written is not there."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroups = folder / "cgroup"
        self.proc.mkdir()
        self.cgroups.mkdir()

    def process(self, pid: int, command: str = "python", *, parent: int = 1, start: int = 5, **ticks: int) -> None:
        """Write stat; `user`, `system`, `user_reaped` and `system_reaped` in ticks of 10 ms."""
        times = [ticks.get(name, 0) for name in ("user", "system", "user_reaped", "system_reaped")]
        values = ["S", parent, pid, pid, 0, -1, 4194304, 0, 0, 0, 0, *times, 20, 0, 1, 0, start, 10000, 100, *[0] * 28]
        self.write(f"{pid}/stat", f"{pid} ({command}) {' '.join(map(str, values))}\n")

    def cores(self, pid: int, text: str) -> None:
        self.write(f"{pid}/status", f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{text}\nMems_allowed:\t1\n")

    def waited(self, pid: int, wait_ns: int) -> None:
        self.write(f"{pid}/task/{pid}/schedstat", f"123 {wait_ns} 7\n")

    def busy(self, *cores_ticks: int) -> None:
        """Write /proc/stat with so many ticks of work of each core, shared by its five kinds."""
        lines = [f"cpu  {sum(cores_ticks)} 0 0 99 0 0 0 0 0 0"]
        for core, ticks in enumerate(cores_ticks):
            lines.append(f"cpu{core} {ticks - 4} 1 1 999 77 1 1 55 0 0")
        self.write("stat", "\n".join([*lines, "intr 1 2 3", "ctxt 5"]) + "\n")

    def group(self, path: str, text: str) -> None:
        file = self.cgroups / path / "cpu.stat"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def write(self, name: str, text: str) -> None:
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)
