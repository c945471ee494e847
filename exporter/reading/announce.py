"""Parses what a node announces of a run: the process groups that its ranks created, and their issue slots."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lockstep.contracts.domains import count_members
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import (
    GROUPS_PER_NODE_MAX,
    MEMBERS_PER_NODE_MAX,
    NAME_MAX_BYTES,
    SPANS_PER_GROUP_MAX,
    SPANS_PER_NODE_MAX,
    WORLD_SIZE_MAX,
)
from lockstep.contracts.messages import COLLECTIVE, RECEIVE, SEND, GroupInfo
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.contracts.ring import OTHER_SLOT

_FIELDS = {"kind", "name", "ranks"}
_SLOT_FIELDS = {"slot", "sends", "receives"}  # for groups with an issue slot, and for pipelines


@dataclass(frozen=True, slots=True)
class SlotUse:
    """What a rank counts in one of its ring's issue slots; `peer` is -1 for collectives."""

    slot: int
    group: GroupInfo
    operation: str
    peer: int


def parse_groups(value: Any, *, where: str, world_size: int) -> tuple[GroupInfo, ...]:
    """Parse the groups region of a ring: a list of objects with kind, name and ranks.

    Raises
    ------
    MalformedError
        The first error found.
    """
    if not isinstance(value, list) or len(value) > GROUPS_PER_NODE_MAX:
        raise MalformedError("groups", where=where, got=type(value).__name__, expected="a list within the limit")
    left = WORLD_SIZE_MAX  # members of all groups together: a short range can stand for a million ranks
    groups: list[GroupInfo] = []
    for item in value:
        if not isinstance(item, dict) or item.keys() - _SLOT_FIELDS != _FIELDS:
            raise MalformedError("group", where=where, got=item, expected=sorted(_FIELDS))
        kind, name, ranks = item["kind"], item["name"], item["ranks"]
        if kind not in DOMAIN_KINDS:
            raise MalformedError("group kind", where=where, got=kind, expected=DOMAIN_KINDS)
        if not isinstance(name, str) or len(name.encode(errors="replace")) > NAME_MAX_BYTES:
            raise MalformedError("group name", where=where, got=name, expected=f"up to {NAME_MAX_BYTES} bytes of text")
        if not isinstance(ranks, list) or len(ranks) > SPANS_PER_GROUP_MAX:
            raise MalformedError("group ranks", where=where, got=ranks, expected=f"up to {SPANS_PER_GROUP_MAX} ranges")
        if not all(isinstance(span, list) for span in ranks):
            raise MalformedError("group ranks", where=where, got=ranks, expected="a list of ranges")
        left -= count_members(ranks, where=where, limit=world_size)
        if left < 0:
            raise MalformedError("groups", where=where, got="more", expected=f"at most {WORLD_SIZE_MAX} members")
        groups.append(GroupInfo(kind=kind, name=name, ranks=ranks))
    return tuple(groups)


def parse_slots(value: Any, groups: tuple[GroupInfo, ...], *, where: str, world_size: int) -> tuple[SlotUse, ...]:
    """Parse the issue slots that a groups region assigns; `groups` is the result of `parse_groups` for it.

    Raises
    ------
    MalformedError
        A slot does not exist in rings, is assigned twice, or a peer is outside the world.
    """
    uses: dict[int, SlotUse] = {}
    for item, group in zip(value, groups, strict=True):
        rows = [(COLLECTIVE, -1, item["slot"])] if "slot" in item and item["slot"] != OTHER_SLOT else []
        for operation, name in ((SEND, "sends"), (RECEIVE, "receives")):
            rows += [(operation, *_pair(pair, where, world_size)) for pair in _list(item.get(name, []), where)]
        for operation, peer, slot in rows:
            if type(slot) is not int or not 0 <= slot < OTHER_SLOT or slot in uses:
                raise MalformedError(
                    "issue slot", where=where, got=slot, expected=f"one of 0 to {OTHER_SLOT - 1}, once"
                )
            uses[slot] = SlotUse(slot, group, operation, peer)
    return tuple(uses.values())


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedError("issue slots of peers", where=where, got=type(value).__name__, expected="a list")
    return value


def _pair(value: Any, where: str, world_size: int) -> tuple[int, int]:
    """Return (peer, slot)."""
    if not isinstance(value, list) or [type(part) for part in value] != [int, int] or not 0 <= value[0] < world_size:
        raise MalformedError("issue slot of a peer", where=where, got=value, expected="[rank of the world, slot]")
    return value[0], value[1]


def merge_groups(of_ranks: Iterable[Iterable[GroupInfo]]) -> list[GroupInfo]:
    """Return each group once, in order of first appearance, up to the limits of one announcement."""
    unique: dict[tuple[str, str, str], GroupInfo] = {}
    for groups in of_ranks:
        for group in groups:
            unique.setdefault((group.kind, group.name, str(group.ranks)), group)
    merged: list[GroupInfo] = []
    spans = members = 0
    for group in islice(unique.values(), GROUPS_PER_NODE_MAX):
        spans += len(group.ranks)
        members += count_members(group.ranks, where="groups of a node")
        if spans > SPANS_PER_NODE_MAX or members > MEMBERS_PER_NODE_MAX:
            break
        merged.append(group)
    return merged
