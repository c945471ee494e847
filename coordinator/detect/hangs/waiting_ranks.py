# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which ranks wait for which in a run that makes no progress, from the operations that its ranks have issued.

All members of a group issue the same collectives in the same order, so a rank that has issued more of them than another
member waits for it. Sends and receives are compared between the two ranks concerned. A send alone does not prove that
its rank waits, since it may be buffered, unless it is the last thing that the rank is known to have done.

A rank that others wait for may itself wait elsewhere: one that is blocked in its tensor group is behind in its
data-parallel group too. Ranks that others wait for and that wait for no one have not arrived, whatever the graph in
between looks like. The graph is never built, since a domain of n ranks has n^2 / 4 edges.

Shapes: K ranks whose progress is known, W ranks of the world (indexed by rank), N rows of issued operations, D domains,
M members of all domains, E entries, one for each rank that is waited for in a domain.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lockstep.contracts.messages import COLLECTIVE, OPERATIONS, RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lockstep.contracts.domains import Domain

ISSUE_FIELDS = ("rank", "domain", "operation", "peer", "issued", "last_unix_ns")
_COLLECTIVE, _SEND, _RECEIVE = (OPERATIONS.index(name) for name in (COLLECTIVE, SEND, RECEIVE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of the ranks of a run. Times are Unix ns by the clock of each rank's node.

    `issues` is an array of shape (N, len(ISSUE_FIELDS)), int64: `domain` indexes `domains`, `operation` indexes
    `messages.OPERATIONS`, `peer` is -1 for collectives. `step` is the last recorded one, -1 for none; `ended` ranks
    have reported the end of their training; the process of a `gone` rank no longer exists, without such a report.
    """

    domains: "Sequence[Domain]"
    rank: "NDArray[np.int64]"
    step: "NDArray[np.int64]"
    sign_unix_ns: "NDArray[np.int64]"
    flags: "NDArray[np.int64]"
    ended: "NDArray[np.bool_]"
    gone: "NDArray[np.bool_]"
    issues: "NDArray[np.int64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """One entry for each rank and each domain in which others wait for it: arrays of shape (E,).

    The rank has issued `issued` operations where the rank furthest ahead has issued `expected`; `since_unix_ns` is the
    earliest last issue of a rank that waits there.
    """

    rank: "NDArray[np.int64]"
    domain: "NDArray[np.int64]"
    issued: "NDArray[np.int64]"
    expected: "NDArray[np.int64]"
    since_unix_ns: "NDArray[np.int64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Waiting derived from a `Progress`: arrays of shape (W,).

    `inside` is the domain of the operation that is a rank's last sign of life, so that the rank is assumed to be in
    it still; -1 for none.
    """

    known: "NDArray[np.bool_]"
    behind: "NDArray[np.bool_]"
    waits: "NDArray[np.bool_]"
    inside: "NDArray[np.int64]"
    entries: Entries

    @property
    def late(self) -> "NDArray[np.bool_]":
        """Ranks that others wait for and that wait for no one."""
        return self.behind & ~self.waits


def find_waiting(progress: Progress, world_size: int) -> Waiting:
    """Derive which ranks wait; reports about ranks outside the world, or on groups by non-members, are left out."""
    rows = progress.issues
    rows = rows[(rows[:, 0] < world_size) & (rows[:, 3] < world_size)]
    known_W = np.zeros(world_size, dtype=bool)
    known_W[progress.rank[progress.rank < world_size]] = True
    inside_W = _inside(progress, rows, world_size)
    collectives = _in_groups(progress.domains, rows[rows[:, 2] == _COLLECTIVE], known_W)
    pairs = _in_pairs(rows[rows[:, 2] != _COLLECTIVE], known_W, inside_W)
    behind_W, waits_W = np.zeros(world_size, dtype=bool), np.zeros(world_size, dtype=bool)
    for waiters, _ in (collectives, pairs):
        waits_W[waiters] = True
    entries = np.concatenate((collectives[1], pairs[1]))
    behind_W[entries[:, 0]] = True
    return Waiting(known=known_W, behind=behind_W, waits=waits_W, inside=inside_W, entries=Entries(**_named(entries)))


def _named(entries: "NDArray[np.int64]") -> "dict[str, NDArray[np.int64]]":
    return dict(zip(("rank", "domain", "issued", "expected", "since_unix_ns"), entries.T, strict=True))


def _inside(progress: Progress, rows: "NDArray[np.int64]", world_size: int) -> "NDArray[np.int64]":
    """Return the domain of each rank's last issue if no other report came after it, array of shape (W,), else -1."""
    sign_W = np.full(world_size, np.iinfo(np.int64).max)
    here = progress.rank < world_size
    sign_W[progress.rank[here]] = progress.sign_unix_ns[here]
    newest_W = np.full(world_size, -1)
    np.maximum.at(newest_W, rows[:, 0], rows[:, 5])
    inside_W = np.full(world_size, -1)
    last = (rows[:, 5] == newest_W[rows[:, 0]]) & (rows[:, 5] >= sign_W[rows[:, 0]])
    inside_W[rows[last, 0]] = rows[last, 1]
    return inside_W


def _in_groups(
    domains: "Sequence[Domain]", rows: "NDArray[np.int64]", known_W: "NDArray[np.bool_]"
) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """Return the ranks that wait in collectives, and the entries of the ranks that they wait for, shape (E, 5)."""
    used = np.unique(rows[:, 1]).tolist()
    world_size = len(known_W)
    members = [np.array(domains[index].ranks, dtype=np.int64) for index in used]
    member_M = np.concatenate(members) if members else np.zeros(0, dtype=np.int64)
    domain_M = np.repeat(np.array(used, dtype=np.int64), [len(ranks) for ranks in members])
    is_member = (member_M < world_size) & known_W[np.minimum(member_M, world_size - 1)]
    member_M, domain_M = member_M[is_member], domain_M[is_member]
    issued_M, last_M = np.zeros(len(member_M), dtype=np.int64), np.zeros(len(member_M), dtype=np.int64)
    if len(member_M):
        key_M = domain_M * world_size + member_M  # ascending: domains are, and so are the ranks of each
        key_N = rows[:, 1] * world_size + rows[:, 0]
        place_N = np.minimum(np.searchsorted(key_M, key_N), len(key_M) - 1)
        own = key_M[place_N] == key_N
        issued_M[place_N[own]], last_M[place_N[own]] = rows[own, 4], rows[own, 5]
    most_D, least_D = np.zeros(len(domains), dtype=np.int64), np.full(len(domains), np.iinfo(np.int64).max)
    np.maximum.at(most_D, domain_M, issued_M)
    np.minimum.at(least_D, domain_M, issued_M)
    ahead_M, behind_M = issued_M > least_D[domain_M], issued_M < most_D[domain_M]
    since_D = np.full(len(domains), np.iinfo(np.int64).max)
    np.minimum.at(since_D, domain_M[ahead_M], last_M[ahead_M])
    there = domain_M[behind_M]
    entries = np.stack((member_M[behind_M], there, issued_M[behind_M], most_D[there], since_D[there]), axis=1)
    return member_M[ahead_M], entries


def _in_pairs(
    rows: "NDArray[np.int64]", known_W: "NDArray[np.bool_]", inside_W: "NDArray[np.int64]"
) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """Return the same for sends and receives between pairs of ranks."""
    rows = rows[(rows[:, 3] >= 0) & known_W[rows[:, 0]] & known_W[np.maximum(rows[:, 3], 0)]]
    is_send = rows[:, 2] == _SEND
    sender, receiver = np.where(is_send, rows[:, [0, 3]].T, rows[:, [3, 0]].T)
    pairs, place = np.unique(np.stack((rows[:, 1], sender, receiver), axis=1), axis=0, return_inverse=True)
    place = place.reshape(-1)
    sent, received, sent_ns, received_ns = np.zeros((4, len(pairs)), dtype=np.int64)
    sent[place[is_send]], sent_ns[place[is_send]] = rows[is_send, 4], rows[is_send, 5]
    received[place[~is_send]], received_ns[place[~is_send]] = rows[~is_send, 4], rows[~is_send, 5]
    domain, sender, receiver = pairs.T
    hungry = received > sent
    stuck = (sent > received) & (inside_W[sender] == domain)
    waiters = np.concatenate((receiver[hungry], sender[stuck]))
    for_sender = np.stack((sender, domain, sent, received, received_ns), axis=1)[hungry]
    for_receiver = np.stack((receiver, domain, received, sent, sent_ns), axis=1)[stuck]
    return waiters, np.concatenate((for_sender, for_receiver))
