"""Evaluates the facts of a node's hardware (`hardware`). A value of the wrong type counts as unknown."""

from collections.abc import Iterable, Mapping
from typing import Any

from lockstep.doctor.verdict import FAIL, OK, UNKNOWN, WARN, Check

THROTTLED_RATIO = 0.001
"""Share of the uptime, our own choice: a node that is throttled for longer is throttled under load."""
CORRECTED_ERRORS = 1000
"""Our own choice: single corrected errors are usual over months."""
PORT_ERRORS = 100
"""Our own choice: counters run since boot, and plugging in a cable causes some errors."""
_HARDWARE_SLOWDOWN, _SOFTWARE_THERMAL, _HARDWARE_THERMAL, _POWER_BRAKE = 0x08, 0x20, 0x40, 0x80
_THROTTLES = {
    _HARDWARE_SLOWDOWN: "hardware slowdown",
    _SOFTWARE_THERMAL: "software thermal slowdown",
    _HARDWARE_THERMAL: "hardware thermal slowdown",
    _POWER_BRAKE: "external power brake",
}
"""Bits of NVML's clocks event reasons that stand for heat or power supply; a power cap under load is usual."""
_NAMED_MAX = 8
_OLD = "missing from these facts: an older version wrote them"
_NVML = "NVML API reference: clocks event reasons, ECC, NVLink"
_LINUX = "Linux kernel documentation: stable ABI of infiniband, EDAC, thermal throttling"

Facts = Mapping[str, Any]


