import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.contracts.errors import MalformedError
from lockstep.trace.kineto.decode import TraceDecoder
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.source import TraceSource
from tests.trace.traces import BASE_NS, RECORDING, document, event, write

LAYOUTS = ("torch", "indented", "one line", "base last", "list")

_EVENTS = [
    event(f'name {i} }}, {{"', 1_234_567 * i, 1 + i, args={"list": [{"a": i}, {"b": "},\n {"}]}) for i in range(40)
]


def _times(columns):
    return list(zip(columns.start_ns.tolist(), columns.duration_ns.tolist(), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_columns(tmp_path, layout):
    """How the JSON is laid out, and where the base stands, changes nothing; names with braces are no boundaries."""
    base_ns = 0 if layout == "list" else BASE_NS
    columns = load_trace(write(tmp_path, document(_EVENTS, layout=layout)))
    assert _times(columns) == [(base_ns + 1_234_567 * i, 1 + i) for i in range(40)]
    assert [columns.names[code] for code in columns.name] == [each["name"] for each in _EVENTS]
    assert (columns.event_count, columns.dropped_count) == (40, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("chunk_bytes", "block_bytes"), [(1, 1), (7, 50), (100, 300), (1000, 1)])
def test_where_blocks_are_cut_changes_nothing(tmp_path, layout, chunk_bytes, block_bytes):
    """Read byte by byte or in any blocks, the events are those of the whole."""
    source = TraceSource(write(tmp_path, document(_EVENTS, layout=layout)), max_bytes=1 << 20, chunk_bytes=chunk_bytes)
    decoder = TraceDecoder(source, block_bytes=block_bytes)
    codes = [code for block in decoder for code in block.name.tolist()]
    names = list(decoder.kinds.names)
    assert [names[code] for code in codes] == [each["name"] for each in _EVENTS]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_stays_that_of_a_block(tmp_path, layout):
    """A trace is decoded in pieces of about the block's size, in every layout."""
    content = document([event(f"name {i}", i * 2000) for i in range(1000)], layout=layout)
    source = TraceSource(write(tmp_path, content), max_bytes=1 << 20, chunk_bytes=1000)
    counts = [len(block.name) for block in TraceDecoder(source, block_bytes=2000)]
    assert sum(counts) == 1000
    assert max(counts) < 40


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    times=st.lists(st.tuples(st.integers(0, 7 * 10**15), st.integers(0, 10**12)), min_size=1, max_size=20),
    base_ns=st.sampled_from([None, BASE_NS]),
)
def test_times_are_exact_to_the_ns(tmp_path, times, base_ns):
    """Start and duration are what the file states, for times since the base."""
    columns = load_trace(write(tmp_path, document([event("f", *each) for each in times], base_ns=base_ns)))
    assert _times(columns) == [(start + (base_ns or 0), duration) for start, duration in times]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_epoch_times_with_decimals_are_exact(tmp_path, layout):
    """Times since 1970 with three decimals, which no float64 holds, are read digit by digit."""
    times = [(1_712_195_495_406_752_001 + 7_777 * i, 333 + i) for i in range(20)]
    columns = load_trace(write(tmp_path, document([event("f", *each) for each in times], base_ns=0, layout=layout)))
    assert _times(columns) == times


def test_unusable_events_are_dropped_and_counted_and_the_rest_stays(tmp_path):
    """One event of another form costs itself only, whatever is wrong with it."""
    good = [event("good", 5000, 1000), event("text", tid="stream 7", cat="kernel")]
    bad = b"""{"ph": "X", "name": 3, "ts": 1, "dur": 1}, {"ph": "X", "name": "no time"}, 17, null, {"ph": "X", "ts": "soon"},
      {"ph": "X", "name": "n", "ts": "sNaN", "dur": 1}, {"ph": "X", "name": "n", "ts": 1e999999, "dur": 1},
      {"ph": "X", "name": "n", "ts": 1, "dur": -1}, {"ph": "X", "name": "n", "ts": 1, "dur": 1e15},"""
    content = document(good).replace(b"[\n", b"[\n" + bad, 1)
    columns = load_trace(write(tmp_path, content))
    assert [columns.names[code] for code in columns.name] == ["good", "text"]
    assert columns.start_ns[0] == BASE_NS + 5000
    assert (columns.event_count, columns.dropped_count) == (11, 9)


def test_times_as_text_are_read(tmp_path):
    """Writers that quote their times lose nothing."""
    content = b'[{"ph": "X", "name": "n", "ts": "1712195495406752.123", "dur": "0.007", "pid": -3, "tid": 1.5}]'
    assert _times(load_trace(write(tmp_path, content))) == [(1_712_195_495_406_752_123, 7)]


def test_one_event_of_another_form_changes_no_id_of_the_others(tmp_path):
    """Ids written as text stay text next to an event that is read leniently, or its thread would be two."""
    lenient = {"ph": "X", "name": "n", "ts": "1.5", "dur": "2.5", "pid": "7", "tid": "9"}
    content = document([event(tid="9", pid="7"), lenient, {"ph": "X", "name": 3}])
    columns = load_trace(write(tmp_path, content))
    assert (columns.threads, columns.dropped_count) == ([("7", "9")], 1)


def test_phases_may_stand_anywhere_in_an_event(tmp_path):
    """Writers that begin an event with its name are read alike."""
    turned = [dict(reversed(each.items())) for each in _EVENTS]
    assert _times(load_trace(write(tmp_path, document(turned)))) == [
        (BASE_NS + 1_234_567 * i, 1 + i) for i in range(40)
    ]


def test_numbers_that_are_none_cost_no_trace(tmp_path):
    """NaN and Infinity, which JSON does not have, are read as nothing wherever they stand."""
    content = document([event("good"), event("bad")]).replace(b'"dur": 1.000', b'"dur": NaN', 2)
    content = content.replace(b'"dur": NaN', b'"dur": 1.000', 1).replace(b"{", b'{"flops": -Infinity, ', 1)
    columns = load_trace(write(tmp_path, content[:-1] + b', "end": nan}'))
    assert (columns.names, columns.dropped_count) == (["good"], 1)


def test_unknown_phases_and_categories_are_no_error(tmp_path):
    """Only complete events become rows; a category that no one knows is a category."""
    other = [{"ph": "?", "name": "x"}, {"ph": "s", "id": 3, "ts": 1}, {"name": "no phase"}]
    columns = load_trace(write(tmp_path, document([*other, event("f", cat="from the future")])))
    assert (len(columns), columns.event_count, columns.categories) == (1, 4, ["from the future"])


def test_former_category_names_are_translated(tmp_path):
    """The operators of old traces are operators, next to new ones too."""
    columns = load_trace(write(tmp_path, document([event(cat="Operator"), event(cat="x"), event(cat="cpu_op")])))
    assert [columns.categories[code] for code in columns.category] == ["cpu_op", "x", "cpu_op"]


def test_names_that_are_not_utf8_do_not_cost_the_trace(tmp_path):
    """Bytes that no encoding explains are replaced."""
    content = document([event("ab"), event("good")]).replace(b"ab", b"a\xff", 1)
    assert load_trace(write(tmp_path, content)).names == ["a�", "good"]


def test_bytes_that_are_not_utf8_cost_no_other_event(tmp_path):
    """Whatever stands around them: a number that is none, and thousands of events in other blocks."""
    good = [event(f"good {i}") for i in range(20_000)]
    content = document([*good[:10_000], event("ab", args={"x": 8_888_888}), *good[10_000:]])
    content = content.replace(b"ab", b"a\xff", 1).replace(b"8888888", b"NaN", 1)
    names = load_trace(write(tmp_path, content)).names
    assert (len(names), names[10_000]) == (20_001, "a\ufffd")


_HOSTILE = {
    "empty": b"",
    "blank": b" \n\t ",
    "text": b"hello",
    "binary": bytes(range(256)),
    "number": b"42",
    "other JSON": b'{"a": 1}',
    "only a list of numbers": b"[1, 2, 3]",
    "events no list": b'{"traceEvents": {"ph": "X"}}',
    "events null": b'{"traceEvents": null}',
    "no events": b'{"traceEvents": []}',
    "only metadata": b'{"traceEvents": [{"ph": "M", "name": "n"}]}',
    "base as text": document([event()]).replace(str(BASE_NS).encode(), b'"now"'),
    "base too large": document([event()], base_ns=1 << 63),
    "base beyond integers": document([event()], base_ns=10**40),
    "base negative": document([event()], base_ns=-1),
    "deep nesting in an event": b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    "deep nesting of objects": b'{"traceEvents": [' + b'{"a":' * 100_000,
    "deep nesting in the head": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b', "traceEvents": []}',
    "deep nesting, mistyped": b'[{"ph": 1, "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    "trailing bytes": document([event()]) + b"x",
    "two documents": document([event()]) * 2,
    "missing comma": document([event(), event()]).replace(b"},\n", b"}\n"),
    "head is not JSON": b'{"a": nonsense, "traceEvents": []}',
}


@pytest.mark.parametrize("content", _HOSTILE.values(), ids=_HOSTILE.keys())
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_trace_is_a_named_error(tmp_path, content, packed):
    """Whatever a file holds, the answer is columns or one error that names the file, what, got and expected."""
    path = write(tmp_path, gzip.compress(content) if packed else content)
    with pytest.raises(MalformedError, match=rf"^.+ in {path}: got .*, expected .+") as caught:
        load_trace(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_trace_cut_off_anywhere_is_refused(tmp_path, layout):
    """No prefix of a trace passes for a trace."""
    content = document(_EVENTS[:3], layout=layout)
    for length in range(len(content)):
        with pytest.raises(MalformedError):
            load_trace(write(tmp_path, content[:length]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(position=st.integers(0, 2000), junk=st.binary(min_size=1, max_size=8))
def test_damaged_bytes_give_columns_or_a_named_error(tmp_path, position, junk):
    """Bytes overwritten at any place never end in another error."""
    content = bytearray(document(_EVENTS[:8]))
    position %= len(content)
    content[position : position + len(junk)] = junk
    try:
        columns = load_trace(write(tmp_path, bytes(content)))
    except MalformedError as error:
        text = str(error)
    else:
        text = str(tmp_path)
        assert len(columns) + columns.dropped_count <= 8
    assert str(tmp_path) in text


def test_recording_is_read_whole():
    """The recording of the repository has the events and the rank's span that its maker saw."""
    columns = load_trace(RECORDING)
    assert (columns.event_count, len(columns), columns.dropped_count) == (7840, 7572, 0)
    assert columns.trace_bytes == 2_706_806
    forward = [i for i, code in enumerate(columns.name) if columns.names[code] == "train.py(20): forward"]
    assert columns.duration_ns[forward].tolist() == [39_250_860, 35_197_050]
