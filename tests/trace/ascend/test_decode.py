import json

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend.decode import AscendDecoder
from lockstep.trace.ascend.load import load_trace_view
from lockstep.trace.source import TraceSource
from tests.trace.ascend.written import BASE_NS, PYTHON, flow, metadata, row, stamp, write

_EVENTS = [
    *(
        row(f'n {i} }}, {{"', PYTHON, 1, 1000 * i, 1 + i, cat="cpu_op", args={"Input Dims": '[{"a"}, {"b"}]'})
        for i in range(40)
    ),
    *flow("async_npu", 7, (PYTHON, 1, 0), (300, 2, 5)),
    *metadata(),
]


def _blocks(path, chunk_bytes, block_bytes):
    source = TraceSource(path, max_bytes=1 << 20, chunk_bytes=chunk_bytes)
    return list(AscendDecoder(source, block_bytes=block_bytes))


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize(("chunk_bytes", "block_bytes"), [(1, 1), (7, 50), (100, 300), (1000, 1), (1 << 20, 1 << 20)])
def test_where_blocks_are_cut_changes_nothing(tmp_path, separators, chunk_bytes, block_bytes):
    """Braces in names and arguments are no boundaries, in either spacing."""
    blocks = _blocks(write(tmp_path, _EVENTS, separators=separators), chunk_bytes, block_bytes)
    assert [each.name for block in blocks for each in block.complete] == [each["name"] for each in _EVENTS[:40]]
    assert [ns for block in blocks for ns in block.start_ns.tolist()] == [BASE_NS + 1000 * i for i in range(40)]
    assert [ns - BASE_NS for block in blocks for ns in block.flow_ns.tolist()] == [0, 5]
    assert sum(len(block.metadata) for block in blocks) == len(metadata())
    assert sum(block.event_count for block in blocks) == len(_EVENTS)


def test_memory_stays_that_of_a_block(tmp_path):
    """A list in one line is decoded in pieces of about the block's size."""
    path = write(tmp_path, [row(f"n{i}", PYTHON, 1, i, 1) for i in range(1000)])
    counts = [len(block.complete) for block in _blocks(path, 1000, 2000)]
    assert sum(counts) == 1000
    assert max(counts) < 40


@pytest.mark.parametrize("number", ["1736405443863674.401", "1736405443863674"])
def test_times_as_numbers_are_exact(tmp_path, number):
    """Versions that write times as numbers with decimals lose no digit that they wrote."""
    path = write(tmp_path, _EVENTS)
    path.write_text(path.read_text().replace(f'"{stamp(0)}"', number, 1))
    first = _blocks(path, 1 << 20, 1 << 20)[0].start_ns[0]
    assert first == round(float(number.split(".")[0])) * 1000 + (401 if "." in number else 0)


@pytest.mark.parametrize("block_bytes", [300, 1 << 20])
def test_names_that_are_not_utf8_do_not_cost_the_trace(tmp_path, block_bytes):
    """Bytes that no encoding explains are replaced, in the last block and in others."""
    path = write(tmp_path, _EVENTS)
    path.write_bytes(path.read_bytes().replace(b'"n 1 ', b'"n \xff ').replace(b'"n 39 ', b'"n \xff '))
    names = [each.name for block in _blocks(path, 1 << 20, block_bytes) for each in block.complete]
    assert len(names) == 40
    assert [i for i, name in enumerate(names) if name.startswith("n \ufffd ")] == [1, 39]


def test_bad_events_cost_themselves_only(tmp_path):
    """Events of any other form are dropped and counted, those of other phases only counted."""
    bad = """{"ph": "X", "name": 3, "ts": "1.0", "dur": 1}, {"ph": "X", "name": "no time"}, 17, null,
      {"ph": "X", "name": "n", "ts": "soon", "dur": 1}, {"ph": "X", "name": "n", "ts": "1.0", "dur": -1},
      {"ph": "X", "name": "n", "ts": "1.0", "dur": 1, "args": {"connection_id": 1e99}},
      {"ph": "X", "name": "n", "ts": 1e999999, "dur": 1}, {"ph": "C", "args": {"value": []}}, {"ph": "?"}, """
    path = write(tmp_path, _EVENTS)
    path.write_text("[" + bad + path.read_text()[1:])
    columns = load_trace_view(path)
    assert len(columns) == 41  # odd arguments do not cost their event
    assert (columns.event_count, columns.dropped_count) == (len(_EVENTS) + 10, 7)


_HOSTILE = {
    "empty": b"",
    "text": b"hello",
    "number": b"42",
    "no events": b"[]",
    "only metadata": json.dumps(metadata()).encode(),
    "other JSON": b'{"a": 1}',
    "events no list": b'{"traceEvents": {"ph": "X"}}',
    "deep nesting": b'[{"ph": "X", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    "deep nesting, mistyped": b'[{"ph": 1, "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    "trailing bytes": json.dumps(_EVENTS).encode() + b"x",
    "missing comma": json.dumps(_EVENTS).encode().replace(b'}, {"ph"', b'} {"ph"', 1),
}


@pytest.mark.parametrize("content", _HOSTILE.values(), ids=_HOSTILE.keys())
def test_what_is_no_trace_is_a_named_error(tmp_path, content):
    """The error names the file, what, got and expected."""
    path = tmp_path / "trace_view.json"
    path.write_bytes(content)
    with pytest.raises(MalformedError, match=rf"^.+ in {path}: got .*, expected .+"):
        load_trace_view(path)


def test_a_trace_cut_off_anywhere_is_refused(tmp_path):
    """No prefix of a trace passes for a trace."""
    content = json.dumps(_EVENTS[:3])
    path = tmp_path / "trace_view.json"
    for length in range(len(content)):
        path.write_text(content[:length])
        with pytest.raises(MalformedError):
            load_trace_view(path)
