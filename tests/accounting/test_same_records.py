"""The marks of a step give the record that today's agent writes for the same events: its code is the oracle."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.accounting import bus_bytes
from lockstep.accounting.events import EVENTS_MAX
from lockstep.accounting.pending_marks import PENDING_MAX
from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import BLOCK_MARKS, OPERATORS
from lockstep.contracts.records import MISSING, Flag
from tests.accounting.jobs import Job
from tests.accounting.oracle import traffic
from tests.accounting.twin import Twin, named

COUNTS = st.none() | st.tuples(*[st.integers(0, 100) | st.just(MISSING)] * 3)
ISSUE = st.tuples(
    st.just("issue"), st.integers(0, len(OPERATORS) - 1), st.integers(0, 5), st.integers(1, 9), st.integers(0, 1 << 34)
)
TRAFFIC = st.tuples(st.integers(0, 9), st.integers(0, 1 << 40), st.integers(0, 1 << 41))
PLAIN = st.one_of(
    st.tuples(st.just("sleep"), st.sampled_from((0, 1, 7, 30_000, 20_000_000))),
    st.sampled_from(
        (
            *("data_begin", "backward_begin", "backward_end", "optimizer_end", "closure_begin", "closure_end"),
            *("step_end", "explicit", "change_thread"),
        )
    ).map(lambda name: (name,)),
    st.tuples(st.just("data_end"), COUNTS),
    st.tuples(st.just("unmeasured"), st.none() | st.dictionaries(st.integers(0, 5), TRAFFIC, max_size=3)),
    st.tuples(st.sampled_from(("optimizer_begin", "scaler_end")), st.integers(0, 3)),
    st.tuples(st.just("scaler_begin"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.sampled_from(("phase_begin", "phase_end")), st.integers(0, 3)),
    st.tuples(st.just("done"), st.integers(0, 9)),
    st.tuples(st.just("collect"), st.integers(0, 2), st.integers(1, 50)),
    st.tuples(st.just("annotate"), st.integers(0, 3), st.integers(0, 1000)),
    st.tuples(st.sampled_from(("flag", "capture")), st.integers(0, 31)),
    st.tuples(st.sampled_from(("spend", "compile")), st.integers(0, 9)),
)


@pytest.mark.parametrize("seed", range(240))
def test_jobs_of_all_kinds(seed):
    """Accumulation, GANs, fused and nested optimizers, scalers, closures, phases, evaluations, errors: equal bytes."""
    with Twin() as twin:
        Job(twin, Random(seed)).run(45)
        assert twin.records
        twin.check()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(PLAIN | ISSUE | st.tuples(st.just("wait"), PLAIN | ISSUE), max_size=120),
    endings=st.lists(st.tuples(st.booleans(), st.sampled_from(("later", "expect", "unknown"))), min_size=1),
)
def test_events_in_any_order(events, endings):
    """Also what no training does, like ends without a beginning, gives equal bytes."""
    with Twin() as twin:
        endings = endings * len(events)

        def play(method, *arguments):
            if method == "issue":
                synchronous, ending = endings.pop()
                twin.issue(*arguments, synchronous=synchronous, ending=ending)
            else:
                getattr(twin, method)(*arguments)

        twin.play = play
        for method, *arguments in events:
            if method == "wait":
                twin.wait(("play", *arguments[0]))
            else:
                play(method, *arguments)
        twin.step_end()
        twin.check()


def test_the_extension_gives_the_same():
    """The chain from C to the record."""
    with Twin(writer="C") as twin:
        Job(twin, Random(7)).run(45)
        twin.check()


def test_the_jobs_are_what_they_claim():
    """The jobs of the seeds contain every case that is compared: each flag, collective, collection, and lost optimizer."""
    records = []
    for seed in range(60):
        with Twin() as twin:
            Job(twin, Random(seed)).run(45)
            records += map(named, twin.records)
    for flag in (Flag.WARM_UP, Flag.CHECKPOINT, Flag.EVALUATION, Flag.PROFILED, Flag.SKIPPED_OPTIMIZER):
        assert any(record["flags"] & flag for record in records), flag
        assert any(not record["flags"] & flag for record in records), flag
    for name in ("gc_ns", "gc_full_count", "dp_wait_ns", "dp_comm_ns", "agent_ns", "recompilations", "model_flops"):
        assert any(record[name] > 0 for record in records), name
    assert any(record["dp_wait_ns"] == MISSING < record["dp_count"] for record in records)


def test_what_the_agent_does_between_steps_is_thread_time():
    """A writer notes it by a mark, since the marks of the training do not show it: half of the wall time here."""
    with Twin() as twin:
        twin.capture(8, 3_001)
        for _ in range(3):
            twin.sleep(10_000)
            twin.step_end()
        assert [named(record)["agent_ns"] for record in twin.records] == [0, 1_500, 1_501]
        twin.check()


def test_the_agent_costs_no_more_than_the_thread_had():
    """What it spends at collectives and batches is wall time, which the thread may have been descheduled in."""
    with Twin() as twin:
        twin.spend(9_000)
        twin.sleep(10_000)
        twin.step_end()
        assert named(twin.records[0])["agent_ns"] == named(twin.records[0])["cpu_ns"] == 5_000
        twin.check()


def test_a_wait_of_no_known_end_has_no_phase():
    """It becomes compute, of which the phases are no exact parts then; without one they are."""
    with Twin() as twin:
        for ending in ("later", "unknown"):
            twin.backward_begin()
            twin.issue(0, 3, 2, 64, synchronous=False, ending=ending)
            twin.sleep(50)
            twin.wait(("sleep", 40))
            twin.done(0)
            twin.backward_end()
            twin.step_end()
        known, unknown = map(named, twin.records)
        assert (known["dp_wait_ns"], known["compute_ns"]) == (90, known["forward_ns"] + known["backward_ns"])
        assert unknown["compute_ns"] == 90
        for name in ("dp_wait_ns", "dp_comm_ns", "forward_ns", "backward_ns", "optimizer_ns"):
            assert unknown[name] == MISSING, name
        twin.check()


def test_a_step_with_too_much_is_cut():
    """A process that never steps fills no memory, and the step is flagged as today; its parts still sum to it."""
    with Twin(block_count=4096) as twin:
        for _ in range(2):
            for _ in range(16_400):
                twin.sleep(3)
                twin.data_begin()
                twin.sleep(1)
                twin.data_end((1, MISSING, MISSING))
            twin.collect(2, 9)
            twin.step_end()
        for ours, theirs in zip(map(named, twin.built()), map(named, twin.records), strict=True):
            assert ours["flags"] & Flag.EVALUATION
            parts = {"data_ns", "host_ns"}
            assert {n: v for n, v in ours.items() if n not in parts} == {
                n: v for n, v in theirs.items() if n not in parts
            }
            assert sum(ours[name] for name in parts) == sum(theirs[name] for name in parts)


@pytest.mark.parametrize("operator", range(len(OPERATORS)))
def test_bus_bytes_are_those_of_the_agent(operator):
    """Every operator, groups of one included."""
    for size in (1, 2, 3, 1024):
        for payload in (0, 1, 12345, 1 << 38):
            expected = traffic.bus_bytes(OPERATORS[operator], payload, size)
            assert bus_bytes.bus_bytes(operator, payload, size) == expected


def test_blocks_may_come_one_by_one():
    """Nothing depends on where a block ends or when it is read."""
    with Twin() as twin:
        Job(twin, Random(11)).run(45)
        builder = StepBuilder()
        counts = [len(builder.add(block)) for block in twin.blocks()]
        assert sum(counts) == len(twin.records)
        assert builder.step == len(twin.records)


@pytest.mark.parametrize("saves", [False, True])
def test_communication_without_end_is_cut_too(saves):
    """A process that issues and waits for ever: what is held stays bounded, with a state saved now and then or not."""
    with Twin(block_count=4096) as twin:
        for _ in range(20_000):
            twin.issue(0, 3, 2, 64, synchronous=True, ending="expect")
            twin.buffer.wait_begin()
            twin.buffer.wait_end()
        twin.step_end()
        builder, steps, longest = StepBuilder(), [], 0
        for at, block in enumerate(twin.blocks()):
            steps += builder.add(block)
            longest = max(longest, builder._running.longest, len(builder._communication.pending))
            if saves and at % 100 == 0:
                builder = StepBuilder.from_state(builder.state(), where="a test")
        (record,) = [named(step.record) for step in steps]
        assert record["flags"] & Flag.EVALUATION
        assert longest <= PENDING_MAX
        assert 20_000 - EVENTS_MAX - BLOCK_MARKS <= record["dp_count"] < EVENTS_MAX
