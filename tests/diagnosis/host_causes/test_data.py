import numpy as np
import pytest

from lockstep.contracts.finding import HIGH, LOW, MEDIUM, NotEvaluated
from lockstep.diagnosis.host_causes.data import (
    FETCHING,
    PROCESSING,
    READING,
    LoaderSamples,
    evaluate_fetching,
    evaluate_loader,
)
from tests.diagnosis.host_causes.scenes import ALONE, WORKERS, copy, frame, kernel, loader, span, steps, view

MS = 1000
READ = "<built-in method read of _io.BufferedReader object at 0x7f>"
ITEM = "data.py(3): __getitem__"


def _one(answer):
    (finding,) = answer
    return finding


def test_a_loader_that_reads_is_a_reading_bottleneck():
    """Most of its exposed time lies in calls that read files."""
    events = [loader(0, 40 * MS), frame(ITEM, 0, 40 * MS), frame(READ, 5 * MS, 30 * MS)]
    finding = _one(evaluate_loader(view(events, 100 * MS)))
    assert (finding.cause, finding.confidence, finding.subject) == (READING, HIGH, ALONE)
    assert finding.lost_ns == 40_000_000
    assert "75 % of it is spent in calls that read" in " ".join(finding.evidence)
    assert any("read of _io.BufferedReader" in each for each in finding.evidence)


def test_a_loader_that_computes_is_a_processing_bottleneck():
    """What is neither read nor waited for is processing, and the user's function is named."""
    events = [loader(0, 40 * MS), frame(ITEM, 0, 40 * MS), frame(READ, 5 * MS, 10 * MS)]
    finding = _one(evaluate_loader(view(events, 100 * MS)))
    assert (finding.cause, finding.confidence) == (PROCESSING, HIGH)
    assert any(ITEM in each for each in finding.evidence)


@pytest.mark.parametrize(
    "name",
    [
        "<built-in method recv_into of _socket.socket object at 0x7f>",
        "<built-in function open>",
        "<built-in function load>",
        "<built-in function pread>",
        "data.py(3): read_sample",
        "urllib/request.py(189): urlopen",
    ],
)
def test_calls_that_read(name):
    """Files, sockets and the usual names of functions that read."""
    events = [loader(0, 40 * MS), frame(ITEM, 0, 40 * MS), frame(name, 0, 39 * MS)]
    assert _one(evaluate_loader(view(events, 100 * MS))).cause == READING


@pytest.mark.parametrize(
    "name", ["PIL/Image.py(3): open", "<built-in method decompress of zlib.D object>", "io.py(1): g"]
)
def test_calls_that_do_not_read(name):
    """Decoding and unpacking are processing."""
    events = [loader(0, 40 * MS), frame(ITEM, 0, 40 * MS), frame(name, 0, 39 * MS)]
    assert _one(evaluate_loader(view(events, 100 * MS))).cause == PROCESSING


def test_without_frames_a_loader_on_the_training_thread_is_processing_of_medium_confidence():
    """Operators inside it are processing; that reading cannot be seen is reported."""
    events = [loader(0, 40 * MS), span("aten::div", 5 * MS, 10 * MS)]
    finding = _one(evaluate_loader(view(events, 100 * MS)))
    assert (finding.cause, finding.confidence) == (PROCESSING, MEDIUM)
    assert "operators hold 25 % of it; without frames reading cannot be seen" in finding.evidence


def test_time_behind_the_devices_work_is_no_bottleneck():
    """The device queue is not empty: it works while the loader loads."""
    events = [loader(0, 40 * MS), kernel("gemm", 0, 39 * MS)]
    assert evaluate_loader(view(events, 100 * MS)) == []


@pytest.mark.parametrize(
    ("loader_ms", "step_ms", "count", "named"),
    [(11, 300, 4, True), (9, 300, 4, False), (11, 400, 4, False), (2, 19, 4, True), (2, 21, 4, False)],
)
def test_limits_of_the_loader(loader_ms, step_ms, count, named):
    """10 ms a step if they are 3 % of it, or 10 % of a short step."""
    events = [*steps(count, step_ms * MS), *(loader(step * step_ms * MS, loader_ms * MS) for step in range(count))]
    assert bool(evaluate_loader(view(events, count * step_ms * MS))) is named


