from lockstep.diagnosis.communication import compare_collectives
from tests.diagnosis.summaries import summary


def _one(rank, shortest_ms, mean_ms=20):
    return summary(rank, ("main", 1), collectives={"gloo:all_reduce": [10, 10 * mean_ms * 1e6, shortest_ms * 1e6]})


def test_a_slow_link_lengthens_even_the_shortest():
    """30 % above the peers' shortest is a slow link, at the limit it is not yet."""
    assert compare_collectives(_one(2, 1.31), [_one(1, 1.0)])[0].slow_link
    assert not compare_collectives(_one(2, 1.3), [_one(1, 1.0)])[0].slow_link


def test_slow_links_come_before_long_collectives():
    """What names the link stands first, whatever takes longer in sum."""
    suspect = summary(2, ("main", 1), collectives={"long": [1, 9e9, 1e6], "slow": [1, 5e6, 5e6]})
    peer = summary(1, ("main", 1), collectives={"long": [1, 9e9, 1e6], "slow": [1, 1e6, 1e6]})
    assert [each.name for each in compare_collectives(suspect, [peer])] == ["slow", "long"]


def test_collectives_that_no_peer_has_are_not_compared():
    """Without a peer's there is nothing to compare."""
    assert compare_collectives(_one(2, 1.0), [summary(1, ("main", 1))]) == []


def test_the_sentence_carries_the_numbers():
    """Evidence has both sides' mean and best, in ms, by rank."""
    text = compare_collectives(_one(2, 3.0), [_one(1, 1.0, 10)])[0].sentence(_one(2, 3.0), [_one(1, 1.0)])
    assert text == (
        "gloo:all_reduce takes 20.0 ms on average and 3.0 ms at best on rank 2, 10.0 ms and 1.0 ms on rank 1"
    )
