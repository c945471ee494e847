"""The fields of a specification that describe the machine: device, links, health and calibration."""

import inspect

from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.simulator.calibration.calibrate import BANDWIDTH, LATENCY, MOST, START
from lockstep.simulator.hardware import clusters
from lockstep.simulator.hardware.cluster import ATTENTION_KERNELS, Device
from lockstep.simulator.spec.field import (
    LIST,
    NOTHING,
    NUMBER,
    Field,
    amount,
    choice,
    count,
    flag,
    mapping,
    number,
    optional,
    optional_count,
    section,
    sections,
    share,
    text,
)

DEVICES = {each.name: each for each in vars(clusters).values() if isinstance(each, Device)}
"""Devices that a specification can name."""
_PEAKS = {
    "flops_per_second": ("peak arithmetic", "FLOP/s"),
    "memory_bytes_per_second": ("memory bandwidth", "bytes/s"),
    "memory_bytes": ("memory", "bytes"),
}
DEVICE = {
    "name": text("a known device (" + ", ".join(DEVICES) + ") or any other name", ""),
    **{name: amount(f"{help_}; the known device's if not given", unit, None) for name, (help_, unit) in _PEAKS.items()},
    "matrix_efficiency": share("share of the peak that large products reach", None),
    "memory_efficiency": share("share of the memory bandwidth that operators reach", None),
    "half_flops": amount("size of a product that reaches half of the efficiency", "FLOPs", None, above=None),
    "launch_s": amount("time that the host takes to issue an operator", "seconds", None, above=None),
    "overlap_factor": amount("slowdown of computation and of gradients while both run", "", None, above=None),
    "fp8_flops_per_second": amount("peak arithmetic of FP8 products; none if not given", "FLOP/s", None),
    "fp8_share": share(
        "share of that peak that FP8 products reach, relative to the share that other products reach of theirs", None
    ),
    "fp8_backward_share": share(
        "share of that speed that FP8 products reach in the backward pass, where they add in single precision", None
    ),
    "attention_kernel": optional(
        choice(
            "kernel of fused attention; the device's usual one if not given, and only one that was measured on it",
            ATTENTION_KERNELS,
        )
    ),
    "grouped_fill": optional(
        amount(
            "elements of the inner dimension that a tile of the products of several experts costs besides; 850 if null "
            "(PyTorch; Transformer Engine 2.7: 290)",
            "elements",
            above=None,
        )
    ),
    "launch_blocking": flag(
        "the host issues an operator only when the previous one has ended (CUDA_LAUNCH_BLOCKING=1)", default=None
    ),
    "context_bytes": amount("memory that a process takes before it allocates", "bytes", None, above=None),
    "communicator_bytes": amount("memory of the buffers of one communicator", "bytes", None, above=None),
    "allocator_reserve_ratio": amount(
        "memory that the allocator holds in addition to the memory that is allocated and freed, as a share of that",
        "",
        None,
        above=None,
    ),
    "unusable_ratio": optional(number("share of the memory that the driver keeps", 0.0, 0.5)),
}
LINK = {
    "bytes_per_second": amount("bandwidth of one direction", "bytes/s"),
    "launch_s": amount("time to launch a collective", "seconds", 0.0, above=None),
    "sync_s": amount("time to synchronise", "seconds", 0.0, above=None),
    "step_s": amount("time of each round", "seconds", 0.0, above=None),
}
LEVEL = {
    "name": text("unique name, without `/` and `.`"),
    "fanout": count("children that the level joins", WORLD_SIZE_MAX),
    **LINK,
    "through": flag("traffic of higher levels also passes through these links (PCIe: yes, NVLink: no)", default=True),
    "cores": optional_count(
        "cores of a domain whose ranks compute on a CPU; more ranks than cores share them. If null, each rank has a "
        "device of its own",
        WORLD_SIZE_MAX,
    ),
    "lanes": count("equal parts of an uplink, e.g. network cards; each member of a group uses one", 4096, 1),
    "measured": mapping(
        "measured links by size of group, for groups inside one domain",
        "size of the group",
        Field(
            kind=LIST, help="links, of which the fastest for a transfer counts", item=section("a measured link", LINK)
        ),
    ),
}
SIZED = tuple(name for name, make in clusters.CLUSTERS.items() if inspect.signature(make).parameters)
"""Presets of clusters that can have any number of nodes."""
NETWORKED = tuple(
    name for name, make in clusters.CLUSTERS.items() if "network_gbit" in inspect.signature(make).parameters
)
"""Presets of clusters whose network can have any bandwidth."""
CLUSTER = {
    "preset": optional(choice("a known cluster, instead of device and levels", tuple(clusters.CLUSTERS))),
    "nodes": optional_count("nodes of the preset (" + ", ".join(SIZED) + "); the preset's own if null", WORLD_SIZE_MAX),
    "network_gbit": optional(
        amount("line rate of all cards of a node (" + ", ".join(NETWORKED) + "), Gbit/s; the preset's own if null", "")
    ),
    "device": optional(section("the device; with a preset, only the differences from its device", DEVICE)),
    "levels": sections(
        "levels of links, from inside the card outwards", "one level; the numbers are those of an uplink", LEVEL
    ),
    "health": section(
        "degraded links and ranks; all others are healthy",
        {
            "links": mapping(
                "remaining share of an uplink's bandwidth; `network/3` is the uplink of child 3 of the level `network`",
                "LEVEL/CHILD",
                share("remaining share"),
            ),
            "ranks": mapping("remaining share of the speed of a rank's device", "rank", share("remaining share")),
        },
        NOTHING,
    ),
}

