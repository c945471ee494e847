"""The fields of a specification that say the machine: device, links, health, and what calibration has taught."""

import inspect
from types import MappingProxyType

from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.simulator.calibration.calibrate import BANDWIDTH, LATENCY, MOST, START
from lockstep.simulator.hardware import clusters
from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.spec.field import (
    CHOICE,
    HUGE,
    LIST,
    MAP,
    NUMBER,
    SECTION,
    TEXT,
    Field,
    amount,
    count,
    flag,
    optional_count,
    share,
)

DEVICES = {each.name: each for each in vars(clusters).values() if isinstance(each, Device)}
"""Devices that a specification can name."""
_PEAKS = {
    "flops_per_second": ("peak arithmetic", "FLOP/s"),
    "memory_bytes_per_second": ("memory bandwidth", "bytes/s"),
    "memory_bytes": ("memory", "bytes"),
}
DEVICE = {
    "name": Field(kind=TEXT, help="a known device (" + ", ".join(DEVICES) + ") or any other name", default=""),
    **{name: amount(f"{help_}; the known device's if not given", unit, None) for name, (help_, unit) in _PEAKS.items()},
    "matrix_efficiency": share("share of the peak that large products reach", None),
    "memory_efficiency": share("share of the memory bandwidth that operators reach", None),
    "half_flops": amount("size of a product that reaches half of the efficiency", "FLOPs", None, above=None),
    "launch_s": amount("time in which the host issues an operator", "seconds", None, above=None),
    "overlap_factor": amount("what computation and gradients each lose while both run", "", None, above=None),
    "fp8_flops_per_second": amount("peak arithmetic of FP8 products; none if not given", "FLOP/s", None),
    "fp8_share": share("share of that peak that FP8 products reach over what others reach of theirs", None),
    "launch_blocking": flag(
        "the host issues an operator when the one before has ended (CUDA_LAUNCH_BLOCKING=1)", default=None
    ),
    "context_bytes": amount("memory that a process takes before it allocates", "bytes", None, above=None),
    "communicator_bytes": amount("memory of the buffers of one communicator", "bytes", None, above=None),
    "allocator_reserve_ratio": amount(
        "what the allocator holds beyond the memory that comes and goes, as a share of it", "", None, above=None
    ),
    "unusable_ratio": Field(
        kind=NUMBER,
        help="share of the memory that the driver keeps",
        low=0.0,
        high=0.5,
        nullable=True,
        default=None,
    ),
}
LINK = {
    "bytes_per_second": amount("bandwidth of one direction", "bytes/s"),
    "launch_s": amount("time to launch a collective", "seconds", 0.0, above=None),
    "sync_s": amount("time to synchronise", "seconds", 0.0, above=None),
    "step_s": amount("time of each round", "seconds", 0.0, above=None),
}
LEVEL = {
    "name": Field(kind=TEXT, help="name, without `/` and `.`, unlike the others'"),
    "fanout": count("children that the level joins", WORLD_SIZE_MAX),
    **LINK,
    "through": flag("traffic of the levels above passes these links as well (PCIe: yes, NVLink: no)", default=True),
    "lanes": count("equal parts of an uplink of which a member of a group uses one: network cards", 4096, 1),
    "measured": Field(
        kind=MAP,
        help="links by size of group, for groups inside one domain, as measured",
        keys="size of the group",
        item=Field(
            kind=LIST,
            help="links; the one that is through first counts",
            item=Field(kind=SECTION, help="a link as measured", fields=LINK),
        ),
        default=MappingProxyType({}),
    ),
}
SIZED = tuple(name for name, make in clusters.CLUSTERS.items() if inspect.signature(make).parameters)
"""Presets of clusters that can have any number of nodes."""
NETWORKED = tuple(
    name for name, make in clusters.CLUSTERS.items() if "network_gbit" in inspect.signature(make).parameters
)
"""Presets whose nodes can have any network."""
CLUSTER = {
    "preset": Field(
        kind=CHOICE,
        help="a known cluster, instead of device and levels",
        choices=tuple(clusters.CLUSTERS),
        nullable=True,
        default=None,
    ),
    "nodes": optional_count("nodes of the preset (" + ", ".join(SIZED) + "); the preset's own if null", WORLD_SIZE_MAX),
    "network_gbit": Field(
        kind=NUMBER,
        help="line rate of all cards of a node (" + ", ".join(NETWORKED) + "), Gbit/s; the preset's own if null",
        above=0.0,
        high=HUGE,
        nullable=True,
        default=None,
    ),
    "device": Field(
        kind=SECTION,
        help="the device; with a preset, what differs from its device",
        fields=DEVICE,
        nullable=True,
        default=None,
    ),
    "levels": Field(
        kind=LIST,
        help="levels of links, from inside the card outwards",
        item=Field(kind=SECTION, help="one level; the numbers are those of an uplink", fields=LEVEL),
        default=(),
    ),
    "health": Field(
        kind=SECTION,
        help="what is wrong; what is not named is whole",
        fields={
            "links": Field(
                kind=MAP,
                help="share of its bandwidth that an uplink has left; `network/3` is that of child 3 of the level "
                "`network`",
                keys="LEVEL/CHILD",
                item=share("share left"),
                default=MappingProxyType({}),
            ),
            "ranks": Field(
                kind=MAP,
                help="share of its device's speed that a rank has left",
                keys="rank",
                item=share("share left"),
                default=MappingProxyType({}),
            ),
        },
        default=MappingProxyType({}),
    ),
}

