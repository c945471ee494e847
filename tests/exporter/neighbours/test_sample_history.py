"""The needed series of a page are kept for a while, and nothing else is."""

import random

import pytest

from exporter.neighbours.sample_history import SERIES_MAX, SampleHistory, parse_page
from lockstep.contracts.neighbour_series import NEIGHBOUR_METRICS
from tests.coordinator.evidence.neighbours import FAULTS, SUSPECT, Site

PAGE = """# HELP node_vmstat_oom_kill /proc/vmstat information field oom_kill.
# TYPE node_vmstat_oom_kill untyped
node_vmstat_oom_kill 3
node_cpu_seconds_total{cpu="0",mode="idle"} 10.5
node_cpu_seconds_total{cpu="0",mode="user"} 1e3
node_load1 0.5
node_network_speed_bytes{device="a \\"quoted\\" name"} 1.25e+10
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",Hostname="n1"} 1980
"""


def kept(page: SampleHistory, start_s: float = 0, end_s: float = 1e12) -> dict[str, list[float | None]]:
    return {each["labels"]["__name__"]: each["values"] for each in page.between(start_s, end_s)["series"]}


def test_only_what_evidence_reads():
    """Other metrics and modes of the CPU are skipped; series without an instance get the node's name."""
    found, malformed = parse_page(PAGE, "node-1")
    by_name = {dict(labels)["__name__"]: (dict(labels), value) for labels, value in found.items()}
    assert malformed == 0
    assert set(by_name) == {
        *("node_vmstat_oom_kill", "node_cpu_seconds_total", "node_network_speed_bytes", "DCGM_FI_DEV_SM_CLOCK")
    }
    assert by_name["node_cpu_seconds_total"] == (
        {"__name__": "node_cpu_seconds_total", "cpu": "0", "mode": "idle", "instance": "node-1"},
        10.5,
    )
    assert by_name["node_network_speed_bytes"][0]["device"] == 'a "quoted" name'
    assert by_name["DCGM_FI_DEV_SM_CLOCK"][0]["UUID"] == "GPU-1"


def test_every_series_of_the_neighbours_is_kept():
    """Pages of the real names, of each vendor."""
    for fault in FAULTS[::9]:
        names = {line.partition("{")[0] for line in Site(0, fault, SUSPECT).text(1.0, 1.0).splitlines()}
        ours = {name for name in names if not name.startswith("lockstep_")}
        unread = {"DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_POWER_USAGE"}
        unread |= {"DCGM_FI_DEV_GPU_UTIL", "node_infiniband_port_data_transmitted_bytes_total"}
        assert ours - unread <= NEIGHBOUR_METRICS


def test_samples_of_a_while():
    """The oldest leave; a series that came late or went has gaps; one without any sample is gone."""
    page = SampleHistory("n", samples_max=3)
    page.add("node_vmstat_oom_kill 1\n", 10)
    page.add("node_vmstat_oom_kill 2\nnode_memory_MemTotal_bytes 9\n", 20)
    page.add("node_memory_MemTotal_bytes 9\n", 30)
    assert page.between(0, 99)["times_s"] == [10, 20, 30]
    assert kept(page) == {"node_vmstat_oom_kill": [1, 2, None], "node_memory_MemTotal_bytes": [None, 9, 9]}
    assert kept(page, 15, 25) == {"node_vmstat_oom_kill": [2], "node_memory_MemTotal_bytes": [9]}
    page.add("", 40)
    page.add("", 50)
    assert kept(page) == {"node_memory_MemTotal_bytes": [9, None, None]}
    assert page.series_count == 1
    page.add("node_memory_MemTotal_bytes 1\n", 45)  # the clock was set back
    assert page.between(0, 99)["times_s"] == [30, 40, 50]


def test_series_are_bounded():
    """What is too much is left out and counted."""
    page = SampleHistory("n", samples_max=3)
    text = "".join(f'node_disk_io_time_seconds_total{{device="d{number}"}} 1\n' for number in range(SERIES_MAX + 7))
    assert page.add(text, 1) == (0, 7)
    assert page.series_count == SERIES_MAX


@pytest.mark.parametrize(
    "line",
    [
        'node_disk_io_time_seconds_total{device="x" 1',
        "node_vmstat_oom_kill one",
        "node_vmstat_oom_kill",
        'node_vmstat_oom_kill{a="' + "x" * 5000 + '"} 1',
    ],
)
def test_malformed_lines_cost_themselves(line: str):
    """They are counted, and the rest of the page is read."""
    found, malformed = parse_page(f"{line}\nnode_memory_MemTotal_bytes 9\nnode_vmstat_oom_kill NaN\n", "n")
    assert ([dict(labels)["__name__"] for labels in found], malformed) == (["node_memory_MemTotal_bytes"], 1)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_pages_raise_nothing(seed: int):
    """Characters changed at random."""
    chance = random.Random(seed)
    for _ in range(100):
        damaged = list(PAGE)
        for _ in range(20):
            damaged[chance.randrange(len(damaged))] = chr(chance.randrange(1, 0x250))
        parse_page("".join(damaged), "n")
