"""Short texts of the pages."""

import pytest

from coordinator.page.overview import suspects
from coordinator.snapshot import Suspect
from tests.coordinator.test_collector import run_snapshot


@pytest.mark.parametrize(
    ("ranks", "slow", "text"),
    [
        ((), 0, "-"),
        ((), 3, "3"),
        ((2,), 1, "rank 2"),
        ((2,), 2, "ranks 2 and 1 more"),
        ((2, 5), 2, "ranks 2, 5"),
    ],
)
def test_slow_ranks_are_not_read_as_their_number(ranks, slow, text):
    """Rank 2 is not two ranks."""
    worst = tuple(
        Suspect(rank=rank, hostname="a", domain_kind="dp", cause="compute", excess_ratio=0.1) for rank in ranks
    )
    assert suspects(run_snapshot(suspects=worst, slow_ranks=slow)) == text
