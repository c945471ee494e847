"""What the process reports because the exporter cannot know it: FLOPs of the model, bus bytes, what the agent costs."""

import pytest

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import FLOPS_UNITS, MarkKind, flops_argument, pack_call_site, pack_issue
from lockstep.contracts.records import MISSING
from tests.accounting.played import named
from tests.accounting.test_lost_marks import block_of

TOKEN, SAMPLE, STEP, UNKNOWN = range(len(FLOPS_UNITS))
DETAIL, ARGUMENT = pack_issue(pack_call_site("allreduce_", synchronous=True, domain=3, slot=0, group_size=2), 64)


def records_of(*marks, begin=(0, 0)):
    """Return the records of steps from 100 to 1,000 and on, at each STEP_END among the marks; CPU time is wall time."""
    marks = [(time, kind, detail, subject, argument) for time, kind, detail, subject, argument in marks]
    builder = StepBuilder()
    steps = builder.add(block_of([(100, MarkKind.BEGIN, *begin, 0), *marks]))
    assert builder.counts.malformed_marks == sum(step.is_incomplete for step in steps)
    return [named(step.record) for step in steps]


def end(time):
    return (time, MarkKind.STEP_END, 0, 0, time)


def batch(samples, tokens):
    data = ((110, MarkKind.DATA_BEGIN, 0, 0, 0), (111, MarkKind.DATA_END, 0, 0, 0))
    return *data, (112, MarkKind.BATCH_TOKENS, 0, 0, tokens), (113, MarkKind.BATCH, 0, 0, samples)


def report(unit, flops):
    return (105, MarkKind.MODEL_FLOPS, unit, 0, flops_argument(flops))


@pytest.mark.parametrize(
    ("unit", "factor", "expected"),
    [
        (TOKEN, 6e9, 6 * 10**9 * 2048),
        (SAMPLE, 2.5, 7),
        (STEP, 1e15, 10**15),
        (UNKNOWN, 5.0, MISSING),
        (STEP, 2.0**62, MISSING),
        (TOKEN, 1e300, MISSING),
    ],
)
def test_model_flops_follow_from_what_is_reported(unit, factor, expected):
    """For a token, a sample or a step; from the running step on."""
    first, second = records_of(*batch(3, 2048), report(unit, factor), end(200), *batch(3, 2048), end(300))
    assert first["model_flops"] == second["model_flops"] == expected


def test_model_flops_need_what_they_are_for():
    """Without tokens there are none for a token, and what is annotated counts."""
    record, other = records_of(
        report(TOKEN, 6.0), *batch(3, MISSING), end(200), (250, MarkKind.ANNOTATION, 3, 0, 77), end(300)
    )
    assert (record["model_flops"], other["model_flops"]) == (MISSING, 77)


def test_a_new_report_holds_from_its_step_on():
    """A model that grows."""
    first, second = records_of(report(STEP, 5.0), end(200), report(STEP, 6.0), end(300))
    assert (first["model_flops"], second["model_flops"]) == (5, 6)


@pytest.mark.parametrize("flops", [-1.0, float("inf"), float("nan")])
def test_flops_that_no_model_has_are_refused(flops):
    """And a unit that there is none."""
    for mark in (report(STEP, flops), (105, MarkKind.MODEL_FLOPS, len(FLOPS_UNITS), 0, 0)):
        (record,) = records_of(mark, end(200))
        assert record["model_flops"] == MISSING


def test_a_report_among_lost_marks_holds_when_it_comes_again():
    """It is repeated while the number of the step is not known as well."""
    builder = StepBuilder()
    begin, ends = (100, MarkKind.BEGIN, 0, 0, 0), [end(200), end(300)]
    builder.add(block_of([begin, end(150)]))
    block = block_of([report(STEP, 9.0), *ends])
    object.__setattr__(block, "position", 3)
    object.__setattr__(block, "step_ends", 1)
    steps = builder.add(block)
    assert [(named(step.record)["step"], named(step.record)["model_flops"]) for step in steps] == [(1, MISSING), (2, 9)]


def test_bus_bytes_that_the_training_names_replace_those_of_the_operator():
    """Of the collective with that ordinal, in this step."""
    issue = (120, MarkKind.ISSUE, DETAIL, 5, ARGUMENT)
    named_bytes = (121, MarkKind.ISSUE_BUS, 0, 5, 1000)
    of_another = (121, MarkKind.ISSUE_BUS, 0, 6, 9)
    plain, replaced, other = records_of(issue, end(200), issue, named_bytes, end(300), issue, of_another, end(400))
    assert (plain["dp_bus_bytes"], replaced["dp_bus_bytes"], other["dp_bus_bytes"]) == (64, 1000, 64)
    assert replaced["dp_bytes"] == 64
    (refused,) = records_of(issue, (121, MarkKind.ISSUE_BUS, 0, 5, -1), end(200))
    assert refused["dp_count"] == MISSING


def test_the_agent_costs_its_marks_and_its_collectives():
    """As BEGIN reports, besides what AGENT_COST marks name: the marks of the step up to its end."""
    issue = (120, MarkKind.ISSUE, DETAIL, 5, ARGUMENT)
    cost = (130, MarkKind.AGENT_COST, 0, 0, 5)
    first, second, third = records_of(
        (110, MarkKind.DATA_BEGIN, 0, 0, 0), end(200), issue, cost, end(300), end(400), begin=(7, 2)
    )
    assert [record["agent_ns"] for record in (first, second, third)] == [2 * 2, 3 * 2 + 7 + 5, 2]
