"""Batches of any layouts become one table in their order."""

import numpy as np

from coordinator.intake.batch_table import read_batches
from lockstep.contracts.records import MISSING
from tests.support.batches import batch_of_columns


def batch(*ranks, **columns):
    """Return one record of each rank, with the same values."""
    return batch_of_columns(ranks, {name: np.full(len(ranks), value) for name, value in columns.items()})


def test_records_stand_in_the_order_of_their_batches():
    """Whatever the number of records in each."""
    table = read_batches([batch(3, 1, step=7), batch(step=9), batch(2, step=8)], ("rank", "step"))
    assert {name: values.tolist() for name, values in table.items()} == {"rank": [3, 1, 2], "step": [7, 7, 8]}


def test_senders_of_other_fields_keep_their_places():
    """Layouts in turn, one with its fields in another order: MISSING is what a sender left out, and never 0."""
    batches = [batch(0, tokens=2, step=1), batch(1, 2, step=4, tokens=3), batch(3, step=5), batch(4, tokens=0, step=6)]
    table = read_batches(batches, ("step",), ("work", "tokens"))
    assert {name: values.tolist() for name, values in table.items()} == {
        "step": [1, 4, 4, 5, 6],
        "tokens": [2, 3, 3, MISSING, 0],
    }


def test_required_fields_are_there_without_any_sender():
    """Also of no batch at all; optional ones that none sends are not."""
    assert read_batches([batch(0, step=1)], ("flags",), ("tokens",))["flags"].tolist() == [MISSING]
    assert {name: len(values) for name, values in read_batches([], ("rank", "step"), ("tokens",)).items()} == {
        "rank": 0,
        "step": 0,
    }
