"""The marks of trainings of all kinds become records that hold what was played, each event in its step."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.accounting.events import EVENTS_MAX
from lockstep.accounting.iteration import REPEATS
from lockstep.accounting.pending_marks import PENDING_MAX
from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import BLOCK_MARKS, OPERATORS
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from tests.accounting.jobs import KINDS, Job
from tests.accounting.played import PlayedTraining, named
from tests.agent.rings import unaccounted_ns, wait_ns

SEND = OPERATORS.index("send")
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
    st.tuples(st.just("flag"), st.integers(0, 31)),
    st.tuples(st.sampled_from(("spend", "compile")), st.integers(0, 9)),
)


def check(training):
    """Hold that the records are the steps from the attempt's beginning on, without gap, and hold what was played."""
    records = training.records
    assert [record["step"] for record in records] == list(range(len(records)))
    assert all(latter["start_ns"] == former["end_ns"] for former, latter in pairwise(records))
    used = set()
    for record in records:
        assert unaccounted_ns(record) == 0
        assert min(record[name] for name in ("data_ns", "compute_ns", "host_ns", "gc_ns")) >= 0
        check_step(record, training.log, used)
    return records


def check_step(record, log, used):
    """Hold that a record counts the events of its time, those behind a change of the training thread only.

    `used` are the domains of the steps before; those of this one are added.
    """
    start_ns, end_ns = record["start_ns"], record["end_ns"]
    inside = [entry for entry in log if start_ns < entry[0] <= end_ns]
    totals = dict.fromkeys(("spend", "compile"), 0)
    for _, event, arguments in inside:
        if event in totals:
            totals[event] += arguments[0]
        if event in ("issue", "unmeasured"):
            used.add(arguments[0])
        if event == "flag":
            assert record["flags"] & arguments[0] == arguments[0]
    changes = [at for at, (_, event, _) in enumerate(inside) if event == "change_thread"]
    since_ns = inside[changes[-1]][0] if changes else start_ns
    held = inside[changes[-1] + 1 :] if changes else inside
    collections = [arguments for _, event, arguments in held if event == "collect"]
    assert record["gc_ns"] == sum(took_ns for _, took_ns in collections)
    assert record["gc_count"] == len(collections)
    assert record["gc_full_count"] == sum(generation == 2 for generation, _ in collections)
    assert record["cpu_ns"] == end_ns // 2 - since_ns // 2
    assert record["agent_ns"] == min(totals["spend"], record["cpu_ns"])
    assert record["recompilations"] == totals["compile"]
    for domain, kind in enumerate(DOMAIN_KINDS):
        moved = [(1, each[1]) for _, event, each in held if event == "issue" and each[0] == domain]
        moved += [each[1:3] for _, event, each in held if event == "unmeasured" and each[0] == domain]
        count, payload = (sum(column) for column in zip((0, 0), *moved, strict=True))
        expected = (count, payload) if domain in used else (MISSING, MISSING)
        assert (record[f"{kind}_count"], record[f"{kind}_bytes"]) == expected
        check_wait(record, kind)


def check_wait(record, kind):
    """Hold that a wait lies within the time in flight, and that of the moments of both nothing is half known."""
    wait, in_flight, bus = (record[f"{kind}_{name}"] for name in ("wait_ns", "comm_ns", "bus_bytes"))
    assert (wait == MISSING) == (in_flight == MISSING)
    assert MISSING <= wait <= in_flight <= record["end_ns"] - record["start_ns"]
    assert (bus == MISSING) == (record[f"{kind}_count"] == MISSING)


@pytest.mark.parametrize("seed", range(240))
def test_jobs_of_all_kinds(seed):
    """Accumulation, GANs, fused and nested optimizers, scalers, closures, phases, evaluations, errors."""
    with PlayedTraining(tick_ns=1) as training:
        Job(training, Random(seed)).run(45)
        assert check(training)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=st.lists(PLAIN | ISSUE | st.tuples(st.just("wait"), PLAIN | ISSUE), max_size=120),
    endings=st.lists(st.tuples(st.booleans(), st.sampled_from(("later", "expect", "unknown"))), min_size=1),
)
def test_events_in_any_order(events, endings):
    """Also what no training does, like ends without a beginning, leaves records that hold what was played."""
    with PlayedTraining(tick_ns=1) as training:
        endings = endings * len(events)

        def play(method, *arguments):
            if method == "issue":
                synchronous, ending = endings.pop()
                training.issue(*arguments, synchronous=synchronous, ending=ending)
            else:
                getattr(training, method)(*arguments)

        training.play = play
        for method, *arguments in events:
            if method == "wait":
                training.wait(("play", *arguments[0]))
            else:
                play(method, *arguments)
        training.step_end()
        assert check(training)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_every_iteration_is_one_step(kind, seed):
    """Once its sequence is learnt, or is named, a steady job's steps end where its iterations do."""
    with PlayedTraining(tick_ns=1) as training:
        job = Job(training, Random(seed)).steady(kind)
        job.run(40)
        records = check(training)
    ends = job.iteration_ends_ns
    if kind == "explicit":  # from its third iteration on it names the end of every second one
        ends = [*ends[:2], *ends[3::2]]
    learnt = 2 * REPEATS if kind in ("gan", "groups") else 0
    found = [record["end_ns"] for record in records]
    assert found[-len(ends) + learnt :] == ends[learnt:]
    assert all(record["flags"] & Flag.WARM_UP == 0 for record in records[-len(ends) + learnt + 1 :])


