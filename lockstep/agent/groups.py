"""The process groups that this rank has used: their kinds, and their announcement in the ring."""

from collections.abc import Callable
from typing import Any

from lockstep.agent.boundary import say
from lockstep.agent.kinds import announced_name, kind_index
from lockstep.contracts.domains import pack_ranks
from lockstep.contracts.errors import LocalError
from lockstep.contracts.records import DOMAIN_KINDS

Store = Callable[[list[dict[str, Any]]], None]


class Groups:
    """Process groups by name. A group is announced when it is first used; nothing here keeps a group alive.

    `store` takes all announced groups and raises LocalError when they do not fit.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kinds: dict[str, int] = {}
        self._announced: list[dict[str, Any]] = []

    def kind_of(self, group: Any) -> int:
        """Return the index in DOMAIN_KINDS of a torch ProcessGroup."""
        kind = self._kinds.get(group.group_name)
        return self._meet(group) if kind is None else kind

    def _meet(self, group: Any) -> int:
        import torch.distributed as dist  # noqa: PLC0415  (training imported it)

        name, description = group.group_name, group.group_desc
        kind = kind_index(description, group.size(), dist.get_world_size())
        try:
            ranks = sorted(dist.get_process_group_ranks(group))
        except KeyError:  # torch has not listed it yet: its own set-up is still under way
            return kind
        self._kinds[name] = kind
        self._announce(
            {
                "kind": DOMAIN_KINDS[kind],
                "name": announced_name(description, name),
                "ranks": pack_ranks(ranks),
            }
        )
        return kind

    def _announce(self, group: dict[str, Any]) -> None:
        self._announced.append(group)
        try:
            self._store(self._announced)
        except LocalError as error:  # thousands of irregular groups: those known before stay announced
            self._announced.pop()
            say(f"process group {group['name']} is not announced: {error}")
