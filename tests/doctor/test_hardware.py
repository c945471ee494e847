"""Hardware facts of made nodes: a /sys tree and an nvidia-smi that prints what NVIDIA documents."""

import json

import pytest

from lockstep.doctor.checks import check_all
from lockstep.doctor.facts import read_facts
from lockstep.doctor.hardware import read_hardware
from lockstep.doctor.verdict import FAIL, OK, WARN

SMI = """#!/bin/sh
case "$*" in
  *clocks_event_reasons*) {today} ;;
  *clocks_throttle_reasons*) cat {root}/gpus.csv ;;
  "nvlink --status") cat {root}/status.txt ;;
  "nvlink --errorcounters") cat {root}/errors.txt ;;
  *) exit 6 ;;
esac
"""
GPUS = """0, NVIDIA H100 80GB HBM3, GPU-aaaa, 1980, 1980, 0, 0, 5, 5, 16, 16, 0x0000000000000004
1, NVIDIA H100 80GB HBM3, GPU-bbbb, 345, 1980, [N/A], 0, 5, 5, 16, 16, 0x0000000000000048
"""
STATUS = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
"""
ERRORS = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
\t Link 0: Replay Errors: 0
\t Link 0: CRC Errors: 0
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
\t Link 0: Replay Errors: 3
\t Link 0: Recovery Errors: 1
"""


@pytest.fixture
def node(tmp_path):
    """Return a node, and what writes files into it."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    tmp_path_and_write = tmp_path, write
    for adapter, rate in (("mlx5_0", "400 Gb/sec (4X NDR)"), ("mlx5_1", "200 Gb/sec (4X HDR)")):
        port = f"sys/class/infiniband/{adapter}/ports/1"
        write(f"{port}/state", "4: ACTIVE\n")
        write(f"{port}/phys_state", "5: LinkUp\n")
        write(f"{port}/rate", rate + "\n")
        write(f"{port}/link_layer", "InfiniBand\n")
        write(f"{port}/counters/symbol_error", "0\n")
        write(f"{port}/counters/link_downed", "0\n")
        write(f"sys/class/infiniband/{adapter}/device/current_link_width", "16\n")
        write(f"sys/class/infiniband/{adapter}/device/max_link_width", "16\n")
    return tmp_path_and_write


@pytest.fixture
def smi(node):
    """Install an nvidia-smi of a driver that knows today's names."""
    root, write = node
    write("gpus.csv", GPUS)
    write("status.txt", STATUS)
    write("errors.txt", ERRORS)
    return lambda today: write("usr/bin/nvidia-smi", SMI.format(root=root, today=today.format(root=root))).chmod(0o755)


def checks(root):
    facts = json.loads(json.dumps(read_facts(root=root, environment={})))
    return {check.name: check for check in check_all(facts)}


def test_a_node_without_any_of_it_is_well(tmp_path):
    """No adapter, no device, no counter: each check states that, and none warns."""
    assert read_hardware(tmp_path) == {
        "cpu_throttling": {},
        "memory_errors": {},
        "infiniband": [],
        "nvidia": [],
        "nvlink": [],
    }
    found = checks(tmp_path)
    for name in ("CPU throttling", "memory errors", "InfiniBand", "device clocks", "device ECC", "NVLink"):
        assert found[name].verdict == OK, name


def test_a_port_that_is_slower_than_its_neighbour_is_named(node):
    """A link that came up at half its rate is what slows every collective."""
    check = checks(node[0])["InfiniBand"]
    assert (check.verdict, check.found) == (WARN, "mlx5_1/1 runs at 200 Gbit/s, others at 400")
    assert check.advice


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("ports/1/counters/link_downed", "2\n", "mlx5_0/1 was down 2 times and recovered 0 times"),
        ("ports/1/counters/link_error_recovery", "7\n", "mlx5_0/1 was down 0 times and recovered 7 times"),
        ("ports/1/counters/symbol_error", "5000\n", "mlx5_0/1 counts 5000 of symbol_error"),
        ("ports/1/hw_counters/packet_seq_err", "100\n", "mlx5_0/1 counts 100 of packet_seq_err"),
        ("device/current_link_width", "8\n", "mlx5_0/1 is on PCIe with 8 of 16 lanes"),
    ],
)
def test_a_port_with_errors_is_named(node, path, text, words):
    """Counters that mean a bad cable or a bad slot."""
    root, write = node
    write("sys/class/infiniband/mlx5_1/ports/1/rate", "400 Gb/sec (4X NDR)\n")
    assert checks(root)["InfiniBand"].found == "2 of 2 ports active, without errors"
    write(f"sys/class/infiniband/mlx5_0/{path}", text)
    check = checks(root)["InfiniBand"]
    assert check.verdict == WARN
    assert words in check.found


