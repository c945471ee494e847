import itertools
import random

import pytest

from benchmarks.chaos import __main__ as chaos
from benchmarks.chaos.faults import FAULTS, OUTAGE_BATCHES, OUTAGE_RECORDS, drawn, outage_seconds
from benchmarks.chaos.ranks import Job, RanksPlan
from benchmarks.chaos.verdict import EXPORTER_FAULTS, Ended, Line, common_checks, lossless_checks, lossy_checks
from benchmarks.chaos.watch import Lifetimes
from benchmarks.chaos.world import BATCH_S, RUN
from benchmarks.checks import has_missed
from benchmarks.services import Stored, parse_samples, total
from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.records import RECORD_FIELDS, RECORD_STRUCT
from tests.support.mark_ring import BlockMaker, StepMarks

PLAN = RanksPlan(
    root="", run=RUN, node="node0", directory="", first_rank=0, ranks=4, world=8, own_ns=38_000_000, start_ns=10**12,
    seed=1, slow_rank=5, fault_step=10, fault_ratio=0.3,
)  # fmt: skip
INCIDENT = {"kind": "slow_rank", "ranks": [5], "detected_step": 12}


def test_ranks_of_all_nodes_step_together():
    """Two processes of one job make the same steps, and each record's parts sum to its step."""
    one, other = Job(PLAN), Job(PLAN)
    for step in range(20):
        one.advance()
        other.advance()
        records = [one.record(rank) for rank in range(8)]
        assert other.record(3) == records[3]
        slowest = min(range(8), key=lambda rank: records[rank]["dp_wait_ns"])
        assert step < 10 or slowest == 5


def test_the_parts_of_a_step_are_those_that_its_rank_wanted():
    """From the marks the accounting makes records whose waits and work are the job's."""
    job, marks, maker, builder = Job(PLAN), StepMarks(), BlockMaker(), StepBuilder()
    for step in range(3):
        job.advance()
        wanted = job.record(5)
        (built,) = (step for block in maker.blocks(marks.marks(wanted)) for step in builder.add(block))
        record = dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(built.record), strict=True))
        assert record["step"] == step
        assert {name: record[name] for name in wanted} == wanted
        parts = sum(record[name] for name in ("data_ns", "compute_ns", "host_ns", "gc_ns", "dp_wait_ns"))
        assert parts == record["end_ns"] - record["start_ns"]


def test_the_order_of_faults_follows_from_the_seed():
    """A seed draws the same faults again, each kind at least once at the beginning."""
    first, again, other = (
        [fault.name for fault in itertools.islice(drawn(random.Random(seed)), 60)] for seed in (4, 4, 5)
    )
    assert first == again != other
    assert set(first[: len(FAULTS)]) == {fault.name for fault in FAULTS}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_long_outage_spools_what_ten_minutes_do(ranks):
    """While the broker is away each node makes the batches and the records of ten minutes at one step a second."""
    seconds = outage_seconds(ranks)
    assert seconds / BATCH_S >= OUTAGE_BATCHES
    assert seconds * ranks / 0.053 >= OUTAGE_RECORDS


def test_a_counter_that_falls_is_seen_and_a_restart_is_none():
    """A counter may begin again with a new process only; its total goes on over both."""
    seen = Lifetimes("a")
    for start, value in ((1, 5.0), (1, 7.0), (2, 1.0), (2, 4.0)):
        seen.take(start, {"x_total{}": value, "gauge{}": 10 - value})
    assert seen.falls == []
    assert seen.total("x_total") == 11
    seen.take(2, {"x_total{}": 3.0})
    assert seen.falls == ["a: x_total{} fell from 4 to 3"]


def test_a_page_is_parsed_with_its_labels():
    """Series keep their labels, comments are left out, and sums choose by name and label."""
    page = '# HELP a b\na_total{reason="x",run="r s"} 3\na_total{reason="y"} 4.5\na_total_more 7\nb 1e3\n'
    samples = parse_samples(page)
    assert total(samples, "a_total") == 7.5
    assert total(samples, "a_total", '"x"') == 3
    assert total(samples, "b") == 1000


def ended(**changes):
    stored = {"evaluated": {RUN: 800}, "ledger": {"settled": 800}, "incidents": {"i": INCIDENT}, "integrity": "ok"}
    stores = {name: Stored(**(stored | changes.pop(name, {}))) for name in ("a", "b")}
    whole = {"heads": dict.fromkeys(range(8), 100), "stored": stores, "slow_rank": 5, "orders": [{"request_id": 1}]}
    return Ended(**(whole | changes))


def checks_of(outcome):
    return [*common_checks(outcome), *lossless_checks(outcome)]


def test_a_whole_run_passes():
    """All records evaluated in both stores, one incident, one order."""
    assert not has_missed(checks_of(ended()))


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": dict.fromkeys(range(7), 100) | {7: 101}},
        {"a": {"evaluated": {RUN: 799}}},
        {"b": {"evaluated": {}}},
        {"a": {"ledger": {"settled": 801}}},
        {"b": {"ledger": {"settled": 792, "spool": 8}, "evaluated": {RUN: 792}}},
        {"a": {"incidents": {}}},
        {"b": {"incidents": {"j": INCIDENT}}},
        {"a": {"incidents": {"i": INCIDENT | {"ranks": [4]}}}},
        {"b": {"integrity": "row 3 missing"}},
        {"orders": []},
        {"orders": [{"request_id": 1}, {"request_id": 2}]},
        {"falls": ["x"]},
        {"is_quiet": False},
    ],
)
def test_each_violation_is_seen(changes):
    """A record too few, one too many, another incident, a second capture: each of them fails the run."""
    assert has_missed(checks_of(ended(**changes)))


def test_what_a_full_spool_dropped_must_be_counted():
    """With full spools evaluated and lost add up exactly, loss is expected, and of no other kind."""
    dropped = {"ledger": {"settled": 780, "spool": 20}, "evaluated": {RUN: 780}}

    def is_good(store):
        outcome = ended(a=store, b=store)
        return not has_missed([*common_checks(outcome), *lossy_checks(outcome)])

    assert is_good(dropped)
    assert not is_good({})
    assert is_good(dropped | {"evaluated": {RUN: 788}})
    assert not is_good(dropped | {"evaluated": {RUN: 779}})
    assert not is_good(dropped | {"evaluated": {RUN: 805}})
    assert not is_good(dropped | {"ledger": {"settled": 780, "malformed": 20}})


def test_a_killed_exporter_may_send_a_message_again():
    """Its records are evaluated once all the same."""
    again = {"ledger": {"settled": 808}}
    assert has_missed(checks_of(ended(a=again)))
    assert not has_missed(checks_of(ended(a=again, lines={"exporter killed": Line(times=1)})))
    assert has_missed(checks_of(ended(a=again | {"evaluated": {RUN: 808}}, lines={"exporter killed": Line(times=1)})))
    assert has_missed(checks_of(ended(a={"ledger": {"settled": 825}}, lines={"exporter killed": Line(times=1)})))


def test_faults_that_kill_an_exporter_are_known_by_name():
    """Else what they repeat would be a failure."""
    assert {fault.name for fault in FAULTS if "exporter" in fault.name} == set(EXPORTER_FAULTS)


@pytest.mark.servers
def test_five_kills_lose_nothing():
    """Real services, five kills of a seeded order: every record evaluated once in both stores, one incident."""
    assert chaos.main(["--kills", "5", "--seed", "1", "--without-outage", "--without-full-spool"]) == 0