_PARAMETERS = {
    "matrix_efficiency": "share of the peak that large products reach",
    "memory_efficiency": "share of the memory bandwidth that operators reach",
    "half_flops": "size of a product that reaches half of the efficiency, FLOPs",
    "launch_s": "time in which the host issues an operator, seconds",
    "overlap_factor": "what computation and gradients each lose while both run",
    "link_latency_ratio": "real over declared latency of links",
    "link_bandwidth_ratio": "real over declared bandwidth of links",
}
_DIVISORS = ("link_bandwidth_ratio",)


def _parameter(name: str) -> Field:
    help_ = _PARAMETERS.get(name, "see lockstep.simulator.calibration.calibrate")
    if name in MOST:
        return Field(kind=NUMBER, help=help_, above=0.0, high=MOST[name], default=None)
    return amount(help_, "", None, above=0.0 if name in _DIVISORS else None)


CALIBRATION = {
    "file": Field(
        kind=TEXT,
        help="YAML file next to the specification that holds this section, as `lockstep calibrate` writes it",
        nullable=True,
        default=None,
    ),
    "parameters": Field(
        kind=SECTION,
        help="numbers fitted to measured steps; they replace the cluster's",
        fields={name: _parameter(name) for name in dict.fromkeys((*START, *_PARAMETERS))},
        default=MappingProxyType({}),
    ),
    "links": Field(
        kind=MAP,
        help="links of one level, on top of the ratios of all",
        keys="level",
        item=Field(
            kind=SECTION,
            help="real over declared",
            fields={
                BANDWIDTH: amount("real over declared bandwidth", "", 1.0),
                LATENCY: amount("real over declared latency", "", 1.0, above=None),
            },
        ),
        default=MappingProxyType({}),
    ),
    "overhead_seconds": Field(
        kind=NUMBER,
        help="what a step takes besides its timeline: data, host, spread of the ranks, and what is not explained",
        unit="seconds",
        low=-86400.0,
        high=86400.0,
        default=0.0,
    ),
    "error_band_ratio": Field(
        kind=NUMBER,
        help="error on steps held out of the fit, printed with every forecast; unknown if null",
        low=0.0,
        high=100.0,
        nullable=True,
        default=None,
    ),
    "source": Field(kind=TEXT, help="what was measured, when; for people", default=""),
}
