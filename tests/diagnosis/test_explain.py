"""From the captures of an incident to function, root cause and advice."""

from dataclasses import replace

import pytest

from lockstep.diagnosis.explain import explain
from lockstep.diagnosis.verdict import INSUFFICIENT
from lockstep.trace.patterns import FunctionClass, Pattern, PatternSummary, table_of
from tests.diagnosis.summaries import STEPS, summary
from tests.diagnosis.test_root_cause import found_on_rank

STEP_SECONDS = 0.3


def rank(number, *findings, work_ms=30, waits_ms=170, function="job.py(7): work", **changes):
    made = summary(number, ("job.py(1): train", 100, (function, work_ms), ("wait for collectives", waits_ms)))
    return replace(made, findings=list(findings), **changes)


def slow(*findings, **changes):
    """Return rank 2, which works 170 ms longer."""
    return rank(2, *findings, work_ms=200, waits_ms=0, **changes)


PEERS = [rank(0), rank(1)]


def answer(suspects, peers=PEERS, *, cause="compute", scope="rank", excess_seconds=0.17):
    return explain(
        cause=cause,
        scope=scope,
        suspects=suspects,
        peers=peers,
        step_seconds=STEP_SECONDS,
        excess_seconds=excess_seconds,
    )


def test_a_slow_function_without_a_cause_is_named_alone():
    """Code that takes longer is its own reason, and what it holds beyond its peers is known."""
    found = answer([slow()])
    assert (found.function, found.root_cause, found.bottleneck) == ("job.py(7): work", "slow_function", "cpu")
    assert found.held_ns == 170_000_000
    assert found.confidence == "high"


def test_a_cause_joins_the_function():
    """Function from the call trees, cause from the node: both, with the evidence of both."""
    found = answer([slow(found_on_rank("gc", 150))], cause="gc")
    assert (found.root_cause, found.bottleneck) == ("gc", "cpu")
    assert "gc, 150.0 ms a step: gc costs 150" in found.evidence


def test_costs_that_peers_have_as_well_are_no_cause():
    """Reading that holds up every rank alike stays out of the answer."""
    reading = found_on_rank("data_reading", 90, bottleneck="io")
    found = answer([slow(reading)], [replace(peer, findings=[reading]) for peer in PEERS])
    assert found.root_cause == "slow_function"
    assert not any("data reading" in sentence for sentence in found.evidence)


def test_the_subject_of_a_cause_stands_in_for_a_function_that_is_not_found():
    """Without call trees the finding's subject is the function, and no more certain than medium."""
    bare = [replace(each, tree=[]) for each in (slow(found_on_rank("gc", 150, subject="sweep")), *PEERS)]
    found = answer(bare[:1], bare[1:])
    assert (found.function, found.root_cause, found.confidence) == ("sweep", "gc", "medium")


def test_other_causes_are_named_after_the_first():
    """Of four causes the first explains, the next three are named with what they cost."""
    found = answer(
        [slow(*(found_on_rank(cause, ms) for cause, ms in (("gc", 60), ("dispatch", 150), ("synchronisation", 90))))]
    )
    assert found.root_cause == "dispatch"
    assert [each for each in found.evidence if each.startswith("also: ")] == [
        "also: synchronisation, 90.0 ms a step",
        "also: gc, 60.0 ms a step",
    ]


def test_advice_is_ordered_by_gain_and_given_once():
    """The largest predicted gain is first, what cannot be predicted last, and nothing is reported twice."""
    found = answer([slow(found_on_rank("gc", 150), found_on_rank("data_processing", 60, bottleneck="io"))], cause="gc")
    gains = [each.predicted_gain_ratio or 0.0 for each in found.advice]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == pytest.approx(0.5, abs=0.07)  # 150 of 300 ms, or all of the 170
    repairs = [each.how for each in found.advice]
    assert len(set(repairs)) == len(repairs)


def crowded(number, loader_ms, *operators_ms, **changes):
    """Return a rank of a crowded machine without stacks: its loader, and operators that the scheduler spreads out."""
    operators = [(f"aten::op{at}", each) for at, each in enumerate(operators_ms)]
    made = summary(number, ("train", 10, ("enumerate(DataLoader)#next", loader_ms), *operators))
    return replace(made, **changes)


def test_a_dearer_loader_goes_before_an_operator_that_crowding_prolongs():
    """The loader holds 90 ms, no operator more than 45: the answer is the loader, not the root cause of an operator."""
    loading = found_on_rank("data_processing", 90, bottleneck="io", subject="enumerate(DataLoader)#next")
    suspect = crowded(2, 100, 45, 25, findings=[loading])
    found = answer([suspect], [crowded(0, 10, 2, 2), crowded(1, 10, 2, 2)], cause="unknown", excess_seconds=0.13)
    assert (found.function, found.root_cause) == ("enumerate(DataLoader)#next", "data_processing")
    cheap = found_on_rank("data_processing", 39.5, bottleneck="io", subject="enumerate(DataLoader)#next")
    suspect = crowded(2, 50, 90, findings=[cheap])
    found = answer([suspect], [crowded(0, 10, 2), crowded(1, 10, 2)], cause="unknown", excess_seconds=0.13)
    assert (found.function, found.root_cause) == ("aten::op0", "slow_function")


