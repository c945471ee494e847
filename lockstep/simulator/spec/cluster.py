"""Builds the cluster from checked values: a preset or levels of links, the device, and their health."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import prod
from typing import Any

from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.yaml_text import Places
from lockstep.simulator.hardware.cluster import Cluster, Device, Level
from lockstep.simulator.hardware.clusters import CLUSTERS
from lockstep.simulator.hardware.collectives import Link
from lockstep.simulator.spec.check import nearest
from lockstep.simulator.spec.machine import DEVICES, LINK, NETWORKED, SIZED

RANK_LEVEL = "rank"
"""Prefix of a rank's name, as in `rank/3`; a link's name begins with that of its level."""


def build_cluster(values: Mapping[str, Any], places: Places) -> Cluster:
    """Return the cluster of the checked section `values`, with its health.

    Raises
    ------
    MalformedError
        Preset and levels are both given or both missing, a device lacks figures, or there is no such link or rank.
    """
    cluster = _preset(values, places) if values["preset"] is not None else _by_levels(values, places)
    if cluster.size > WORLD_SIZE_MAX:
        raise places.refuse(("cluster",), got=f"{cluster.size} devices", expected=f"at most {WORLD_SIZE_MAX}")
    links = {}
    for name, share in values["health"]["links"].items():
        links[_link_of(name, cluster, places)] = share
    ranks = {}
    for name, share in values["health"]["ranks"].items():
        if not _is_number(name, below=cluster.size):
            path = ("cluster", "health", "ranks", name)
            raise places.refuse(path, got=repr(name), expected=f"a rank below {cluster.size}", key=True)
        ranks[int(name)] = share
    return replace(cluster, health=links, speed=ranks)


def _preset(values: Mapping[str, Any], places: Places) -> Cluster:
    if values["levels"]:
        raise places.refuse(("cluster", "levels"), got="levels with a preset", expected="one of preset, levels")
    name, nodes = values["preset"], values["nodes"]
    if nodes is not None and name not in SIZED:
        expected = f"no nodes with {name}; with {', '.join(SIZED)}"
        raise places.refuse(("cluster", "nodes"), got=nodes, expected=expected)
    network = values["network_gbit"]
    if network is not None and name not in NETWORKED:
        expected = f"no network_gbit with {name}; with {', '.join(NETWORKED)}"
        raise places.refuse(("cluster", "network_gbit"), got=network, expected=expected)
    make: Callable[..., Cluster] = CLUSTERS[name]
    sizes = {"nodes": nodes, "network_gbit": network}
    cluster = make(**{key: value for key, value in sizes.items() if value is not None})
    if values["device"] is None:
        return cluster
    given = values["device"]["name"]
    return replace(cluster, device=_device(values["device"], DEVICES.get(given, cluster.device), places))


def _by_levels(values: Mapping[str, Any], places: Places) -> Cluster:
    if not values["levels"] or values["device"] is None:
        got = "no preset, and no device or levels"
        raise places.refuse(("cluster",), got=got, expected="a preset, or device and levels")
    if values["nodes"] is not None:
        raise places.refuse(("cluster", "nodes"), got=values["nodes"], expected="nodes with a preset only")
    if values["network_gbit"] is not None:
        expected = "network_gbit with a preset only"
        raise places.refuse(("cluster", "network_gbit"), got=values["network_gbit"], expected=expected)
    device = _device(values["device"], DEVICES.get(values["device"]["name"]), places)
    levels = tuple(_level(each, index, places) for index, each in enumerate(values["levels"]))
    names = [level.name for level in levels]
    for index, name in enumerate(names):
        if not name or "/" in name or "." in name or name == RANK_LEVEL or name in names[:index]:
            path = ("cluster", "levels", index, "name")
            raise places.refuse(path, got=repr(name), expected="another name, without `/` and `.`")
    size = prod(min(level.fanout, WORLD_SIZE_MAX + 1) for level in levels)
    if size > WORLD_SIZE_MAX:
        raise places.refuse(("cluster", "levels"), got=f"{size} devices", expected=f"at most {WORLD_SIZE_MAX}")
    return Cluster(name="cluster", device=device, levels=levels)


def _device(values: Mapping[str, Any], base: Device | None, places: Places) -> Device:
    given = {name: value for name, value in values.items() if value is not None and (name != "name" or value)}
    if base is not None:
        return _with_known_kernel(replace(base, **given), places)
    for name in ("flops_per_second", "memory_bytes_per_second", "memory_bytes"):
        if name not in given:
            expected = f"a number, or the name of a known device: {nearest(values['name'], tuple(DEVICES))}"
            raise places.refuse(("cluster", "device", name), got="nothing", expected=expected)
    return Device(**({"name": "device"} | given))


def _with_known_kernel(device: Device, places: Places) -> Device:
    """Return `device`; refuse an attention kernel that is not among those with a known speed, if there are any."""
    known = [speed.kernel for speed in device.attention]
    if known and device.attention_kernel not in (None, *known):
        path = ("cluster", "device", "attention_kernel")
        raise places.refuse(path, got=device.attention_kernel, expected=f"one of {', '.join(known)} with {device.name}")
    return device


def _level(values: Mapping[str, Any], index: int, places: Places) -> Level:
    def link(each: Mapping[str, Any]) -> Link:
        return Link(**{name: each[name] for name in LINK})

    measured = {}
    for size, links in values["measured"].items():
        if not links or not _is_number(size, below=WORLD_SIZE_MAX + 1):
            path = ("cluster", "levels", index, "measured", size)
            raise places.refuse(path, got=repr(size), expected="the size of a group, with its links", key=True)
        measured[int(size)] = tuple(map(link, links))
    plain = {field.name: values[field.name] for field in fields(Level) if field.name not in ("link", "measured")}
    return Level(**plain, link=link(values), measured=measured)


def _link_of(name: str, cluster: Cluster, places: Places) -> tuple[int, int]:
    path = ("cluster", "health", "links", name)
    level_name, _, child = name.partition("/")
    names = [level.name for level in cluster.levels]
    if level_name not in names:
        expected = f"LEVEL/CHILD, LEVEL {nearest(level_name, tuple(names))}"
        raise places.refuse(path, got=repr(name), expected=expected, key=True)
    level = names.index(level_name)
    count = cluster.size // cluster.child_size(level)
    if not _is_number(child, below=count):
        raise places.refuse(path, got=repr(name), expected=f"{level_name}/0 to {level_name}/{count - 1}", key=True)
    return level, int(child)


def _is_number(text: str, *, below: int) -> bool:
    """Whether `text` is a number in canonical form, so that no element has two names."""
    return (
        text.isascii()
        and text.isdecimal()
        and len(text) <= len(str(below))
        and text == str(int(text))
        and int(text) < below
    )