@pytest.mark.parametrize(("downed", "verdict"), [("0\n", OK), ("1\n", WARN)])
def test_a_port_that_was_never_up_is_unused(node, downed, verdict):
    """Ports without a cable are usual; one that was up and is down is not."""
    root, write = node
    write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
    write("sys/class/infiniband/mlx5_1/ports/1/counters/link_downed", downed)
    assert checks(root)["InfiniBand"].verdict == verdict


def test_throttled_cpus_and_memory_errors(node):
    """Seconds against the uptime; the sum over memory controllers."""
    root, write = node
    for cpu in (0, 1):
        folder = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        write(f"{folder}/package_throttle_count", "40\n")
        write(f"{folder}/package_throttle_total_time_ms", "90000\n")
    write("proc/uptime", "10000.5 3.0\n")
    for controller in (0, 1):
        write(f"sys/devices/system/edac/mc/mc{controller}/ce_count", "600\n")
        write(f"sys/devices/system/edac/mc/mc{controller}/ue_count", "0\n")
    found = checks(root)
    assert found["CPU throttling"].verdict == WARN
    assert found["CPU throttling"].found == "throttled 40 times, 90.0 s in all since boot"
    assert (found["memory errors"].verdict, found["memory errors"].found) == (
        WARN,
        "1200 corrected, 0 uncorrected since boot",
    )
    write("sys/devices/system/edac/mc/mc1/ue_count", "1\n")
    assert checks(root)["memory errors"].verdict == FAIL
    write("proc/uptime", "900000000.5 3.0\n")
    assert checks(root)["CPU throttling"].verdict == OK


@pytest.mark.parametrize("today", ["cat {root}/gpus.csv", "exit 2"])
def test_devices_are_read_under_both_names_of_the_field(node, smi, today):
    """Drivers before 535 refuse the new name of throttle reasons."""
    smi(today)
    found = read_hardware(node[0])
    assert found["nvidia"][0] == {
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-aaaa",
        "sm_mhz": 1980,
        "sm_max_mhz": 1980,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "throttle_reasons": "0x0000000000000004",
    }
    assert "ecc_corrected" not in found["nvidia"][1]
    assert found["nvlink"] == [
        {"index": 0, "up": 2, "down": 0, "errors": 0},
        {"index": 1, "up": 1, "down": 1, "errors": 4},
    ]


def test_a_hot_device_and_a_lost_link_are_named(node, smi):
    """Heat slows it; a power cap under load, on the other device, is usual."""
    smi("cat {root}/gpus.csv")
    found = checks(node[0])
    assert found["device clocks"].found == "device 1: hardware slowdown, hardware thermal slowdown at 345 of 1980 MHz"
    assert found["NVLink"].found == "device 1 has 1 links up, others 2; device 1 counts 4 errors of its links"
    assert (found["device clocks"].verdict, found["NVLink"].verdict, found["device ECC"].verdict) == (WARN, WARN, OK)


def test_uncorrected_errors_stop_jobs(node, smi):
    """One is enough."""
    smi("cat {root}/gpus.csv")
    node[1]("gpus.csv", GPUS.replace("1980, 1980, 0, 0,", "1980, 1980, 7, 2,"))
    check = checks(node[0])["device ECC"]
    assert (check.verdict, check.found) == (FAIL, "device 0: 2 uncorrected, 7 corrected")


def test_an_nvidia_smi_that_fails_is_no_error(node):
    """A driver that does not answer leaves no devices."""
    node[1]("usr/bin/nvidia-smi", "#!/bin/sh\nexit 9\n").chmod(0o755)
    assert read_hardware(node[0])["nvidia"] == []
