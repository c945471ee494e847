"""Columns to records and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.rows import join_columns, split_columns

names = st.lists(st.text("abc_", min_size=1, max_size=8), unique=True, min_size=1, max_size=6)


@given(data=st.data(), names=names, count=st.integers(0, 5))
def test_columns_come_back(data, names, count):
    """Joined and split again, every column is what it was."""
    columns = {name: data.draw(st.binary(min_size=8 * count, max_size=8 * count)) for name in names}
    layout, records = join_columns(columns)
    assert len(records) == 8 * count * len(names)
    assert split_columns(layout, records) == columns


def test_a_record_lies_in_one_piece():
    """First all values of the first record, then those of the second."""
    assert join_columns({"rank": b"aaaaaaaaAAAAAAAA", "step": b"bbbbbbbbBBBBBBBB"}) == (
        "rank,step",
        b"aaaaaaaabbbbbbbbAAAAAAAABBBBBBBB",
    )


def test_columns_of_different_length_are_refused():
    """Nothing is cut or filled."""
    with pytest.raises(ValueError, match="size"):
        join_columns({"rank": bytes(16), "step": bytes(8)})
