from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fuzz.seeds import FACTS, NODE, RUN, rank_info
from exporter.reading.announce import merge_groups, parse_groups
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import GroupInfo, IssueCount, NodeAnnouncement, RankEnding, RankProgress

TOPIC = topics.run_topic(RUN, topics.ANNOUNCE, NODE)
GROUP = {"kind": "dp", "name": "dp0", "ranks": [[0, 8, 2]]}


def test_groups_of_a_ring_become_messages():
    """A list of kind, name and ranges is taken as it is."""
    assert parse_groups([GROUP], where="x", world_size=8) == (GroupInfo(kind="dp", name="dp0", ranks=[[0, 8, 2]]),)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [1],
        [{"kind": "dp"}],
        [{**GROUP, "kind": "zz"}],
        [{**GROUP, "name": 5}],
        [{**GROUP, "name": "n" * 1000}],
        [{**GROUP, "ranks": "all"}],
        [{**GROUP, "ranks": [[0, 8]]}],
        [{**GROUP, "ranks": [[0, 8, 0]]}],
        [{**GROUP, "ranks": [[0, 10**12, 1]]}],
        [{**GROUP, "ranks": [[0, 9, 1]]}],
        [{**GROUP, "ranks": [[True, 8, 1]]}],
        [GROUP] * 5000,
    ],
)
def test_malformed_groups_are_refused(value: Any):
    """Whatever stands in the region, the answer is a named error."""
    with pytest.raises(MalformedError, match="in x"):
        parse_groups(value, where="x", world_size=8)


def test_short_ranges_that_name_millions_of_ranks_are_refused_before_they_are_made():
    """The members of all groups are counted first, so a kilobyte cannot cost a gigabyte."""
    groups = [{"kind": "dp", "name": f"g{n}", "ranks": [[0, 1 << 20, 1]]} for n in range(1000)]
    with pytest.raises(MalformedError, match="members"):
        parse_groups(groups, where="x", world_size=1 << 20)


def test_a_group_of_several_ranks_is_announced_once():
    """Every rank of a node knows its groups; the node announces each once."""
    group = GroupInfo(kind="dp", name="dp0", ranks=[[0, 4, 1]])
    other = GroupInfo(kind="tp", name="tp0", ranks=[[0, 2, 1]])
    assert merge_groups([[group, other], [group]]) == [group, other]


WORLD = 1 << 20


def spans_of(count: int, first: int = 0) -> list[list[int]]:
    return [[2 * place, 2 * place + 1, 1] for place in range(first, first + count)]


def test_a_group_of_too_many_ranges_is_refused():
    """A coordinator would refuse the whole announcement for it."""
    groups = [{**GROUP, "ranks": spans_of(4096)}]
    assert len(parse_groups(groups, where="x", world_size=WORLD)[0].ranks) == 4096
    with pytest.raises(MalformedError, match="up to 4096 ranges"):
        parse_groups([{**GROUP, "ranks": spans_of(4097)}], where="x", world_size=WORLD)


@pytest.mark.parametrize(
    ("groups", "kept"),
    [
        ([GroupInfo(kind="dp", name=f"dp{n}", ranks=[[0, WORLD, 1]]) for n in range(3)], 1),
        ([GroupInfo(kind="dp", name=f"dp{n}", ranks=spans_of(4096)) for n in range(10)], 8),
        ([GroupInfo(kind="dp", name=f"dp{n}", ranks=[[0, 2, 1]]) for n in range(5000)], 4096),
    ],
    ids=["members", "ranges", "groups"],
)
def test_what_is_beyond_an_announcement_is_left_out(groups: list[GroupInfo], kept: int):
    """Each ring may be within the limits, and all of a node beyond them: the node is announced all the same."""
    merged = merge_groups([groups[:2], groups])
    assert merged == groups[:kept]
    message = NodeAnnouncement(run=RUN, node=NODE, ranks=[replace(rank_info(0), world_size=WORLD)], groups=merged)
    assert decode(TOPIC, encode(message)) == message


def test_the_largest_announcement_is_one_message():
    """Every limit at once: ranks with all that is known of them, issue slots, groups with long names, ranges."""
    name = "n" * 128
    issue = IssueCount(group=4095, operation="collective", peer=WORLD - 1, issued=(1 << 63) - 1, last_unix_ns=1 << 62)
    progress = RankProgress(last_step=(1 << 62) - 1, flags=(1 << 32) - 1, issues=[issue] * 128, is_alive=True)
    facts = replace(FACTS, **dict.fromkeys(("device", "device_kind", "dtype", "flops_source", "backend"), name))
    ending = RankEnding(unix_ns=1 << 62, kind="exit_code", code=255, exception=name, frame=name, is_out_of_memory=True)
    info = replace(rank_info(0, facts=facts, progress=progress), world_size=WORLD, hostname=name, ending=ending)
    groups = [GroupInfo(kind="world", name=name, ranks=spans_of(8, 1 << 18)) for _ in range(4096)]
    ranks = [replace(info, rank=WORLD - 1 - rank) for rank in range(64)]
    message = NodeAnnouncement(run=RUN, node=NODE, ranks=ranks, groups=groups)
    assert decode(TOPIC, encode(message)) == message
