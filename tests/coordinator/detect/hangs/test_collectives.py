"""What the Flight Recorders of all ranks show together: who has not entered which collective, and what does not match."""

import os
import subprocess
import sys

import pytest

from coordinator.detect.hangs.collective_progress import compare_issued
from coordinator.detect.hangs.hang_stacks import MISMATCH, explain_hang
from exporter.capturing.flight_dumps import FlightDump
from lockstep.contracts.messages import RankStacks, RecordedCollective
from tests.coordinator.detect.hangs.test_stacks import BACKWARD, stacks
from tests.support import flight_job
from tests.support.servers import PATIENCE_S


def issued(sequence, operation="all_reduce", tensors="Float [100]", group="1", description="mesh_dp"):
    return RecordedCollective(
        group=group, description=description, sequence=sequence, operation=operation, tensors=tensors, state="started"
    )


def of_rank(rank, *collectives):
    return RankStacks(
        run="job", node="n", rank=rank, request_id=1, unix_ns=1, threads=[], collectives=list(collectives)
    )


def test_a_rank_that_has_not_entered_is_named_with_the_collective():
    """By its group's last sequence number."""
    found = compare_issued([of_rank(0, issued(7), issued(8)), of_rank(1, issued(6), issued(7)), of_rank(2, issued(8))])
    assert found.mismatched_ranks == ()
    assert found.evidence == (
        "rank 1 has not entered collective 8 of group mesh_dp; others are in collective 8, all_reduce of Float [100]",
    )


def test_ranks_that_are_all_in_the_same_collective_show_nothing():
    """The collective itself hangs, which the issues show."""
    assert compare_issued([of_rank(rank, issued(8)) for rank in range(4)]).evidence == ()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (issued(8, operation="all_gather"), "all_gather of Float [100] on rank 2"),
        (issued(8, tensors="Float [101]"), "all_reduce of Float [101] on rank 2"),
        (issued(8, tensors="Half [100]"), "all_reduce of Half [100] on rank 2"),
    ],
)
def test_the_rank_that_issued_another_collective_is_named(other, text):
    """Operation, size or number format at the same sequence number."""
    found = compare_issued([of_rank(0, issued(8)), of_rank(1, issued(8)), of_rank(2, other)])
    assert found.mismatched_ranks == (2,)
    assert found.evidence == (
        f"collective 8 of group mesh_dp does not match: all_reduce of Float [100] on ranks 0-1, {text}",
    )


def test_sizes_that_may_differ_do_not():
    """All-to-all and gathers of uneven parts; groups of one name are compared with themselves."""
    uneven = [of_rank(rank, issued(8, operation="all_to_all", tensors=f"Float [{rank}]")) for rank in range(3)]
    assert compare_issued(uneven).mismatched_ranks == ()
    apart = [of_rank(0, issued(8)), of_rank(1, issued(8, operation="barrier", group="2"))]
    assert compare_issued(apart).evidence == ()


def test_an_earlier_mismatch_goes_before_what_follows_from_it():
    """What comes after the first collective that differs differs too."""
    found = compare_issued(
        [of_rank(0, issued(7), issued(8)), of_rank(1, issued(7, operation="barrier"), issued(8, operation="barrier"))]
    )
    assert found.evidence[0].startswith("collective 7 of group mesh_dp does not match")


def test_a_mismatch_is_the_root_cause_of_the_hang():
    """Though all stacks are in backward, where no collective has a name."""
    ranks = [stacks(rank, BACKWARD) for rank in range(3)]
    dumps = [of_rank(rank, issued(8, operation="all_reduce" if rank else "broadcast")) for rank in range(3)]
    both = [
        RankStacks(
            run="job",
            node="n",
            rank=each.rank,
            request_id=1,
            unix_ns=1,
            threads=each.threads,
            collectives=d.collectives,
        )
        for each, d in zip(ranks, dumps, strict=True)
    ]
    found = explain_hang(both, (), "link", "group")
    assert found.root_cause == MISMATCH
    assert any("broadcast of Float [100] on rank 0" in sentence for sentence in found.evidence)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "sentence", "odd"),
    [
        ("late", "rank 1 has not entered collective 4 of group mesh_dp; others are in collective 4, all_reduce", ()),
        (
            "operation",
            "collective 4 of group mesh_dp does not match: all_reduce of Float [8] on rank 0, all_gather",
            (1,),
        ),
        ("size", "all_reduce of Float [8] on rank 0, all_reduce of Float [9] on rank 1", (1,)),
    ],
)
def test_dumps_of_real_ranks(tmp_path, how, sentence, odd):
    """From torch's file to the sentence."""
    prefix = str(tmp_path / "rank_")
    command = [sys.executable, flight_job.__file__, str(tmp_path / "store"), prefix, how]
    subprocess.run(command, check=True, timeout=PATIENCE_S, env=os.environ | {"OMP_NUM_THREADS": "1"})
    options = {"prefix": prefix, "pipe_prefix": "", "owner_uid": os.geteuid(), "since_unix_ns": 0}
    dumps = [FlightDump(rank=rank, **options).read() for rank in range(2)]
    found = compare_issued([of_rank(rank, *dump) for rank, dump in enumerate(dumps)])
    assert sentence in found.evidence[0]
    assert found.mismatched_ranks == odd