def test_the_extension_gives_the_same():
    """The chain from C to the record."""
    found = []
    for writer in ("C", "Python"):
        with PlayedTraining(writer=writer, tick_ns=1) as training:
            Job(training, Random(7)).run(45)
            found.append(training.records)
    assert found[0]
    assert found[0] == found[1]


def test_the_jobs_are_what_they_claim():
    """The jobs of the seeds contain every case that is compared: each flag, collective, collection, and lost optimizer."""
    records = []
    for seed in range(60):
        with PlayedTraining(tick_ns=1) as training:
            Job(training, Random(seed)).run(45)
            records += training.records
    for flag in (Flag.WARM_UP, Flag.CHECKPOINT, Flag.EVALUATION, Flag.PROFILED, Flag.SKIPPED_OPTIMIZER):
        assert any(record["flags"] & flag for record in records), flag
        assert any(not record["flags"] & flag for record in records), flag
    for name in ("gc_ns", "gc_full_count", "dp_wait_ns", "dp_comm_ns", "agent_ns", "recompilations", "model_flops"):
        assert any(record[name] > 0 for record in records), name
    assert any(record["dp_wait_ns"] == MISSING < record["dp_count"] for record in records)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_thread_was_seen_to_wait_is_a_wait(seed):
    """Where every collective is asynchronous and outside of backwards, the waits are those that were seen."""
    random = Random(seed)
    with PlayedTraining(tick_ns=1) as training:
        for _ in range(12):
            for _ in range(random.randint(1, 4)):
                training.issue(SEND, random.randrange(3), 2, 64, synchronous=False)
                training.sleep(random.randint(0, 300))
                inside = [("sleep", random.randint(0, 900)), ("done", 0)]
                training.wait(*inside, *([("collect", 0, 30)] if random.random() < 0.3 else []))
            training.step_end()
        records = check(training)
        for record in records:
            seen = [
                (began_ns, at)
                for at, event, arguments in training.log
                if event == "wait" and record["start_ns"] < at <= record["end_ns"]
                for began_ns in arguments
            ]
            assert wait_ns(record) == sum(end - begin for begin, end in seen) - record["gc_ns"]


def test_a_wait_of_no_known_end_has_no_phase():
    """It becomes compute, of which the phases are no exact parts then; without one they are."""
    with PlayedTraining() as training:
        for ending in ("later", "unknown"):
            training.backward_begin()
            training.issue(0, 3, 2, 64, synchronous=False, ending=ending)
            training.sleep(50)
            training.wait(("sleep", 40))
            training.done(0)
            training.backward_end()
            training.step_end()
        known, unknown = training.records
        assert (known["dp_wait_ns"], known["compute_ns"]) == (90, known["forward_ns"] + known["backward_ns"])
        assert unknown["compute_ns"] == 90
        for name in ("dp_wait_ns", "dp_comm_ns", "forward_ns", "backward_ns", "optimizer_ns"):
            assert unknown[name] == MISSING, name


def test_a_step_with_too_much_is_cut():
    """A process that never steps fills no memory, and the step is flagged; its parts still sum to it."""
    with PlayedTraining(block_count=4096) as training:
        for _ in range(2):
            for _ in range(16_400):
                training.sleep(3)
                training.data_begin()
                training.sleep(1)
                training.data_end((1, MISSING, MISSING))
            training.collect(2, 9)
            training.step_end()
        for record in training.records:
            assert record["flags"] & Flag.EVALUATION
            assert unaccounted_ns(record) == 0
            assert (record["gc_ns"], record["gc_full_count"]) == (9, 1)
            assert record["data_ns"] < 16_400 < record["host_ns"] + record["data_ns"]


def test_blocks_may_come_one_by_one():
    """Nothing depends on where a block ends or when it is read."""
    with PlayedTraining() as training:
        Job(training, Random(11)).run(45)
        builder = StepBuilder()
        counts = [len(builder.add(block)) for block in training.blocks()]
        assert sum(counts) == len(training.records)
        assert builder.step == len(training.records)


@pytest.mark.parametrize("saves", [False, True])
def test_communication_without_end_is_cut_too(saves):
    """A process that issues and waits for ever: what is held stays bounded, with a state saved now and then or not."""
    with PlayedTraining(block_count=4096) as training:
        for _ in range(20_000):
            training.issue(0, 3, 2, 64, synchronous=True, ending="expect")
            training.buffer.wait_begin()
            training.buffer.wait_end()
        training.step_end()
        builder, steps, longest = StepBuilder(), [], 0
        for at, block in enumerate(training.blocks()):
            steps += builder.add(block)
            longest = max(longest, builder._running.longest, len(builder._communication.pending))
            if saves and at % 100 == 0:
                builder = StepBuilder.from_state(builder.state(), where="a test")
        (record,) = [named(step.record) for step in steps]
        assert record["flags"] & Flag.EVALUATION
        assert longest <= PENDING_MAX
        assert 20_000 - EVENTS_MAX - BLOCK_MARKS <= record["dp_count"] < EVENTS_MAX
