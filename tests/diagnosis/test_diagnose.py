import pytest

from lockstep.contracts.metrics import CAUSES
from lockstep.diagnosis.diagnose import AUTOMATIC_GC, cause_of, diagnose
from lockstep.diagnosis.verdict import INSUFFICIENT
from tests.diagnosis.summaries import summary

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
BACKWARD = "<built-in method run_backward of torch._C._EngineBase object>"


def _diagnose(suspect, *peers, cause="compute", excess_ms=30.0):
    return diagnose(cause=cause, suspect=suspect, peers=list(peers), step_seconds=0.1, excess_seconds=excess_ms / 1e3)


def _job(rank, *below, wait_ms=40):
    """Return a rank whose main() calls `below` and waits in backward."""
    return summary(rank, ("train.py(1): main", 1, *below, (BACKWARD, 1, ("wait for collectives", wait_ms))))


def _attention(ms):
    return ("nn.Module: Block", 1, ("model.py(9): redundant", 1, ("<built-in method matmul>", 0, ("aten::mm", ms))))


def test_the_deepest_user_function_that_holds_the_excess_is_named():
    """Function, operator below it, path, numbers and ranks: the whole answer for one slow function."""
    found = _diagnose(_job(2, _attention(30), wait_ms=10), _job(1, ("nn.Module: Block", 1)))
    assert found.function == "model.py(9): redundant"
    assert found.operator == "aten::mm"
    assert found.path == [
        "train.py(1): main",
        "nn.Module: Block",
        found.function,
        "<built-in method matmul>",
        "aten::mm",
    ]
    assert found.confidence == "high"
    assert found.evidence == [
        "redundant takes 31.0 ms a step on rank 2, 0.0 ms on rank 1",
        "aten::mm takes 30.0 ms a step on rank 2, 0.0 ms on rank 1",
        "called from main (train.py:1) > nn.Module: Block",
        "the capture has 31.0 ms a step more there than on its peers; rank 2 was measured 30.0 ms a step slower",
        "rank 2 waits 10.0 ms a step for collectives, rank 1 40.0 ms: the others wait for it",
    ]
    assert found.advice[0].predicted_gain_ratio == pytest.approx(0.3)


def test_a_library_frame_is_not_the_answer_below_a_user_frame():
    """Where the excess sits in torch, the user's caller is named and the operator shown."""
    optimizer = ("torch/optim/adam.py(214): step", 1, ("aten::add_", 30))
    found = _diagnose(_job(2, ("opt.py(3): update", 0, optimizer)), _job(1, ("opt.py(3): update", 0)))
    assert (found.function, found.operator) == ("opt.py(3): update", "aten::add_")


def test_without_user_frames_the_library_is_named_and_without_frames_the_operator():
    """The answer is the best that the capture holds."""
    found = _diagnose(summary(2, ("torch/a.py(1): f", 0, ("aten::mm", 40))), summary(1, ("torch/a.py(1): f", 5)))
    assert (found.function, found.operator) == ("torch/a.py(1): f", "aten::mm")
    found = _diagnose(summary(2, ("aten::linear", 0, ("aten::mm", 40))), summary(1, ("aten::linear", 5)))
    assert found.function == "aten::mm"
    assert "the captures hold no Python frames there" in found.evidence


def test_data_names_the_function_of_the_dataset():
    """The user's own function below the loader, not the loop above it."""
    read = (LOADER, 0, ("torch/utils/data/_utils/fetch.py(49): fetch", 0, ("data.py(80): read_document", 30)))
    found = _diagnose(_job(1, read), _job(0, (LOADER, 1)), cause="data")
    assert (found.function, found.confidence) == ("data.py(80): read_document", "high")
    assert "worker processes" in found.advice[0].suggestion


def test_data_with_workers_names_what_the_capture_cannot_see():
    """The loader is named, with less confidence, and the evidence states where the time is."""
    wait = (WORKERS, 0, ("multiprocessing/queues.py(98): get", 30))
    found = _diagnose(_job(1, wait), _job(0, (WORKERS, 1)), cause="data")
    assert (found.function, found.confidence) == (WORKERS, "medium")
    assert any("worker processes" in each for each in found.evidence)


def test_data_is_not_blamed_for_slow_work_nor_work_for_slow_data():
    """Each cause is sought in its own part of the tree."""
    both = _job(1, (LOADER, 60), ("model.py(3): forward", 30))
    healthy = _job(0, (LOADER, 1), ("model.py(3): forward", 1))
    assert _diagnose(both, healthy, cause="compute").function == "model.py(3): forward"
    assert _diagnose(both, healthy, cause="data").function == LOADER


