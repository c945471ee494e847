"""The benchmark of the accounting measures what it claims to."""

from benchmarks import accounting_cost
from lockstep.contracts.records import RECORD_FIELDS, RECORD_STRUCT


def test_its_steps_are_as_described():
    """A hundred synchronous collectives that block, a hundred that the backward hides, ten steps a second."""
    records = accounting_cost.build(accounting_cost.slots_of(12), 12)
    assert len(records) == 12
    record = dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(records[-1]), strict=True))
    assert (record["tp_count"], record["dp_count"]) == (100, 100)
    assert record["tp_wait_ns"] > 0
    assert record["end_ns"] - record["start_ns"] == accounting_cost.STEP_NS


def test_its_steps_on_a_device_are_as_described():
    """The same collectives, each measured by the events of the device."""
    slots = accounting_cost.slots_of(12, accounting_cost.DeviceStepMarks)
    records = [
        dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(each), strict=True)) for each in accounting_cost.build(slots, 11)
    ]
    assert len(records) == 11  # the last one is not read yet
    for record in records:
        assert (record["tp_count"], record["dp_count"]) == (100, 100)
        assert record["tp_wait_ns"] > 0
        assert record["device_step_ns"] > 0


def test_the_budget_is_checked():
    """Beyond 3 % of a core for eight ranks, or with other steps than asked for, a check is missed."""
    records = accounting_cost.build(accounting_cost.slots_of(12), 12)
    assert [check.is_met for check in accounting_cost.check(375_000, records, 12)] == [True, True, None, True]
    assert [check.is_met for check in accounting_cost.check(376_000, records, 13)] == [False, True, None, False]
