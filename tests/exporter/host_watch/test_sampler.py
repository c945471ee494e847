"""Counters of fake trees on a fake clock, and those of this very process."""

import os
import time
from pathlib import Path

import pytest

from exporter.host_watch.host_reading import Target
from exporter.host_watch.sampler import CPU, MEMORY, NIC, ResourceSampler, memory_bytes, network_bytes, network_peak

MS = 1_000_000
TARGET = Target(run="r", rank=3, ring="/nowhere", pid=7)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def node(tmp_path: Path):
    """Make a node with one rank, one network card of 1 Gbit/s and one memory controller."""
    write(tmp_path / "sys/class/net/eth0/speed", 1000)
    write(tmp_path / "sys/class/net/lo/statistics/rx_bytes", 10**9)
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    count(tmp_path, cpu_ns=1, sent=0, received=0, moved=0)
    return tmp_path


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def count(root: Path, *, cpu_ns: int, sent: int, received: int, moved: int) -> None:
    write(root / "proc/7/task/7/schedstat", f"{cpu_ns} 5 9")
    write(root / "sys/class/net/eth0/statistics/tx_bytes", sent)
    write(root / "sys/class/net/eth0/statistics/rx_bytes", received)
    write(root / "sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes", moved)


def sampled(node: Path):
    """Return a sampler that read four times in 30 ms: busy, idle, busy."""
    clock = Clock()
    sampler = ResourceSampler(root=node, clock_ns=clock, pause=lambda _: None)
    sampler._targets = [TARGET]
    for cpu_ms, megabytes in ((0, 0), (10, 1), (10, 1), (15, 2)):
        count(node, cpu_ns=1 + cpu_ms * MS, sent=megabytes * 10**6, received=0, moved=megabytes * 10**9)
        sampler.sample()
        clock.now_ns += 10 * MS
    return sampler


def test_counters_become_ratios_of_what_the_resource_can_do(node):
    """A core is 1, the card moves 250 MB/s both ways together, memory as much as it was ever seen to."""
    found = sampled(node).series("r", 3, 1_000_000_000, 1_030_000_000, offset_ns=7)
    assert set(found) == {CPU, MEMORY, NIC}
    assert found[CPU].ratios == [1.0, 0.0, 0.5]
    assert found[NIC].ratios == [0.4, 0.0, 0.4]
    assert found[MEMORY].ratios == [1.0, 0.0, 1.0]
    assert (found[CPU].start_ns, found[CPU].period_ns) == (1_005_000_007, 10 * MS)


def test_only_the_span_is_returned_with_what_brackets_it(node):
    """The reading before it and the one after it bound the rates inside."""
    found = sampled(node).series("r", 3, 1_012_000_000, 1_018_000_000, offset_ns=0)
    assert found[CPU].ratios == [0.0]
    assert sampled(node).series("r", 3, 5, 6, offset_ns=0) == {}
    assert CPU not in sampled(node).series("other", 3, 0, 1 << 62, offset_ns=0)


def test_what_the_node_does_not_show_is_absent(tmp_path):
    """No card, no resctrl, no schedstat: nothing is made up."""
    assert (network_bytes(tmp_path), network_peak(tmp_path), memory_bytes(tmp_path)) == (None, None, None)
    write(tmp_path / "sys/class/net/eth0/statistics/rx_bytes", 5)
    (tmp_path / "sys/class/net/eth0/device").mkdir()
    write(tmp_path / "sys/class/net/eth0/speed", -1)
    assert (network_bytes(tmp_path), network_peak(tmp_path)) == (5, None)


def test_ports_of_infiniband_count_in_words(tmp_path):
    """Four bytes each, and a rate in Gbit/s."""
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    write(port / "counters/port_rcv_data", 10)
    write(port / "counters/port_xmit_data", 5)
    write(port / "rate", "100 Gb/sec (4X EDR)")
    assert network_bytes(tmp_path) == 60
    assert network_peak(tmp_path) == 2 * 12.5e9


def test_the_thread_ends_when_no_capture_is_near_and_pauses_for_what_it_costs(node):
    """It reads until the time is over, and no more than a 250th of a core on average."""
    clock, pauses = Clock(), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.now_ns += round(seconds * 1e9)

    sampler = ResourceSampler(root=node, clock_ns=clock, pause=pause)
    sampler.note_capture([TARGET])
    thread = sampler._thread
    if thread is not None:
        thread.join(30)
    assert sampler._thread is None
    assert sum(pauses) >= 10
    assert sampler.cost_ns <= 0.0041e9 * sum(pauses)


def test_this_process_is_seen_to_compute():
    """The real kernel's counters: a loop takes a core as far as the machine gives one."""
    sampler = ResourceSampler()
    sampler._targets = [Target(run="r", rank=0, ring="/nowhere", pid=os.getpid())]
    begun_ns = time.monotonic_ns()
    sampler.sample()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    sampler.sample()
    found = sampler.series("r", 0, begun_ns, time.monotonic_ns(), offset_ns=0)
    wall_s = (time.monotonic_ns() - begun_ns) / 1e9
    assert found[CPU].ratios[0] == pytest.approx(min(0.2 / wall_s, 1.0), abs=0.3)
