from typing import Any

import pytest

from exporter.reading.announce import merge_groups, parse_groups
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import GroupInfo

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
    """Every rank of a node knows its groups; the node says each once."""
    group = GroupInfo(kind="dp", name="dp0", ranks=[[0, 4, 1]])
    other = GroupInfo(kind="tp", name="tp0", ranks=[[0, 2, 1]])
    assert merge_groups([[group, other], [group]]) == [group, other]
