"""Selects the machines to compare: devices and hosts of an incident's ranks, and of peers without an incident.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.intake.devices import DeviceTable
    from coordinator.run import Run

SUSPECTS_MAX = 16
PEERS_MAX = 24
"""Ranks that are queried. With more than 24 peers their median moves less than the thresholds (`queries.toml`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device or a host of a run. `hosts` are its names: the rank's host name and the exporter's node name.

    `ranks` are those that run on it; a device has one. `uuid` is empty if it was not announced, and for a host.
    """

    ranks: tuple[int, ...]
    is_suspect: bool
    hosts: frozenset[str]
    local_rank: int = 0
    uuid: str = ""
    run: str = ""


def devices_of(run: "Run", incident: "Incident", table: "DeviceTable") -> tuple[Machine, ...]:
    """Return the devices of an incident's ranks and of their peers, suspects first; empty if either is missing.

    Peers are of the same pipeline stage and in no open incident, spread over as many hosts as possible.
    """
    infos, topology = run.membership.infos, run.topology
    suspects = [rank for rank in incident.ranks if rank in infos][:SUSPECTS_MAX]
    if not suspects or topology is None or suspects[0] >= topology.world_size:
        return ()
    in_trouble = {rank for each in run.machine.tracker.incidents.values() for rank in each.ranks} | set(incident.ranks)
    healthy = [rank for rank in topology.peers(suspects[0]) if rank in infos and rank not in in_trouble]
    peers = _spread_over_hosts(run, healthy, {run.membership.nodes.get(rank, "") for rank in suspects})
    if not peers:
        return ()
    chosen = [(rank, True) for rank in suspects] + [(rank, False) for rank in peers]
    return tuple(_device(run, rank, table, is_suspect=is_suspect) for rank, is_suspect in chosen)


def hosts_of_devices(devices: Iterable[Machine]) -> tuple[Machine, ...]:
    """Return the hosts of devices; a host with a suspect device is a suspect, whatever else runs on it."""
    hosts: dict[frozenset[str], Machine] = {}
    for device in devices:
        known = hosts.get(device.hosts)
        if known is None:
            hosts[device.hosts] = replace(device, local_rank=0, uuid="")
        elif device.is_suspect or not known.is_suspect:
            hosts[device.hosts] = replace(known, ranks=(*known.ranks, *device.ranks))
    return tuple(hosts.values())


def _device(run: "Run", rank: int, table: "DeviceTable", *, is_suspect: bool) -> Machine:
    node, info = run.membership.nodes.get(rank, ""), run.membership.infos[rank]
    return Machine(
        ranks=(rank,),
        is_suspect=is_suspect,
        hosts=frozenset(filter(None, (info.hostname, node))),
        local_rank=info.local_rank,
        uuid=table.uuid(run.name, node, rank),
        run=run.name,
    )


def _spread_over_hosts(run: "Run", ranks: Iterable[int], suspects: set[str]) -> list[int]:
    """Return up to `PEERS_MAX` ranks, round-robin over hosts; hosts of suspects come last."""
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(run.membership.nodes.get(rank, ""), []).append(rank)
    columns = sorted(by_node.items(), key=lambda item: item[0] in suspects)
    rounds = [(place, node in suspects, rank) for node, own in columns for place, rank in enumerate(own[:PEERS_MAX])]
    rounds.sort(key=lambda item: (item[1], item[0]))
    return [rank for _, _, rank in rounds[:PEERS_MAX]]