def test_workers_that_keep_the_thread_waiting_cannot_be_looked_into():
    """Reading and processing are in other processes: the answer is of low confidence and states that."""
    events = [loader(0, 40 * MS, WORKERS), frame("<built-in method poll of select.poll object at 0x1>", 0, 39 * MS)]
    finding = _one(evaluate_loader(view(events, 100 * MS)))
    assert (finding.cause, finding.confidence) == (PROCESSING, LOW)
    assert any("cannot be distinguished" in each for each in finding.evidence)


def samples(*ready, **counted):
    return LoaderSamples(ready=np.array(ready), outstanding=4 - np.array(ready), workers=2, **counted)


@pytest.mark.parametrize(
    ("found", "cause", "confidence"),
    [
        (samples(0, 0, 0, 1, cpu_ratio=0.9, blocked_ratio=0.05), PROCESSING, HIGH),
        (samples(0, 0, 0, 1, cpu_ratio=0.1, blocked_ratio=0.8), READING, HIGH),
        (samples(0, 0, 0, 1), PROCESSING, MEDIUM),
        (samples(4, 3, 4, 0, cpu_ratio=0.9), FETCHING, HIGH),
    ],
)
def test_the_measured_queue_decides(found, cause, confidence):
    """Batches that are ready are taken over slowly; where none is, blocked workers read and busy ones process."""
    finding = _one(evaluate_loader(view([loader(0, 40 * MS, WORKERS)], 100 * MS), loader=found))
    assert (finding.cause, finding.confidence) == (cause, confidence)
    assert any("of 4 requests" in sentence for sentence in finding.evidence)


@pytest.mark.parametrize(
    ("held_ms", "expected_text"), [(50, "about 4 workers keep up"), (99, "about 32 workers keep up at least")]
)
def test_the_finding_states_how_many_workers_keep_up(held_ms, expected_text):
    """Two that never rest and are waited for half of the time make half of the batches; beyond 16 times no number fits."""
    found = samples(0, 0, 0, 0, cpu_ratio=1.0)
    finding = _one(evaluate_loader(view([loader(0, held_ms * MS, WORKERS)], 100 * MS), loader=found))
    assert any(expected_text in sentence for sentence in finding.evidence)


def test_batches_that_are_there_and_taken_over_slowly_are_fetching():
    """The host queue is not empty: the thread unpickles instead of waiting. Reads of pipes are no storage."""
    events = [
        loader(0, 40 * MS, WORKERS),
        frame("multiprocessing/connection.py(390): _recv", 0, 5 * MS),
        frame("<built-in function read>", 0, 5 * MS),
        frame("<built-in function loads>", 6 * MS, 33 * MS),
    ]
    assert _one(evaluate_loader(view(events, 100 * MS))).cause == FETCHING


def test_a_loader_on_another_thread_is_not_the_training_threads():
    """Only what holds the thread that trains holds training."""
    events = [*steps(2, 50 * MS), span(ALONE, 0, 40 * MS, thread=2)]
    assert isinstance(evaluate_loader(view(events, 100 * MS)), NotEvaluated)


def test_without_a_loader_nothing_is_evaluated():
    """Many trainings feed themselves in other ways: no answer is not "no bottleneck"."""
    answer = evaluate_loader(view([span("aten::mm", 0, 5)], 10))
    assert isinstance(answer, NotEvaluated)
    assert "no span" in answer.reason


def test_copies_that_the_device_waits_for_are_fetching():
    """Only the part counts in which it neither computes nor communicates."""
    events = [copy("Memcpy HtoD (Pageable -> Device)", 0, 30), kernel("gemm", 10, 60)]
    finding = _one(evaluate_fetching(view(events, 100)))
    assert (finding.cause, finding.lost_ns, finding.confidence) == (FETCHING, 10_000, HIGH)
    assert evaluate_fetching(view(events, 101)) == []


def test_copies_from_the_device_are_not_fetching():
    """They bring results back."""
    assert evaluate_fetching(view([copy("Memcpy DtoH (Device -> Pageable)", 0, 30)], 100)) == []


def test_without_a_device_nothing_is_fetched():
    """The rule states that it does not apply."""
    assert isinstance(evaluate_fetching(view([span("aten::mm", 0, 5)], 10)), NotEvaluated)
