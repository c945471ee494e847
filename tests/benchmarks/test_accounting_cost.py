"""The benchmark of the accounting measures what it says."""

from benchmarks import accounting_cost
from lockstep.contracts.records import RECORD_FIELDS, RECORD_STRUCT


def test_its_steps_are_as_described():
    """A hundred synchronous collectives that block, a hundred that the backward hides, ten steps a second."""
    records = accounting_cost.build(accounting_cost.slots_of(12))
    assert len(records) == 12
    record = dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(records[-1]), strict=True))
    assert (record["tp_count"], record["dp_count"]) == (100, 100)
    assert record["tp_wait_ns"] > 0
    assert record["end_ns"] - record["start_ns"] == accounting_cost.STEP_NS


def test_its_steps_on_a_device_are_as_described():
    """The same collectives, each measured by the events of the device."""
    slots = accounting_cost.slots_of(12, accounting_cost.DeviceStepMarks)
    records = [
        dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(each), strict=True)) for each in accounting_cost.build(slots)
    ]
    assert len(records) == 11  # the last one is not read yet
    for record in records:
        assert (record["tp_count"], record["dp_count"]) == (100, 100)
        assert record["tp_wait_ns"] > 0
        assert record["device_step_ns"] > 0


def test_the_budget_is_judged():
    """Beyond 3 % of a core for eight ranks, or with other steps than asked for, a check is missed."""
    records = accounting_cost.build(accounting_cost.slots_of(12))
    assert [check.is_met for check in accounting_cost.check(cost(375_000), records, 12)] == [
        *(True, True),
        *(None, None, None),
        True,
    ]
    assert [check.is_met for check in accounting_cost.check(cost(376_000), records, 13)] == [
        *(False, True),
        *(None, None, None),
        False,
    ]


def cost(scaled_ns):
    return accounting_cost.Cost(2 * scaled_ns, scaled_ns)


def test_a_slow_machine_does_not_decide(monkeypatch):
    """The cost is scaled by work that takes as much longer there."""
    found = {}
    for factor in (1, 3):
        taken = iter(
            [factor * accounting_cost.REFERENCE_NS, *[factor * 990_000, factor * accounting_cost.REFERENCE_NS] * 99]
        )
        monkeypatch.setattr(accounting_cost, "thread_ns", lambda _work, taken=taken: next(taken))
        found[factor] = accounting_cost.measure(accounting_cost.slots_of(12))
    assert found[3].measured_ns == 3 * found[1].measured_ns
    assert found[3].scaled_ns == found[1].scaled_ns == found[1].measured_ns == 82_500
