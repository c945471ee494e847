"""The collector's callback: what it notes, and what it must not do to the training's signals."""

import gc
import subprocess
import sys
import textwrap
from threading import Thread, get_ident

import pytest

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
    """Each collection is an interval, in order; those of other threads are left out, and nothing is told twice."""
    log.take_full_count()
    gc.collect()
    gc.collect(0)
    thread = Thread(target=gc.collect)
    thread.start()
    thread.join()
    found = log.take(get_ident())
    assert len(found) == 2
    assert found[0][0] < found[0][1] <= found[1][0] < found[1][1]
    assert log.taken == found
    assert log.take_full_count() == 2
    assert log.take(get_ident()) == log.taken == []


def test_a_process_without_steps_keeps_no_more_than_so_many(log):
    """What nobody reads is bounded, and what remains is still whole intervals."""
    for _ in range(EVENTS_MAX):
        gc.collect(0)
    assert len(log.events) == EVENTS_MAX
    assert len(log.take(get_ident())) == EVENTS_MAX // 2


def test_an_interval_whose_beginning_is_lost_is_left_out():
    """An end without a beginning, after the log was full or was read in between, says nothing."""
    log = CollectionLog()
    log.events.extend([(5, 1, False, None), (7, 1, True, None), (9, 1, False, None), (11, 1, True, None)])
    assert log.take(1) == [(7, 9)]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="collections of 3.14 work in slices, which have no generation")
def test_generations_are_noted_on_request(log):
    """Each collection's generation while they are wanted, by its end; nothing before and after, and none is kept."""
    gc.collect(1)
    log.note_generations(wanted=True)
    for generation in (0, 2, 1, 1, 0):
        gc.collect(generation)
    thread = Thread(target=gc.collect)
    thread.start()
    thread.join()
    found = log.take(get_ident())
    assert [log.generations.get(end_ns) for _, end_ns in found] == [None, 0, 2, 1, 1, 0]
    assert len(log.generations) == 5
    log.note_generations(wanted=False)
    gc.collect()
    assert len(log.take(get_ident())) == 1
    assert log.generations == {}


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="collections of 3.14 work in slices, which have no generation")
def test_automatic_collections_have_their_generation(log):
    """Collections that allocations set off are told apart as well; the collector's own account says how many."""
    log.note_generations(wanted=True)
    before = [stats["collections"] for stats in gc.get_stats()]
    gc.enable()
    kept = [[] for _ in range(gc.get_threshold()[0] * 130)]
    gc.disable()
    after = [stats["collections"] for stats in gc.get_stats()]
    found = log.take(get_ident())
    noted = [log.generations[end_ns] for _, end_ns in found]
    assert [noted.count(generation) for generation in range(3)] == [b - a for a, b in zip(before, after, strict=True)]
    assert noted.count(0) > 50
    assert noted.count(1) > 5
    assert kept


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
