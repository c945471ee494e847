"""Facts of a node's hardware: CPU throttling, memory errors, InfiniBand ports, NVIDIA devices and their links.

Counters run since the node's boot or the driver's start. NVIDIA's come from `nvidia-smi`, if it is installed; only
queries are used, and nothing is set.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.doctor.files import count_of, text_of

_TIMEOUT_S = 20.0
_PORTS_MAX, _CPUS_MAX, _CONTROLLERS_MAX = 256, 4096, 256
_PORT_COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
_HARDWARE_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans")
_QUERY = (
    *("index", "name", "uuid", "clocks.sm", "clocks.max.sm"),
    *("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total"),
    *("pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max"),
)
_FIELDS = (
    *("index", "name", "uuid", "sm_mhz", "sm_max_mhz", "ecc_corrected", "ecc_uncorrected"),
    *("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max", "throttle_reasons"),
)
_TEXTS = ("name", "uuid", "throttle_reasons")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The current name of the field, and its name in drivers before 535."""
_DEVICE = re.compile(r"GPU (\d+):")
_LINK = re.compile(r"\s+Link (\d+): (.*)")
_ERRORS = re.compile(r"\s+Link \d+: .*Error.*: (\d+)")


def read_hardware(root: Path = Path("/")) -> dict[str, Any]:
    """Return the node's hardware facts as JSON values; a missing part is an empty list or object."""
    smi = _nvidia_smi(root)
    return {
        "cpu_throttling": _cpu_throttling(root),
        "memory_errors": _memory_errors(root),
        "infiniband": _infiniband(root),
        "nvidia": [] if smi is None else _nvidia(smi),
        "nvlink": [] if smi is None else _nvlink(smi),
    }


def _cpu_throttling(root: Path) -> dict[str, int]:
    """Return for how long and how often CPU packages were throttled, the maximum over them, and the node's uptime."""
    folders = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle"))[:_CPUS_MAX]
    counts = [count_of(each / "package_throttle_count") for each in folders]
    times_ms = [count_of(each / "package_throttle_total_time_ms") for each in folders]
    known, known_ms = [each for each in counts if each is not None], [each for each in times_ms if each is not None]
    uptime = text_of(root / "proc/uptime").partition(".")[0]
    found = {"throttle_count": max(known)} if known else {}
    found |= {"throttled_ms": max(known_ms)} if known_ms else {}
    return found | ({"uptime_seconds": int(uptime)} if found and uptime.isdecimal() else {})


def _memory_errors(root: Path) -> dict[str, int]:
    """Return the error counts of all memory controllers (EDAC)."""
    controllers = sorted((root / "sys/devices/system/edac/mc").glob("mc[0-9]*"))[:_CONTROLLERS_MAX]
    names = {"corrected": "ce_count", "uncorrected": "ue_count"}
    return {
        name: sum(count_of(each / file) or 0 for each in controllers) for name, file in names.items() if controllers
    }


def _infiniband(root: Path) -> list[dict[str, Any]]:
    """Return the facts of every port of InfiniBand and RoCE adapters."""
    folders = sorted((root / "sys/class/infiniband").glob("*/ports/*"))[:_PORTS_MAX]
    return [_port(folder) for folder in folders]


def _port(folder: Path) -> dict[str, Any]:
    adapter = folder.parent.parent
    counters = {name: count_of(folder / "counters" / name) for name in _PORT_COUNTERS}
    counters |= {name: count_of(folder / "hw_counters" / name) for name in _HARDWARE_COUNTERS}
    return {
        "port": f"{adapter.name}/{folder.name}",
        "link_layer": text_of(folder / "link_layer").strip(),
        "state": text_of(folder / "state").partition(":")[2].strip(),
        "physical_state": text_of(folder / "phys_state").partition(":")[2].strip(),
        "gbit_per_second": _leading_number(text_of(folder / "rate")),
        "pcie_width": count_of(adapter / "device/current_link_width"),
        "pcie_width_max": count_of(adapter / "device/max_link_width"),
        "pcie_gt_per_second": _leading_number(text_of(adapter / "device/current_link_speed")),
        "pcie_gt_per_second_max": _leading_number(text_of(adapter / "device/max_link_speed")),
        "counters": {name: count for name, count in counters.items() if count is not None},
    }


def _leading_number(text: str) -> float | None:
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,9})?)", text, re.ASCII)
    return float(match[1]) if match else None


def _nvidia_smi(root: Path) -> Path | None:
    if root != Path("/"):
        path = root / "usr/bin/nvidia-smi"
        return path if path.is_file() else None
    found = shutil.which("nvidia-smi")
    return None if found is None else Path(found)


def _smi_output(smi: Path, *arguments: str) -> str:
    """Return the output of nvidia-smi, empty if it fails or hangs."""
    try:
        done = subprocess.run(  # noqa: S603  (our own arguments)
            [str(smi), *arguments], capture_output=True, timeout=_TIMEOUT_S, check=True, text=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _nvidia(smi: Path) -> list[dict[str, Any]]:
    """Return the facts of every device, without values that it does not have ([N/A])."""
    for reasons in _REASONS:
        answer = _smi_output(smi, f"--query-gpu={','.join([*_QUERY, reasons])}", "--format=csv,noheader,nounits")
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
        found = [_device(row) for row in rows if len(row) == len(_FIELDS)]
        if found:
            return found
    return []


def _device(row: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in zip(_FIELDS, row, strict=True):
        if name in _TEXTS:
            found[name] = text
        elif (number := _leading_number(text)) is not None:
            found[name] = int(number)
    return found


def _nvlink(smi: Path) -> list[dict[str, int]]:
    """Return, by device, how many links are up and down, and how many errors they counted."""
    found: dict[int, dict[str, int]] = {}
    device: dict[str, int] | None = None
    for line in _smi_output(smi, "nvlink", "--status").splitlines():
        if header := _DEVICE.match(line):
            device = found.setdefault(int(header[1]), {"index": int(header[1]), "up": 0, "down": 0, "errors": 0})
        elif device is not None and (link := _LINK.match(line)):
            device["down" if "inactive" in link[2].lower() else "up"] += 1
    device = None
    for line in _smi_output(smi, "nvlink", "--errorcounters").splitlines():
        if header := _DEVICE.match(line):
            device = found.get(int(header[1]))
        elif device is not None and (errors := _ERRORS.match(line)):
            device["errors"] += int(errors[1])
    return [found[index] for index in sorted(found)]