_PARAMETERS = {
    "matrix_efficiency": "share of the peak that large products reach",
    "memory_efficiency": "share of the memory bandwidth that operators reach",
    "attention_ratio": "speed of fused attention divided by that of the preset's kernel, relative to products",
    "attention_fill": "tokens with which fused attention reaches half of its speed, on a device without known kernels",
    "optimizer_ratio": "speed of an optimizer step, relative to that of other operators with its traffic",
    "half_flops": "size of a product that reaches half of the efficiency, FLOPs",
    "launch_s": "time in which the host issues an operator, seconds",
    "overlap_factor": "slowdown of computation and of gradients while both run",
    "link_latency_ratio": "real divided by declared latency of links",
    "link_bandwidth_ratio": "real divided by declared bandwidth of links",
}
_DIVISORS = ("link_bandwidth_ratio", "attention_ratio", "optimizer_ratio")


def _parameter(name: str) -> Field:
    help_ = _PARAMETERS.get(name, "see lockstep.simulator.calibration.calibrate")
    if name in MOST:
        return Field(kind=NUMBER, help=help_, above=0.0, high=MOST[name], default=None)
    return amount(help_, "", None, above=0.0 if name in _DIVISORS else None)


CALIBRATION = {
    "file": optional(
        text("YAML file with this section, in the folder of the specification; `lockstep calibrate` writes it")
    ),
    "parameters": section(
        "numbers fitted to measured steps; they replace the cluster's",
        {name: _parameter(name) for name in dict.fromkeys((*START, *_PARAMETERS))},
        NOTHING,
    ),
    "links": mapping(
        "links of one level, in addition to the ratios for all links",
        "level",
        section(
            "real divided by declared",
            {
                BANDWIDTH: amount("real divided by declared bandwidth", "", 1.0),
                LATENCY: amount("real divided by declared latency", "", 1.0, above=None),
            },
        ),
    ),
    "overhead_seconds": number(
        "time of a step outside its timeline: data, host, spread of the ranks, and unexplained time; ranks that "
        "share cores take longer for it",
        -86400.0,
        86400.0,
        0.0,
        unit="seconds",
    ),
    "error_band_ratio": optional(
        number("error on steps held out of the fit, which every forecast prints; unknown if null", 0.0, 100.0)
    ),
    "source": text("what was measured, and when; a comment", ""),
}
