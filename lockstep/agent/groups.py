"""HOT (budget 300 ns a look-up): the process groups that this rank uses, their kinds, their announcement in the ring.

A group is known by identity, not by name: after `destroy_process_group` and a new `init_process_group`, in an elastic
restart for instance, torch gives the same names to groups of other ranks. A weak reference takes a group out when it
ends, before its address can become another one's.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ref

from lockstep.agent.boundary import say
from lockstep.agent.kinds import announced_name, configured_domains, named_kind, unnamed_kind
from lockstep.contracts.domains import Domain, pack_ranks
from lockstep.contracts.errors import ConfigError, LocalError
from lockstep.contracts.records import DOMAIN_KINDS

Store = Callable[[list[dict[str, Any]]], None]


class GroupUse:
    """What a collective's account needs of its group: the index of its kind in DOMAIN_KINDS, its number of ranks."""

    __slots__ = ("kind", "size")

    def __init__(self, kind: int, size: int) -> None:
        self.kind = kind
        self.size = size


class Groups:
    """Process groups in use. A group is announced when it is first used; nothing here keeps a group alive.

    `store` takes all announced groups and raises LocalError when they do not fit. `environ` may hold the job's degrees
    (kinds.DEGREES_VARIABLE).
    """

    def __init__(self, store: Store, environ: Mapping[str, str] = os.environ) -> None:
        self._store = store
        self._environ = environ
        self._uses: dict[int, GroupUse] = {}
        self._endings: dict[int, ref[Any]] = {}
        self._announced: dict[int, dict[str, Any]] = {}
        self._configured: dict[int, list[Domain]] = {}

    def of(self, group: Any) -> GroupUse:
        """Return kind and size of a torch ProcessGroup. One look-up, except for a group never met."""
        use = self._uses.get(id(group))
        return self._meet(group) if use is None else use

    def _meet(self, group: Any) -> GroupUse:
        import torch.distributed as dist  # noqa: PLC0415  (training imported it)

        description, size = group.group_desc, group.size()
        named = named_kind(description)
        try:
            ranks = sorted(dist.get_process_group_ranks(group))
            world_size, rank = dist.get_world_size(), dist.get_rank()
        except (KeyError, ValueError):  # torch has not listed it, or any, yet: its own set-up is still under way
            return GroupUse(DOMAIN_KINDS.index(named or "world"), size)
        kind = named or unnamed_kind(ranks, world_size, self._configuration(rank, world_size), _named_domains(dist))
        key = id(group)
        self._endings[key] = ref(group, lambda _group: self._forget(key))
        self._uses[key] = use = GroupUse(DOMAIN_KINDS.index(kind), size)
        name = announced_name(description, group.group_name)
        self._announce(key, {"kind": kind, "name": name, "ranks": pack_ranks(ranks)})
        return use

    def _forget(self, key: int) -> None:
        """Drop a group that ended; the ring hears of it with the next new group. Any thread may end a group."""
        for known in (self._uses, self._endings, self._announced):
            known.pop(key, None)

    def _configuration(self, rank: int, world_size: int) -> list[Domain]:
        """Return the configured domains of `rank`; degrees that do not fit this world are named once and ignored."""
        domains = self._configured.get(world_size)
        if domains is None:
            try:
                domains = configured_domains(self._environ, rank, world_size)
            except ConfigError as error:
                say(str(error))
                domains = []
            self._configured[world_size] = domains
        return domains

    def _announce(self, key: int, group: dict[str, Any]) -> None:
        self._announced[key] = group
        try:
            self._store(list(self._announced.values()))
        except LocalError as error:  # thousands of irregular groups: those known before stay announced
            del self._announced[key]
            say(f"process group {group['name']} is not announced: {error}")


def _named_domains(dist: Any) -> Iterator[Domain]:
    """Return the domains that named groups of this rank make, used ones or not: that is the same on all members."""
    world = getattr(dist.distributed_c10d, "_world", None)
    for group, ranks in dict(getattr(world, "pg_group_ranks", {})).items():
        # One entry is no group but a number, for the groups that this rank is no member of.
        kind = named_kind(getattr(group, "group_desc", ""))
        if kind is not None:
            yield Domain(kind, group.group_name, tuple(sorted(ranks)))
