"""What a node says of a run: its ranks and the process groups they created."""

from collections.abc import Iterable
from typing import Any

from lockstep.contracts.domains import unpack_ranks
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import GROUPS_PER_NODE_MAX, NAME_MAX_BYTES, WORLD_SIZE_MAX
from lockstep.contracts.messages import GroupInfo, NodeAnnouncement, RankInfo
from lockstep.contracts.records import DOMAIN_KINDS

_FIELDS = {"kind", "name", "ranks"}
_SPAN_PARTS = 3


def parse_groups(value: Any, *, where: str, world_size: int) -> tuple[GroupInfo, ...]:
    """Return the groups that a ring's groups region holds: a list of objects with kind, name and ranks.

    Raises
    ------
    MalformedError
        The first thing that is wrong.
    """
    if not isinstance(value, list) or len(value) > GROUPS_PER_NODE_MAX:
        raise MalformedError("groups", where=where, got=type(value).__name__, expected="a list within the limit")
    left = WORLD_SIZE_MAX  # members of all groups together: a short range can name a million ranks
    groups: list[GroupInfo] = []
    for item in value:
        if not isinstance(item, dict) or item.keys() != _FIELDS:
            raise MalformedError("group", where=where, got=item, expected=sorted(_FIELDS))
        kind, name, ranks = item["kind"], item["name"], item["ranks"]
        if kind not in DOMAIN_KINDS:
            raise MalformedError("group kind", where=where, got=kind, expected=DOMAIN_KINDS)
        if not isinstance(name, str) or len(name.encode(errors="replace")) > NAME_MAX_BYTES:
            raise MalformedError("group name", where=where, got=name, expected=f"up to {NAME_MAX_BYTES} bytes of text")
        left -= _members(ranks, where)
        if left < 0:
            raise MalformedError("groups", where=where, got="more", expected=f"at most {WORLD_SIZE_MAX} members")
        unpack_ranks(ranks, where=where, limit=world_size)
        groups.append(GroupInfo(kind=kind, name=name, ranks=ranks))
    return tuple(groups)


def _members(spans: Any, where: str) -> int:
    """Return how many ranks the ranges name, without making them."""
    if not isinstance(spans, list):
        raise MalformedError("group ranks", where=where, got=type(spans).__name__, expected="a list of ranges")
    members = 0
    for span in spans:
        if not isinstance(span, list) or len(span) != _SPAN_PARTS or not all(type(part) is int for part in span):
            raise MalformedError("rank range", where=where, got=span, expected="[start, stop, step]")
        if span[2] < 1 or max(map(abs, span)) > WORLD_SIZE_MAX:
            raise MalformedError("rank range", where=where, got=span, expected="inside the world, step from 1")
        members += len(range(*span))
    return members


def merge_groups(of_ranks: Iterable[Iterable[GroupInfo]]) -> list[GroupInfo]:
    """Return each group once, in the order first met; beyond the limit of one announcement the rest is left out."""
    unique: dict[tuple[str, str, str], GroupInfo] = {}
    for groups in of_ranks:
        for group in groups:
            unique.setdefault((group.kind, group.name, str(group.ranks)), group)
    return list(unique.values())[:GROUPS_PER_NODE_MAX]


def announcement(run: str, node: str, ranks: list[RankInfo], groups: list[GroupInfo]) -> NodeAnnouncement:
    """Return the announcement of `run` on this node, ranks ascending."""
    return NodeAnnouncement(run=run, node=node, ranks=sorted(ranks, key=lambda info: info.rank), groups=groups)
