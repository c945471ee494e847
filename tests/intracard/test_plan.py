import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intracard_collectives.plan import GATHERED_MAX_BYTES, Gathering, Scattering
from lockstep.contracts.errors import MalformedError


@given(st.integers(0, 300), st.integers(1, 9), st.integers(1, 40))
def test_parts_are_split_as_numpy_splits(elements, ranks, piece_elements):
    """The pieces of every rank, one after the other, are its part; no element is left out or given twice."""
    values = np.arange(elements)
    plan = Scattering(elements, ranks, piece_elements)
    for rank, part in enumerate(np.array_split(values, ranks)):
        pieces = [values[plan.span(rank, piece)] for piece in range(plan.pieces)]
        assert all(len(piece) <= piece_elements for piece in pieces)
        assert np.concatenate(pieces).tolist() == part.tolist()
        assert plan.size(rank) == len(part)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 20))
def test_gathered_parts_lie_one_after_the_other(sizes, slot_bytes):
    """The pieces of all ranks cover the result once."""
    out = np.zeros(sum(sizes), np.uint8)
    plan = Gathering.of(sizes, slot_bytes, out)
    for rank in range(len(sizes)):
        for piece in range(plan.pieces):
            plan.piece(rank, piece)[:] += np.uint8(rank + 1)
    assert out.tolist() == np.repeat(np.arange(1, len(sizes) + 1), sizes).tolist()


def test_a_size_that_cannot_be_allocates_nothing():
    """A damaged size of a peer is refused by name."""
    with pytest.raises(MalformedError, match="bytes to gather"):
        Gathering.of([1, GATHERED_MAX_BYTES], 4096, None)
