"""Collectives of communication.json and cluster_communication.json, with the vendor's own transmission times.

Elapse is the duration as seen by a rank, transit the time on the links without waiting. The size of the group's tensor
is not recorded; the bytes that a link moved are not equal to it.
"""

import numpy as np

from lockstep.diagnosis.communication_causes.collectives import Group, RankCollectives, collective_kind
from lockstep.trace.ascend.collective import arguments_of
from lockstep.trace.ascend.communication import AscendCommunication, EntryName
from lockstep.trace.columns import ABSENT


def collectives_of_communication(communication: AscendCommunication, rank: int, *, host: str = "") -> RankCollectives:
    """Return the collectives of `rank`; a rank's own file names no rank, so all of its entries belong to it.

    The ranks of a group are known only if the file lists them (a cluster's does). Times of several ranks are comparable
    only if all come from one `host`.
    """
    known = (communication.start_ns != ABSENT) & (communication.elapse_ns > 0)
    mine = np.array([each.rank in (rank, ABSENT) for each in communication.named], np.bool_)
    at = np.flatnonzero(known & mine)
    at = at[np.argsort(communication.start_ns[at], kind="stable")]
    named = [communication.named[place] for place in at.tolist()]
    groups: list[Group] = [(each.group, each.ranks) for each in named]
    return RankCollectives(
        rank=rank,
        kinds=[collective_kind(each.operator) for each in named],
        groups=groups,
        start_ns=communication.start_ns[at],
        duration_ns=communication.elapse_ns[at],
        bytes=np.full(len(at), ABSENT, np.int64),
        sequence=np.array([_sequence(each) for each in named], np.int64),
        transit_ns=communication.link_transit_ns[at],
        host=host,
        clock_is_shared=bool(host),
        group_sizes={group: len(group[1]) for group in set(groups) if group[1]},
    )


def _sequence(named: EntryName) -> int:
    arguments = arguments_of(
        named.operator,
        count=ABSENT,
        data_type="",
        group=named.group,
        groups={},
        suffixes={},
        group_names={},
    )
    return arguments.sequence