def test_explicit_collection_is_found_at_its_caller():
    """gc.collect() in a user function names that function."""
    collect = ("train.py(70): tidy_up", 0, ("<built-in function collect>", 0, ("Python GC", 30)))
    found = _diagnose(_job(3, collect), _job(0), cause="gc")
    assert found.function == "train.py(70): tidy_up"
    assert found.evidence[0] == "1.0 collections a step take 30.0 ms on rank 3; 0.0 and 0.0 ms on rank 0"
    assert "gc.collect()" in found.advice[0].suggestion


def test_automatic_collection_in_one_place_names_the_place_and_calls_it_automatic():
    """A function whose allocations start Python's own collections is where to look."""
    found = _diagnose(_job(3, ("train.py(9): allocate", 1, ("Python GC", 30))), _job(0), cause="gc")
    assert found.function == "train.py(9): allocate"
    assert any("Python's own collections" in each for each in found.evidence)


def test_automatic_collection_all_over_names_none():
    """Collections scattered over functions have no single place, and the answer states that with count and time."""
    scattered = [(f"train.py({line}): f{line}", 1, ("Python GC", 10)) for line in range(3)]
    found = _diagnose(_job(3, *scattered), _job(0), cause="gc")
    assert found.function == "automatic garbage collection"
    assert found.evidence[0] == "3.0 collections a step take 30.0 ms on rank 3; 0.0 and 0.0 ms on rank 0"
    assert found.confidence == "high"


def test_communication_compares_the_shortest_collectives():
    """A slow link is named with confidence that no single capture makes high; plain waiting gives low and no gain."""

    def rank(number, mean_ms, best_ms):
        nodes = ("train.py(1): main", 1, ("c10d::allreduce_", 1))
        return summary(number, nodes, collectives={"gloo:all_reduce": [4, 4e6 * mean_ms, 1e6 * best_ms]})

    slow = _diagnose(rank(2, 30, 25), rank(0, 30, 10), cause="link")
    assert (slow.function, slow.operator, slow.confidence) == ("gloo:all_reduce", "c10d::allreduce_", "medium")
    assert slow.advice[0].predicted_gain_ratio == pytest.approx(0.3)
    waiting = _diagnose(rank(2, 30, 10), rank(0, 10, 10), cause="link")
    assert waiting.confidence == "low"
    assert all(advice.predicted_gain_ratio is None for advice in waiting.advice)


@pytest.mark.parametrize(("excess_ms", "found"), [(100.0, True), (101.0, False)])
def test_less_than_a_third_of_the_excess_is_no_answer(excess_ms, found):
    """At 30 % explained the function is named with lower confidence, just below it is not."""
    answer = _diagnose(_job(2, ("model.py(3): f", 30)), _job(1), excess_ms=excess_ms)
    assert (answer.function == "model.py(3): f") is found
    assert answer.confidence == ("medium" if found else "low")