def test_the_first_suspect_that_could_be_read_is_compared():
    """A suspect whose trace is broken does not hide the one next to it."""
    broken = replace(slow(), tree=[], error="cut off")
    assert answer([broken, replace(slow(), rank=3)]).function == "job.py(7): work"


@pytest.mark.parametrize("suspects", [[], [replace(slow(), tree=[], error="cut off")]])
def test_nothing_to_go_by_is_reported(suspects):
    """Without a usable capture of a suspect there is no function, no cause, and no failure."""
    found = answer(suspects, [])
    assert (found.function, found.root_cause, found.confidence) == (INSUFFICIENT, "", "low")


def test_a_slower_job_has_the_cause_that_its_ranks_share():
    """Small messages on every rank: the cause of the whole job, with the ranks that show it."""
    small = found_on_rank("small_packets", 60, bottleneck="communication")
    found = answer([rank(each, small) for each in range(4)], [], cause="link", scope="job")
    assert (found.root_cause, found.bottleneck) == ("small_packets", "communication")
    assert "ranks 0, 1, 2, 3 were captured" in found.evidence[0]


def test_a_slower_job_is_not_explained_by_a_cause_of_one_rank():
    """What one of four captured ranks has is not what slows all of them."""
    found = answer([rank(0, found_on_rank("gc", 100)), *(rank(each) for each in (1, 2, 3))], [], scope="job")
    assert found.root_cause == ""


def test_nothing_is_expected_of_the_functions_of_hosts():
    """Without a device a function that takes most of every rank's time is the training itself, and no finding."""
    hosts = Pattern(function="job.py(7): work", stack=(), kind=FunctionClass.HOST, beta=0.9, mu=1.0, sigma=0.0)
    table = table_of(PatternSummary(window_ns=STEPS * 10**8, patterns=(hosts,)), 1)
    assert answer([rank(each, patterns=table) for each in range(4)], [], scope="job").root_cause == ""


def test_a_repair_of_cause_and_excess_is_given_once_with_the_trainings_own_line():
    """The cause knows which call collects, the call trees who makes it: one advice, not one for each."""

    def made(number, sweep_ms, waits_ms, *findings):
        sweep = ("job.py(9): sweep", 0, ("<built-in function collect>", 0, ("Python GC", sweep_ms)))
        tree = summary(number, ("job.py(1): train", 130, sweep, ("wait for collectives", waits_ms)))
        return replace(tree, findings=list(findings))

    collecting = found_on_rank("gc", 170, subject="<built-in function collect>")
    found = answer([made(2, 170, 0, collecting)], [made(0, 0, 170), made(1, 0, 170)], cause="gc")
    collects = [each.suggestion for each in found.advice if "gc.collect()" in each.suggestion]
    assert collects == ["Remove gc.collect() from the step: sweep (job.py:9) calls it"]


def stepped(summary, own_ms):
    """Return a capture whose work takes so long in each step, and whose training loop 100 ms more."""
    train, work, _ = summary.tree
    steps_ns = [[round((each + more) * 1e6) for each in own_ms] for more in (100, 0)]
    tree = [
        replace(node, total_ns=sum(by_step_ns), by_step_ns=by_step_ns)
        for node, by_step_ns in zip((train, work), steps_ns, strict=True)
    ]
    return replace(summary, tree=tree, steps=len(own_ms), step_ns=steps_ns[0], window_ns=sum(steps_ns[0]))


@pytest.mark.parametrize(
    ("own_ms", "cause", "expected"),
    [
        ((200, 210, 190, 200), "unknown", "slow_function"),
        ((200, 30, 190, 200), "compute", "slow_function"),
        ((710, 30, 30, 30), "unknown", ""),
        ((710, 30, 30, 30), "compute", ""),
        ((370, 30, 370, 30), "compute", ""),
    ],
)
def test_a_function_that_is_slow_in_few_steps_is_no_cause(own_ms, cause, expected):
    """The sum over four steps is the same: one pause of 680 ms, or 170 ms in each."""
    peers = [stepped(rank(number, waits_ms=0), (30, 31, 30, 29)) for number in (0, 1, 3)]
    found = answer([stepped(rank(2, waits_ms=0), own_ms)], peers, cause=cause)
    assert (found.function, found.root_cause) == ("job.py(7): work", expected)
    assert ("lacked its CPU core" in found.evidence[-1]) is not expected
