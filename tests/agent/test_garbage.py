"""The collector's callback: what it notes, and what it must not do to the training's signals."""

import gc
import subprocess
import sys
import textwrap
from threading import Thread, get_ident

import pytest

from lockstep.agent import garbage
from lockstep.agent.garbage import EVENTS_MAX, CollectionLog


@pytest.fixture
def log():
    log = CollectionLog()
    gc.collect()
    gc.disable()
    gc.callbacks.append(log.callback)
    yield log
    gc.callbacks.remove(log.callback)
    gc.enable()


def test_collections_of_the_thread_are_noted(log):
    """Each collection is an interval, in order; those of other threads are left out, and nothing is reported twice."""
    gc.collect()
    gc.collect(0)
    thread = Thread(target=gc.collect)
    thread.start()
    thread.join()
    first, second = log.drain(get_ident())
    assert first[0] < first[1] <= second[0] < second[1]
    assert first[2] == 2
    assert log.drain(get_ident()) == []


def test_a_process_without_steps_keeps_no_more_than_so_many(log):
    """What no one reads is bounded, and what remains is still whole intervals."""
    for _ in range(EVENTS_MAX):
        gc.collect(0)
    assert len(log.events) == EVENTS_MAX
    assert len(log.drain(get_ident())) == EVENTS_MAX // 2


def test_an_interval_whose_beginning_is_lost_is_left_out():
    """An end without a beginning, after the log was full or was read in between, shows nothing."""
    log = CollectionLog()
    log.events.extend([(5, 1, False, None), (7, 1, True, None), (9, 1, False, None), (11, 1, True, None)])
    assert [interval[:2] for interval in log.drain(1)] == [(7, 9)]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="collections of 3.14 work in slices, which have no generation")
def test_generations_are_noted(log):
    """Each collection has its generation."""
    for generation in (0, 2, 1, 1, 0):
        gc.collect(generation)
    thread = Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert [generation for _, _, generation in log.drain(get_ident())] == [0, 2, 1, 1, 0]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="collections of 3.14 work in slices, which have no generation")
def test_automatic_collections_have_their_generation(log):
    """Collections that allocations set off are distinguished as well; the collector's own account states how many."""
    before = [stats["collections"] for stats in gc.get_stats()]
    gc.enable()
    kept = [[] for _ in range(gc.get_threshold()[0] * 130)]
    gc.disable()
    after = [stats["collections"] for stats in gc.get_stats()]
    noted = [generation for _, _, generation in log.drain(get_ident())]
    assert [noted.count(generation) for generation in range(3)] == [b - a for a, b in zip(before, after, strict=True)]
    assert noted.count(0) > 50
    assert noted.count(1) > 5
    assert kept


def test_without_generations_the_last_ones_are_the_full_ones(log, monkeypatch):
    """Where counts show nothing (Python 3.14), the collector's own count of full collections does."""
    monkeypatch.setattr(garbage, "_COUNTS_KNOWN", False)
    log.drain(get_ident())
    gc.collect(0)
    gc.collect(2)
    assert [generation for _, _, generation in log.drain(get_ident())] == [None, 2]


INTERRUPTED = """
    import gc, signal, time
    from lockstep.agent.garbage import CollectionLog

    class Ring:
        def __init__(self):
            self.me = self

    def stop(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    log = CollectionLog()
    gc.callbacks.append(CALLBACK)
    arrived = 0
    for _ in range(50):
        garbage = [Ring() for _ in range(20_000)]
        try:
            del garbage
            signal.setitimer(signal.ITIMER_REAL, 0.0005)  # the collection takes milliseconds
            gc.collect()
            time.sleep(0.1)
        except KeyboardInterrupt:
            arrived += 1
    print(arrived, len(log.events) > 0)
"""


def interrupted(callback):
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED).replace("CALLBACK", callback)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_signal_during_a_collection_reaches_the_training():
    """What a handler raises after a collection is the training's, and not swallowed by the collector."""
    done = interrupted("log.callback")
    assert (done.stdout, done.stderr) == ("50 True\n", "")


def test_a_callback_in_python_would_lose_it():
    """The test above can fail: the same with one line of Python in the callback loses signals."""
    done = interrupted("lambda phase, info: log.callback(phase, info)")
    assert int(done.stdout.split()[0]) < 50