def test_excess_spread_over_the_loop_is_of_low_confidence():
    """To name main() is no answer; the evidence lists the largest parts."""
    parts = [(f"model.py({line}): f{line}", 10) for line in range(3)]
    found = _diagnose(_job(2, *parts, wait_ms=10), _job(1))
    assert (found.function, found.confidence) == ("train.py(1): main", "low")
    assert (
        "no single callee of main accounts for the excess; the largest: f0 10.0 ms, f1 10.0 ms, f2 10.0 ms"
        in found.evidence
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_without_a_suspect_there_is_advice_but_no_function(cause):
    """No capture, an empty one and a broken one are insufficient evidence, and state why."""
    for suspect, why in (
        (None, "no capture of the suspect arrived"),
        (summary(2), "its capture holds no host events"),
        (summary(2, error="JSON in /t: got x"), "JSON in /t: got x"),
    ):
        found = _diagnose(suspect, _job(1), cause=cause)
        assert (found.function, found.confidence, found.evidence) == (INSUFFICIENT, "low", [why])
        assert found.advice


@pytest.mark.parametrize("cause", ["compute", "host", "link", "unknown"])
def test_without_peers_work_cannot_be_evaluated(cause):
    """What is long is not therefore slow."""
    found = _diagnose(_job(2, _attention(30)), summary(1, error="lost"), cause=cause)
    assert (found.function, found.confidence) == (INSUFFICIENT, "low")
    assert found.evidence[-1] == "the capture of rank 1 could not be used: lost"


@pytest.mark.parametrize("cause", ["data", "gc"])
def test_without_peers_waiting_for_data_and_collecting_still_show(cause):
    """Both are excess by themselves, with low confidence."""
    suspect = _job(2, (LOADER, 0, ("data.py(8): read", 30)), ("f.py(1): f", 0, ("<built-in function collect>", 30)))
    found = _diagnose(suspect, cause=cause)
    assert found.function == {"data": "data.py(8): read", "gc": "f.py(1): f"}[cause]
    assert found.confidence == "low"


def test_unknown_excess_is_measured_by_the_capture_itself():
    """A caller without a measurement still gets the function."""
    found = _diagnose(_job(2, _attention(30)), _job(1), excess_ms=0.0)
    assert (found.function, found.confidence) == ("model.py(9): redundant", "high")


def _outside(rank, recorded_ms, outside_ms):
    return summary(rank, ("DistributedDataParallel.forward", recorded_ms), window_ms=recorded_ms + outside_ms)


def test_an_excess_in_no_recorded_call_is_reported():
    """Without stacks a collection leaves nothing behind; that time is compared as well, but what is recorded goes first."""
    found = _diagnose(_outside(2, 5, 40), _outside(1, 5, 10))
    assert (found.function, found.confidence) == ("(no recorded call)", "medium")
    assert "garbage collection and Python without stacks leave no call" in found.evidence
    assert found.held_ns == 30_000_000
    assert _diagnose(_outside(2, 35, 40), _outside(1, 5, 10)).function == "DistributedDataParallel.forward"


def test_collections_that_were_measured_are_those_that_no_call_records():
    """The detectors measured collections, the capture has none: the excess in no call is theirs, with less certainty."""
    found = _diagnose(_outside(2, 5, 40), _outside(1, 5, 10), cause="gc")
    assert (found.function, found.confidence) == (AUTOMATIC_GC, "medium")


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ([(LOADER, 30)], "data"),
        ([("f.py(1): f", 0, ("<built-in function collect>", 30))], "gc"),
        ([("data", 30)], "compute"),  # an annotation of that name is no loader
        ([(LOADER, 30), ("f.py(1): f", 30)], "compute"),
    ],
)
def test_the_call_tree_shows_what_the_excess_consists_of(more, cause):
    """Where no one measured the cause: the loader or collections if they hold most of it, else work."""
    assert cause_of(_job(2, *more), [_job(1)]) == cause


def test_without_peers_nothing_is_excess():
    """One rank alone is compared with nothing."""
    assert cause_of(_job(2, ("f.py(1): f", 30)), []) == "unknown"


OWN_FRAMES = [
    "lockstep/agent/hooks/collectives.py(120): wait",
    "/opt/site-packages/lockstep/agent/capture/recording.py(88): mark",
    "torch/autograd/profiler.py(793): __enter__",
    "<built-in method _record_function_enter_new of PyCapsule object at 0x7f>",
    "profiler::_record_function_enter_new",
]


@pytest.mark.parametrize("own", OWN_FRAMES)
def test_what_we_add_to_a_captured_step_is_never_the_culprit(own):
    """Time in the agent's frames and the profiler's is not the training's; what it calls below them is."""
    step = ("train.py(1): step", 1.0, (own, 60.0, ("train.py(9): read", 20.0)))
    suspect, peer = summary(2, step), summary(0, ("train.py(1): step", 1.0))
    found = diagnose(cause="compute", suspect=suspect, peers=[peer], step_seconds=0.1, excess_seconds=0.02)
    assert found.function == "train.py(9): read"
    assert found.held_ns == 20_000_000
    assert own not in " ".join([found.operator, *found.evidence])
    only = summary(2, ("train.py(1): step", 1.0, (own, 60.0)))
    found = diagnose(cause="compute", suspect=only, peers=[peer], step_seconds=0.1, excess_seconds=0.06)
    assert found.function == INSUFFICIENT


def test_no_cause_holds_more_than_the_excess_of_a_step():
    """A stall in the captured steps is longer than what the rank is slower by: 4 ms are 4 ms."""
    suspect, peer = summary(2, ("train.py(1): work", 75.0)), summary(0, ("train.py(1): work", 1.0))
    found = diagnose(cause="compute", suspect=suspect, peers=[peer], step_seconds=0.1, excess_seconds=0.004)
    assert found.held_ns == 4_000_000
    assert all(advice.predicted_gain_ratio is None or advice.predicted_gain_ratio <= 0.04 for advice in found.advice)
    assert "this accounts for all of the 4.0 ms a step by which rank 2 was measured slower" in found.evidence
