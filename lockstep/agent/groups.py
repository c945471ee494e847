"""HOT (budget 300 ns a look-up): the process groups that this rank uses, their kinds, their announcement in the ring.

Each announced group has an issue slot of the ring, in which its collectives are counted. Sends and receives differ from
member to member of a pipeline, so they are counted by peer, each in a slot of its own.

A group is known by identity, not by name: after `destroy_process_group` and a new `init_process_group`, in an elastic
restart for instance, torch gives the same names to groups of other ranks. A weak reference takes a group out when it
ends, before its address can become another one's.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import ref

from lockstep.agent.boundary import warn
from lockstep.agent.kinds import Described, announced_name, configured_domains, group_kind
from lockstep.contracts.domains import Domain, pack_ranks
from lockstep.contracts.errors import ConfigError, LocalError
from lockstep.contracts.kinds import described_kinds
from lockstep.contracts.marks import KIND_BITS, OPERATORS, MarkKind, pack_call_site, pack_issue
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.contracts.ring import OTHER_SLOT, WORDS_PER_ISSUE_SLOT

Store = Callable[[list[dict[str, Any]]], None]


class GroupUse:
    """What a collective's account needs of its group: the index of its kind in DOMAIN_KINDS, its ranks, its issue slot.

    `site` is the call site of its first operator (`marks.pack_call_site`), called asynchronously: others differ in the
    lowest bits. `issue_head` is kind and detail of its issue marks in one word, `word` the index of the slot's first
    issue word. `sends` and `receives` are the issue slots of its sends to, and receives from, a rank of the group.
    """

    __slots__ = ("issue_head", "kind", "receives", "sends", "site", "size", "slot", "word")

    def __init__(self, kind: int, size: int, slot: int = OTHER_SLOT) -> None:
        self.kind = kind
        self.size = size
        self.slot = slot
        self.site = pack_call_site(OPERATORS[0], synchronous=False, domain=kind, slot=slot, group_size=size)
        detail, _ = pack_issue(self.site, 0)
        self.issue_head = detail << KIND_BITS | MarkKind.ISSUE
        self.word = slot * WORDS_PER_ISSUE_SLOT
        self.sends: dict[int, int] = {}
        self.receives: dict[int, int] = {}


class ProcessGroups:
    """Process groups in use. A group is announced when it is first used; nothing here keeps a group alive.

    `store` takes all announced groups and raises LocalError when they do not fit. `environ` may hold the job's degrees
    (kinds.DEGREES_VARIABLE). `clear` is called with an issue slot that is given away, `at_first_use` when a
    group is first used, before it is announced; it may call `ProcessGroups.clear`.
    """

    def __init__(
        self,
        store: Store,
        environ: Mapping[str, str] = os.environ,
        clear: Callable[[int], None] = lambda _slot: None,
        at_first_use: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._environ = environ
        self._clear = clear
        self._at_first_use = at_first_use
        self.known: dict[int, GroupUse] = {}
        """What `of` returns, by the id of a group met before; only read elsewhere."""
        self._endings: dict[int, ref[Any]] = {}
        self._announced: dict[int, dict[str, Any]] = {}
        self._configured: dict[int, list[Domain]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all groups: they are met again, for a ring that knows none."""
        self._free_slots = list(range(OTHER_SLOT - 1, -1, -1))
        for known in (self.known, self._endings, self._announced, self._configured):
            known.clear()

    def of(self, group: Any) -> GroupUse:
        """Return kind and size of a torch ProcessGroup. One look-up, except for a group never met."""
        use = self.known.get(id(group))
        return self._meet(group) if use is None else use

    def _meet(self, group: Any) -> GroupUse:
        import torch.distributed as dist  # noqa: PLC0415  (training imported it)

        description, size = group.group_desc, group.size()
        kinds = described_kinds(description)
        try:
            ranks = sorted(dist.get_process_group_ranks(group))
            world_size, rank = dist.get_world_size(), dist.get_rank()
        except (KeyError, ValueError):  # torch has not listed it, or any, yet: its own set-up is still under way
            return GroupUse(DOMAIN_KINDS.index(kinds[0] if kinds else "world"), size)
        self._at_first_use()
        configured = self._configuration(rank, world_size)
        kind = group_kind(kinds, ranks, world_size, configured, _described_groups(dist))
        key = id(group)
        self._endings[key] = ref(group, lambda _group: self._forget(key))
        self.known[key] = use = GroupUse(DOMAIN_KINDS.index(kind), size, self._take_slot())
        name = announced_name(description, group.group_name)
        self._announce(key, {"kind": kind, "name": name, "ranks": pack_ranks(ranks), "slot": use.slot})
        return use

    def pair_slot(self, group: Any, is_send: bool, peer: int) -> int:  # noqa: FBT001  (hot: positional calls are the fast ones)
        """Return the issue slot of a group's sends to, or receives from, its member `peer`, a rank of the group."""
        use = self.of(group)
        slots = use.sends if is_send else use.receives
        slot = slots.get(peer)
        return self._meet_peer(group, use, is_send, peer) if slot is None else slot

    def _meet_peer(self, group: Any, use: GroupUse, is_send: bool, peer: int) -> int:  # noqa: FBT001  (as above)
        import torch.distributed as dist  # noqa: PLC0415  (training imported it)

        announced = self._announced.get(id(group))
        if announced is None:  # torch's own set-up is still under way, or there was no room
            return OTHER_SLOT
        slots, name = (use.sends, "sends") if is_send else (use.receives, "receives")
        slots[peer] = slot = self._take_slot()
        if slot != OTHER_SLOT:
            pairs = [*announced.get(name, ()), [dist.get_global_rank(group, peer), slot]]
            self._announce(id(group), {**announced, name: pairs})
        return slot

    def _take_slot(self) -> int:
        if not self._free_slots:
            return OTHER_SLOT
        slot = self._free_slots.pop()
        self._clear(slot)
        return slot

    def _forget(self, key: int) -> None:
        """Drop a group that ended; the ring is updated with the next new group. Any thread may end a group."""
        use = self.known.pop(key, None)
        for known in (self._endings, self._announced):
            known.pop(key, None)
        if use is not None:
            slots = (use.slot, *use.sends.values(), *use.receives.values())
            self._free_slots.extend(slot for slot in slots if slot != OTHER_SLOT)

    def _configuration(self, rank: int, world_size: int) -> list[Domain]:
        """Return the configured domains of `rank`; degrees that do not fit this world are named once and ignored."""
        domains = self._configured.get(world_size)
        if domains is None:
            try:
                domains = configured_domains(self._environ, rank, world_size)
            except ConfigError as error:
                warn(str(error))
                domains = []
            self._configured[world_size] = domains
        return domains

    def _announce(self, key: int, group: dict[str, Any]) -> None:
        former = self._announced.get(key)
        self._announced[key] = group
        try:
            self._store(list(self._announced.values()))
        except LocalError as error:  # thousands of irregular groups: those known before stay announced
            if former is None:
                del self._announced[key]
            else:
                self._announced[key] = former
            warn(f"process group {group['name']} is not announced: {error}")


def _described_groups(dist: Any) -> Iterator[Described]:
    """Yield this rank's groups whose description names a kind, used ones or not: that is the same on all members."""
    world = getattr(dist.distributed_c10d, "_world", None)
    for group, ranks in dict(getattr(world, "pg_group_ranks", {})).items():
        # One entry is no group but a number, for the groups that this rank is no member of.
        kinds = described_kinds(getattr(group, "group_desc", ""))
        if kinds:
            yield kinds, group.group_name, tuple(sorted(ranks))
