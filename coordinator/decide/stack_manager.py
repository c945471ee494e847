"""Requests and collects the stacks of the ranks of a hang, and amends its incident with them.

Pure: part of the run's state machine, which alone changes it. Stacks are requested when the incident opens, and again
if none arrived. Late stacks amend the incident as long as it is open.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.detect.hangs.hang_stacks import explain_hang

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from lockstep.contracts.messages import RankStacks

STACK_RANKS_MAX = 1024
"""Ranks of one request: at most 10 MB in total. Of more ranks, the late ones and an even sample of others are
chosen."""
STACK_SECONDS = 4.0
"""How long to wait for all stacks; then those that have arrived are used, and later ones as they arrive."""
_LATE_MAX = STACK_RANKS_MAX // 2
_ASKS_MAX = 3
_ID_SPARE_BITS = 11  # leaves 53 bits, which JSON readers that use doubles represent exactly


class StackManager:
    """`request_id` is that of the last request, 0 before the first; `ranks` are the requested ones of `world_size`."""

    def __init__(self) -> None:
        self.request_id = 0
        self.ranks: tuple[int, ...] = ()
        self.world_size = 0
        self._incident_id = ""
        self._asks = 0
        self._expires_s = 0.0
        self._stacks: dict[int, RankStacks] = {}
        self._is_new = False
        self._explained: tuple[tuple[int, ...], str] = (), ""  # late ranks and cause (by issues) last used

    @property
    def taken(self) -> "tuple[RankStacks, ...]":
        """The stacks received for the last hang."""
        return tuple(self._stacks.values())

    def ask(self, incident: "Incident", ranks: Sequence[int], now_s: float) -> bool:
        """Begin a request for an open hang if one is due; return whether it is. `ranks` are all ranks of the run."""
        if incident.id != self._incident_id:
            self._incident_id, self._asks, self._expires_s = incident.id, 0, 0.0
            self._stacks, self._is_new, self._explained = {}, False, ((), "")
        has_any = any(stacks.threads for stacks in self.taken)
        if has_any or self._asks >= _ASKS_MAX or now_s < self._expires_s or not ranks:
            return False
        self._asks += 1
        # Both coordinators of a pair derive the same id, so that both recognise the results of the one that asks.
        subject = f"{incident.id}/stacks/{self._asks}".encode()
        self.request_id = int.from_bytes(hashlib.blake2b(subject, digest_size=8).digest()) >> _ID_SPARE_BITS
        self.ranks, self.world_size = sample(incident.ranks, ranks), len(ranks)
        self._expires_s = now_s + STACK_SECONDS
        return True

    def take(self, stacks: "RankStacks") -> None:
        """Store the stacks of a requested rank; those of others (late or forged) are ignored."""
        if stacks.request_id == self.request_id and stacks.rank in self.ranks:
            self._stacks[stacks.rank] = stacks
            self._is_new = True

    def amended(self, incident: "Incident", cause: str, now_s: float) -> "Incident | None":
        """Return the incident amended by new stacks; None if there are none, or if more are about to arrive.

        `cause` is the cause by the collectives that the ranks have issued, regardless of the stacks.
        """
        is_other = (incident.ranks, cause) != self._explained
        if incident.id != self._incident_id or not self._stacks or not (self._is_new or is_other):
            return None
        if len(self._stacks) < len(self.ranks) and now_s < self._expires_s:
            return None
        self._is_new, self._explained = False, (incident.ranks, cause)
        found = explain_hang(self.taken, incident.ranks, cause, incident.scope)
        sampled = (f"stacks are of {len(self.ranks):,} of {self.world_size:,} ranks",) * (
            len(self.ranks) < self.world_size
        )
        return replace(
            incident,
            cause=found.cause or cause,
            function=found.function,
            root_cause=found.root_cause,
            profile_evidence=(*found.evidence, *sampled),
            stacks=found.tree,
        )


def sample(late: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks to request, ascending: all, or if too many, the late ones and an even sample of others."""
    if len(ranks) <= STACK_RANKS_MAX:
        return tuple(sorted(ranks))
    known = set(ranks)
    chosen = [rank for rank in late if rank in known][:_LATE_MAX]
    others = sorted(known - set(chosen))
    space = STACK_RANKS_MAX - len(chosen)
    return tuple(sorted((*chosen, *(others[index * len(others) // space] for index in range(space)))))
