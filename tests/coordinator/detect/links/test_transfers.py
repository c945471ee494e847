"""What groups' transfers took in a step, and when that is known."""

import numpy as np
import pytest

from coordinator.detect.links.transfers import Transfers
from coordinator.intake.timeline import StepRow
from lockstep.contracts.domains import Domain, from_degrees, parse_degrees

SHARE = 1 / 16


def row(waits, *, moved=None, present=None):
    """Return a row that holds these waits, all else unknown; who waits nowhere is not there unless given."""
    ranks = np.arange(len(next(iter(waits.values()))))
    unknown = np.full(len(ranks), np.nan)
    here = ~np.isnan(next(iter(waits.values()))) if present is None else present
    return StepRow(
        step=0,
        end_unix_s=0.0,
        ranks=ranks,
        present=here,
        flags=np.zeros(len(ranks), dtype=np.int64),
        duration=unknown,
        self_seconds=unknown,
        components={},
        waits=waits,
        transfers=waits,
        floors={},
        moved=moved or {},
        tokens=unknown,
        work=unknown,
    )


def topology(degrees):
    parsed = parse_degrees(degrees, where="test")
    return from_degrees(parsed, int(np.prod([size for kind, size in parsed.items() if kind != "ep"])))


@pytest.mark.parametrize("degrees", ["tp=2,dp=4", "tp=4,pp=4,dp=8", "tp=2,cp=2,pp=2,ep=3,dp=9", "dp=37", "pp=40,dp=2"])
@pytest.mark.parametrize("announced", ["all", "all-but-one", "shuffled-groups"])
def test_a_groups_transfer_is_its_least_known_wait(degrees, announced):
    """Whether groups are read as a grid or from a list, in whatever order they come."""
    rng = np.random.default_rng(4)
    shape = topology(degrees)
    ranks = np.arange(shape.world_size)
    if announced == "all-but-one":
        ranks = np.delete(ranks, 5)
    domains = list(shape.domains)
    if announced == "shuffled-groups":
        rng.shuffle(domains)
    waits = {kind: rng.random(len(ranks), dtype=np.float32) for kind in {domain.kind for domain in domains}}
    missing = rng.random(len(ranks)) < 0.1
    for values in waits.values():
        values[missing] = np.nan
    transfers = Transfers(domains, ranks)
    taken = transfers.read(row(waits), hidden_share=SHARE)
    assert sorted(d.ranks for d in transfers.domains) == sorted(d.ranks for d in domains)
    for domain, seconds in zip(transfers.domains, taken.seconds_G, strict=True):
        members = waits[domain.kind][np.isin(ranks, domain.ranks)]
        known = members[~np.isnan(members)]
        assert seconds == known.min() if len(known) else np.isnan(seconds)


def bounds(transfers, missing, count=16):
    """Return whether the only group's figure is a bound when these ranks are missing."""
    waits = np.ones(count)
    waits[list(missing)] = np.nan
    is_bound = transfers.read(row({"dp": waits}), hidden_share=SHARE).is_bound_G
    return bool(is_bound is not None and is_bound[0])


def test_few_missing_of_many_still_tell_the_transfer():
    """One of 16 may be missing, another one each step; two may not."""
    transfers = Transfers([Domain("dp", "dp0", tuple(range(16)))], np.arange(16))
    assert [bounds(transfers, missing) for missing in ((), (3,), (7,), (9, 12), (4,))] == [0, 0, 0, 1, 0]


def test_a_rank_missing_again_may_be_the_last_arriver_every_time():
    """Twice in three steps is a habit: a slow rank whose records are lost must not make a slow link."""
    transfers = Transfers([Domain("dp", "dp0", tuple(range(16)))], np.arange(16))
    assert [bounds(transfers, missing) for missing in ((3,), (3,), (), (3,), (), (), (3,))] == [0, 1, 0, 1, 0, 0, 0]


def test_one_missing_of_a_small_group_makes_a_bound():
    """Of two ranks the missing one is the last arriver half the time."""
    transfers = Transfers([Domain("dp", "dp0", (0, 1))], np.arange(2))
    assert bounds(transfers, (1,), count=2)


def test_a_member_nobody_announced_makes_a_bound_for_ever():
    """It is never seen, so it may always be the last."""
    transfers = Transfers([Domain("dp", "dp0", tuple(range(17)))], np.arange(16))
    assert all(bounds(transfers, ()) for _ in range(5))


def test_a_rank_that_reports_but_never_this_kind_makes_a_bound():
    """A frozen counter of one kind is as good as a missing record."""
    transfers = Transfers([Domain("dp", "dp0", tuple(range(16)))], np.arange(16))
    waits = np.ones(16)
    waits[2] = np.nan
    taken = transfers.read(row({"dp": waits}, present=np.ones(16, dtype=bool)), hidden_share=SHARE)
    assert taken.is_bound_G is not None
    assert taken.is_bound_G[0]


def test_bytes_are_those_of_a_member_and_1_where_nobody_tells():
    """Also where the first member is missing in the first step; later changes are seen at once."""
    transfers = Transfers([Domain("dp", "dp0", (0, 1)), Domain("tp", "tp0", (0, 1))], np.arange(2))
    waits = {"dp": np.ones(2), "tp": np.ones(2)}
    taken = transfers.read(row(waits, moved={"dp": np.array([np.nan, 7.0])}), hidden_share=SHARE)
    assert taken.bytes_G.tolist() == [7.0, 1.0]
    later = transfers.read(row(waits, moved={"dp": np.array([9.0, 9.0])}), hidden_share=SHARE)
    assert later.bytes_G.tolist() == [9.0, 1.0]
    assert taken.bytes_G.tolist() == [7.0, 1.0]
    unknown = transfers.read(row(waits, moved={"dp": np.full(2, np.nan)}), hidden_share=SHARE)
    assert unknown.bytes_G.tolist() == [9.0, 1.0]
