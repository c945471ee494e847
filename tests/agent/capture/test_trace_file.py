"""Events and facts put into the end of a trace."""

import json

import pytest

from lockstep.agent.capture import trace_file as module
from lockstep.agent.capture.trace_file import base_ns, extend
from lockstep.contracts.errors import LocalError

EVENT = {"ph": "X", "name": "Python GC", "ts": 1.5, "dur": 2}
LIMIT = 1 << 30

# Endings as torch 2.13 and older ones write them, and one with lists before and inside the events.
DOCUMENTS = [
    '{"baseTimeNanoseconds": 7, "traceEvents": [\n  {"ph": "X"}\n  ],"traceName": "/x].json" }',
    '{"traceEvents": [{"ph": "X"}], "traceName": "t", "displayTimeUnit": "ms", "baseTimeNanoseconds": 7}',
    '{"deviceProperties": [{"id": 0}], "baseTimeNanoseconds": 7, "traceEvents": [{"args": {"d": [[1], []]}}],"x": [{}]}',
    '{"baseTimeNanoseconds": 7, "traceEvents": [{"ph": "X", "args": {"a": [{"b": []}]}}]}\n',
]


@pytest.mark.parametrize("text", DOCUMENTS)
@pytest.mark.parametrize("padding", [0, 3 * module.TAIL_BYTES])
def test_events_and_facts_are_in_their_place(tmp_path, text, padding):
    """Whatever follows the events, ours come last among them, our key last of all, and nothing else changes."""
    path = tmp_path / "x.json"
    path.write_text(text.replace('"traceEvents": [', '"traceEvents": [' + '{"pad": "' + "x" * padding + '"}, '))
    before = json.loads(path.read_text())
    size = extend(path, [EVENT, EVENT], {"rank": 3}, LIMIT)
    assert size == path.stat().st_size
    after = json.loads(path.read_text())
    assert after.pop("lockstep") == {"rank": 3}
    assert after["traceEvents"][-2:] == [EVENT, EVENT]
    assert {**after, "traceEvents": after["traceEvents"][:-2]} == before
    assert base_ns(path) == 7


def test_no_events_of_ours(tmp_path):
    """Facts alone are added where torch wrote the collections itself."""
    path = tmp_path / "x.json"
    path.write_text(DOCUMENTS[0])
    extend(path, [], {}, LIMIT)
    assert json.loads(path.read_text()) == {**json.loads(DOCUMENTS[0]), "lockstep": {}}


@pytest.mark.parametrize("cut", [1, 5, 25, 40])
def test_cut_off_trace_is_refused(tmp_path, cut):
    """Torch does not report when a disk is full; the end of the file does."""
    path = tmp_path / "x.json"
    path.write_text(DOCUMENTS[0][:-cut])
    with pytest.raises(LocalError, match=r"trace end: got .*expected a closed object"):
        extend(path, [EVENT], {}, LIMIT)


def test_too_large_trace_is_refused(tmp_path):
    """The figures are in the message, and the file is left as it was."""
    path = tmp_path / "x.json"
    path.write_text(DOCUMENTS[0])
    with pytest.raises(LocalError, match=f"trace size: got {len(DOCUMENTS[0])} bytes, expected at most 20"):
        extend(path, [EVENT], {}, 20)
    assert path.read_text() == DOCUMENTS[0]


def test_base_that_is_not_there(tmp_path):
    """Older traces count from 1970."""
    path = tmp_path / "x.json"
    path.write_text('{"traceEvents": []}')
    assert base_ns(path) == 0
