import pytest

from lockstep.contracts.finding import HIGH, LOW, NotEvaluated
from lockstep.diagnosis.host_causes.collection import Collection, evaluate_collections
from tests.diagnosis.host_causes.scenes import call, frame, kernel, loader, span, view

MS = 1000
GC = "Python GC"


def test_recorded_collections_are_reported_with_count_and_longest():
    """Torch writes them as events where it is asked to."""
    (finding,) = evaluate_collections(view([frame(GC, 0, 5 * MS), frame(GC, 50 * MS, 15 * MS)], 100 * MS))
    assert (finding.cause, finding.confidence, finding.lost_ns) == ("gc", HIGH, 20_000_000)
    assert finding.subject == "automatic garbage collection"
    assert finding.evidence[0].startswith("2 collections")
    assert "15.0 ms" in finding.evidence[1]


def test_collections_that_the_agent_noted_are_joined_by_time():
    """Those outside the window are not its; of one across its edge the part inside counts."""
    noted = [
        Collection(-5_000_000, 4_000_000),
        Collection(-5_000_000, 10_000_000, 2),
        Collection(200_000_000, 5_000_000, 2),
    ]
    (finding,) = evaluate_collections(view([span("aten::mm", 0, 5)], 100 * MS), noted=noted)
    assert finding.lost_ns == 5_000_000
    assert finding.evidence[0].startswith("1 collection of more than 1 ms takes ")
    assert "1 of the oldest generation" in finding.evidence


def test_a_collection_that_is_recorded_and_noted_counts_once():
    """Both see the same time."""
    seen = view([frame(GC, 0, 5 * MS)], 100 * MS)
    (finding,) = evaluate_collections(seen, noted=[Collection(0, 5_000_000)])
    assert finding.lost_ns == 5_000_000


def test_short_collections_are_no_events():
    """More than 1 ms, as the vendor has it: many young collections of 1 ms are not reported."""
    events = [frame(GC, at * 2 * MS, 1 * MS) for at in range(50)]
    assert evaluate_collections(view(events, 100 * MS)) == []


def test_collections_behind_the_devices_work_cost_nothing():
    """The device had enough to do meanwhile."""
    assert evaluate_collections(view([frame(GC, 0, 5 * MS), kernel("gemm", 0, 5 * MS)], 100 * MS)) == []


def test_collections_that_the_code_asks_for_are_named_so():
    """gc.collect() in the step has another remedy than Python's own collections."""
    events = [frame("<built-in function collect>", 0, 6 * MS), frame(GC, 0, 5 * MS)]
    (finding,) = evaluate_collections(view(events, 100 * MS))
    assert finding.subject == "<built-in function collect>"
    assert finding.lost_ns == 6_000_000


def test_notes_without_collections_are_an_answer():
    """No one collected: that is not the same as no one looked."""
    seen = view([span("aten::mm", 0, 5)], 100)
    assert evaluate_collections(seen, noted=[]) == []
    assert isinstance(evaluate_collections(seen), NotEvaluated)


def _gap(*, between=()):
    return [
        call("cudaLaunchKernel", 0, 5),
        kernel("a", 10, 90),
        *between,
        kernel("b", 300 * MS, 100),
        call("cudaLaunchKernel", 299 * MS, 5),
    ]


def test_a_long_silence_of_device_and_host_is_a_guess():
    """Hermes' advisor calls it conjectured: low confidence, and it states why."""
    (finding,) = evaluate_collections(view(_gap(), 400 * MS))
    assert (finding.confidence, finding.lost_ns) == (LOW, 299_900_000)
    assert any("no collection was recorded" in each for each in finding.evidence)


@pytest.mark.parametrize(
    "between",
    [
        [span("aten::mm", at * MS, 5) for at in range(1, 250)],
        [call("cudaStreamSynchronize", 1 * MS, 250 * MS)],
        [loader(1 * MS, 250 * MS)],
    ],
    ids=["host works", "host waits", "host loads"],
)
def test_a_gap_that_shows_something_is_no_collection(between):
    """Operators, calls into the runtime, the loader: each explains it."""
    assert isinstance(evaluate_collections(view(_gap(between=between), 400 * MS)), NotEvaluated)


def test_without_a_device_a_gap_is_no_evidence():
    """A thread without events may do anything."""
    events = [span("aten::mm", 0, 5), span("aten::mm", 300 * MS, 5)]
    assert isinstance(evaluate_collections(view(events, 400 * MS)), NotEvaluated)