def _mappings(facts: Facts, name: str) -> list[Mapping[str, Any]] | None:
    """Return the items of a list of objects, or None if the facts do not contain it."""
    hardware = facts.get("hardware")
    listed = hardware.get(name) if isinstance(hardware, Mapping) else None
    return [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else None


def _mapping(facts: Facts, name: str) -> Mapping[str, Any] | None:
    hardware = facts.get("hardware")
    found = hardware.get(name) if isinstance(hardware, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _check(name: str, problems: Iterable[str], fine: str, *, advice: str, source: str, verdict: str = WARN) -> Check:
    found = list(problems)
    more = f"; and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return Check(
        name=name,
        verdict=verdict if found else OK,
        found="; ".join(found[:_NAMED_MAX]) + more if found else fine,
        advice=advice if found else "",
        source=source,
    )


def check_cpu_throttling(facts: Facts) -> Check:
    """Whether heat has slowed the CPUs."""
    name, values = "CPU throttling", _mapping(facts, "cpu_throttling")
    if values is None:
        return Check(name=name, verdict=UNKNOWN, found=_OLD)
    count, spent_ms, uptime_s = (_number(values, key) for key in ("throttle_count", "throttled_ms", "uptime_seconds"))
    if count is None:
        return Check(
            name=name, verdict=OK, found="the kernel counts none here (a virtual machine, or another processor)"
        )
    text = f"{count:.0f} times" + ("" if spent_ms is None else f", {spent_ms / 1000:.1f} s in all")
    is_much = bool(spent_ms and uptime_s and spent_ms / 1000 > THROTTLED_RATIO * uptime_s)
    return _check(
        name,
        [f"throttled {text} since boot"] if is_much else [],
        f"throttled {text} since boot",
        advice="look at cooling and power limits of the node (turbostat, ipmitool sensor)",
        source=_LINUX,
    )


def check_memory_errors(facts: Facts) -> Check:
    """Whether main memory has errors."""
    name, values = "memory errors", _mapping(facts, "memory_errors")
    if values is None:
        return Check(name=name, verdict=UNKNOWN, found=_OLD)
    corrected, uncorrected = _number(values, "corrected"), _number(values, "uncorrected")
    if corrected is None or uncorrected is None:
        return Check(name=name, verdict=OK, found="the kernel counts none here (no EDAC driver)")
    text = f"{corrected:.0f} corrected, {uncorrected:.0f} uncorrected since boot"
    is_bad = uncorrected > 0 or corrected >= CORRECTED_ERRORS
    return _check(
        name,
        [text] if is_bad else [],
        text,
        advice="replace the module: corrections cost time, and an uncorrected error ends a job",
        source=_LINUX,
        verdict=FAIL if uncorrected > 0 else WARN,
    )


def check_infiniband(facts: Facts) -> Check:
    """Whether InfiniBand and RoCE ports run at the same speed as the others, and without errors."""
    name, ports = "InfiniBand", _mappings(facts, "infiniband")
    if ports is None:
        return Check(name=name, verdict=UNKNOWN, found=_OLD)
    if not ports:
        return Check(name=name, verdict=OK, found="no adapter")
    active = [each for each in ports if each.get("state") == "ACTIVE"]
    return _check(
        name,
        [problem for port in ports for problem in _port_problems(port, active)],
        f"{len(active)} of {len(ports)} ports active, without errors",
        advice="check cable, transceiver and slot of the port; see ibqueryerrors and mlxlink",
        source=_LINUX,
    )


def _port_problems(port: Mapping[str, Any], active: list[Mapping[str, Any]]) -> Iterable[str]:
    label = str(port.get("port"))
    counters = port.get("counters")
    counters = counters if isinstance(counters, Mapping) else {}
    downed = _number(counters, "link_downed") or 0
    if port not in active:
        if downed:
            yield f"{label} is {port.get('state') or 'in no known state'} and was up before"
        return
    layer = port.get("link_layer")
    rates = [_number(each, "gbit_per_second") or 0 for each in active if each.get("link_layer") == layer]
    rate = _number(port, "gbit_per_second")
    if rate is not None and rate < max(rates):
        yield f"{label} runs at {rate:g} Gbit/s, others at {max(rates):g}"
    for what, unit in (("width", "lanes"), ("gt_per_second", "GT/s")):
        now, most = _number(port, f"pcie_{what}"), _number(port, f"pcie_{what}_max")
        if now is not None and most is not None and now < most:
            yield f"{label} is on PCIe with {now:g} of {most:g} {unit}"
    if downed or _number(counters, "link_error_recovery"):
        recovered = _number(counters, "link_error_recovery") or 0
        yield f"{label} was down {downed:.0f} times and recovered {recovered:.0f} times"
    for counter in counters:
        count = _number(counters, counter) or 0
        if counter not in ("link_downed", "link_error_recovery") and count >= PORT_ERRORS:
            yield f"{label} counts {count:.0f} of {counter}"


def check_device_clocks(facts: Facts) -> Check:
    """Whether NVIDIA devices are slowed by heat or power supply, or use fewer PCIe lanes than they have."""
    name, devices = "device clocks", _mappings(facts, "nvidia")
    if devices is None:
        return Check(name=name, verdict=UNKNOWN, found=_OLD)
    if not devices:
        return Check(name=name, verdict=OK, found="no NVIDIA device, or no nvidia-smi")
    return _check(
        name,
        [problem for device in devices for problem in _clock_problems(device)],
        f"{len(devices)} devices, none is throttled",
        advice="look at cooling, power supply and seating of the device (nvidia-smi -q -d PERFORMANCE)",
        source=_NVML,
    )


def _clock_problems(device: Mapping[str, Any]) -> Iterable[str]:
    label = f"device {device.get('index')}"
    active = _reasons(device.get("throttle_reasons"))
    reasons = [text for bit, text in _THROTTLES.items() if active & bit]
    if reasons:
        clock, most = _number(device, "sm_mhz"), _number(device, "sm_max_mhz")
        at = f" at {clock:.0f} of {most:.0f} MHz" if clock is not None and most is not None else ""
        yield f"{label}: {', '.join(reasons)}{at}"
    width, most = _number(device, "pcie_width"), _number(device, "pcie_width_max")
    if width is not None and most is not None and width < most:
        yield f"{label} is on PCIe with {width:g} of {most:g} lanes"


def _reasons(text: object) -> int:
    try:
        return int(text, 16) if isinstance(text, str) else 0
    except ValueError:
        return 0


def check_device_errors(facts: Facts) -> Check:
    """Whether the memory of NVIDIA devices has errors."""
    name, devices = "device ECC", _mappings(facts, "nvidia")
    if devices is None:
        return Check(name=name, verdict=UNKNOWN, found=_OLD)
    if not devices:
        return Check(name=name, verdict=OK, found="no NVIDIA device, or no nvidia-smi")
    bad, many = [], []
    for device in devices:
        corrected, uncorrected = (_number(device, f"ecc_{kind}") or 0 for kind in ("corrected", "uncorrected"))
        text = f"device {device.get('index')}: {uncorrected:.0f} uncorrected, {corrected:.0f} corrected"
        if uncorrected:
            bad.append(text)
        elif corrected >= CORRECTED_ERRORS:
            many.append(text)
    return _check(
        name,
        [*bad, *many],
        f"{len(devices)} devices, no uncorrected error since the driver's start",
        advice="reset the device or take it out of service; remapped rows: nvidia-smi -q -d ROW_REMAPPER",
        source=_NVML,
        verdict=FAIL if bad else WARN,
    )


def check_nvlink(facts: Facts) -> Check:
    """Whether all NVLinks of all devices are up, and without errors."""
    name, devices = "NVLink", _mappings(facts, "nvlink")
    if devices is None:
        return Check(name=name, verdict=UNKNOWN, found=_OLD)
    most = max((_number(each, "up") or 0 for each in devices), default=0)
    if not most:
        return Check(name=name, verdict=OK, found="no NVLink")
    problems = []
    for device in devices:
        up, errors = _number(device, "up") or 0, _number(device, "errors") or 0
        if up < most:
            problems.append(f"device {device.get('index')} has {up:.0f} links up, others {most:.0f}")
        if errors:
            problems.append(f"device {device.get('index')} counts {errors:.0f} errors of its links")
    return _check(
        name,
        problems,
        f"{most:.0f} links of each of {len(devices)} devices are up, without errors",
        advice="drain the node and reset its devices and NVSwitches; fabric manager's log names the link",
        source=_NVML,
    )


HARDWARE_CHECKS = (
    check_cpu_throttling,
    check_memory_errors,
    check_infiniband,
    check_device_clocks,
    check_device_errors,
    check_nvlink,
)
