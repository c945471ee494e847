"""The C extension and Python read a trace to the same columns, event by event and code by code."""

import gzip
import json
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.kineto.decode import TraceDecoder
from lockstep.trace.kineto.load import columns_of, load_trace
from lockstep.trace.kineto.scanned import compiled_scan
from lockstep.trace.source import TraceSource
from tests.trace.built import built_extension
from tests.trace.traces import SHARED_TRACES

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "lockstep" / "trace" / "kineto" / "_scan.c"
RECORDINGS = [
    *sorted((ROOT / "tests" / "analysis" / "public").rglob("*.json.gz")),
    ROOT / "tests" / "trace" / "data" / "slow_forward_rank2.json.gz",
    *SHARED_TRACES,
]
CHUNK_BYTES = 512
EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2.25}
FILLER = [EVENT | {"name": f"filler {number}", "ts": 100 + number} for number in range(30)]
"""More than a block, so that what stands before is no part of the last document, which Python reads."""


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Return the extension's `scan`: the installed one, else one that is built here."""
    installed = compiled_scan()
    if installed is not None:
        return installed
    return built_extension(SOURCE, tmp_path_factory.mktemp("scan")).scan


def both(path, scan, chunk_bytes=CHUNK_BYTES):
    """Return what both ways read of a file, columns or the text of the error, and how many blocks the scan read.

    Several cores read the same as one.
    """
    scanned = []

    def counting(text, end):
        found = scan(text, end)
        scanned.append(found is not None)
        return found

    def read(with_scan, cores=1):
        source = TraceSource(path, max_bytes=1 << 30, chunk_bytes=chunk_bytes)
        try:
            return columns_of(TraceDecoder(source, block_bytes=chunk_bytes, scan=with_scan, cores=cores), source)
        except MalformedError as error:
            return str(error)

    one = read(counting)
    assert_equal(one, read(scan, cores=3))
    return one, read(None), sum(scanned)


def assert_equal(one, other):
    """Fail where two results differ in a column or a list."""
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    for each in fields(one):
        if each.compare:
            mine, theirs = getattr(one, each.name), getattr(other, each.name)
            assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs, each.name
            assert getattr(mine, "dtype", None) == getattr(theirs, "dtype", None), each.name


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.name:.40}")
def test_recordings_are_the_same_columns(path, scan):
    """Every trace at hand, in pieces of 64 KiB; codes have the same order."""
    assert_equal(*both(path, scan, 1 << 16)[:2])


def test_the_usual_form_is_scanned(scan, tmp_path):
    """Every block of a recorded trace but the last document is read by the extension."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [EVENT] * 5 + FILLER}))
    one, other, scanned = both(path, scan)
    assert scanned >= 3
    assert_equal(one, other)


ODD = {
    "no name": {"name": None},
    "number as name": {"name": 7},
    "escaped name": {"name": 'a "quoted" \\ \u00e9 \ud83d\ude00 name'},
    "text ids": {"pid": "Spans", "tid": "PyTorch Profiler (0)"},
    "null ids": {"pid": None, "tid": None},
    "float id": {"tid": 1.5},
    "negative id": {"tid": -3},
    "large id": {"tid": 12345678901234567890},
    "no duration": {"dur": None},
    "negative duration": {"dur": -1},
    "endless duration": {"dur": 1e13},
    "longest duration": {"dur": 1000000000000},
    "longer duration": {"dur": 1000000000000.001},
    "negative start": {"ts": -5.5},
    "epoch start": {"ts": 1695835535123456},
    "exact epoch start": {"ts": 1695835535123456.789},
    "start too late": {"ts": 4503599627370497},
    "many decimals": {"ts": 1.23456},
    "one decimal": {"ts": 7.1},
    "exponent": {"ts": 1e20},
    "start as text": {"ts": "12.5"},
    "unknown phase": {"ph": "Z"},
    "long phase": {"ph": "XX"},
    "flow": {"ph": "s", "ts": "whatever"},
    "no category": {"cat": ""},
    "unknown category": {"cat": "private_use"},
    "metadata": {"ph": "M", "name": "thread_name", "args": {"name": "worker"}},
    "metadata of no form": {"ph": "M", "name": 5, "args": {"name": "worker"}},
    "arguments of no form": {"args": [1, 2]},
    "null arguments": {"args": None},
    "empty arguments": {"args": {}},
    "operator": {
        "args": {"External id": 5, "Sequence number": 9, "Input Dims": [[2, 3], []], "Input type": ["float", ""]}
    },
    "external id as text": {"args": {"External id": "17", "Sequence number": None}},
    "floats": {"args": {"External id": 17.0, "Sequence number": 3.5}},
    "true": {"args": {"External id": True}},
    "large integers": {"args": {"External id": 1 << 63, "Sequence number": (1 << 63) - 1}},
    "stack": {"args": {"Call stack": 'a.py(1): f;b "x".py(2): g', "Input type": ["int"]}},
    "empty stack": {"args": {"Call stack": ""}},
    "number as stack": {"args": {"Call stack": 3}},
    "kernel": {"cat": "kernel", "args": {"device": 0, "stream": 7, "correlation": 55, "External id": 4}},
    "kernel without a stream": {"cat": "kernel", "args": {"device": 0, "stream": 4294967295, "correlation": 55}},
    "occupancy": {"cat": "kernel", "args": {"blocks per SM": 4.272727, "est. achieved occupancy %": 27, "stream": 7}},
    "half of an occupancy": {"cat": "kernel", "args": {"blocks per SM": 8, "stream": 7}},
    "no number as occupancy": {"cat": "kernel", "args": {"blocks per SM": "4", "est. achieved occupancy %": [-1e3]}},
    "an operator with an occupancy": {"args": {"blocks per SM": 8, "est. achieved occupancy %": 100}},
    "former id": {"cat": "cuda_runtime", "args": {"external id": 31, "correlation": 2, "cbid": 211}},
    "copy": {"cat": "gpu_memcpy", "args": {"bytes": 1024, "stream": "7", "device": 0, "correlation": 3}},
    "collective": {
        "cat": "kernel",
        "args": {"Collective name": "allreduce", "In msg nelems": 8, "stream": 2, "device": 1, "dtype": "Float"},
    },
    "wait": {"cat": "cuda_sync", "args": {"cuda_sync_kind": "Event Sync", "stream": 3, "device": 0}},
    "nested arguments": {"args": {"a": {"b": [1, {"c": [[], {}]}]}, "External id": 3}},
    "escaped argument": {"args": {"Exter\nnal": 1, "External id": 3}},
}


@pytest.mark.parametrize("changed", ODD.values(), ids=ODD)
def test_an_odd_event_is_the_same_both_ways(changed, scan, tmp_path):
    """Whether the extension reads it or leaves the piece to Python; what stands next to it as well."""
    path = tmp_path / "trace.json"
    other = EVENT | {"name": "other", "args": {"External id": 1, "Input Dims": [[1]], "Call stack": "z"}}
    path.write_text(json.dumps({"traceEvents": [other, EVENT | changed, EVENT, other, *FILLER]}))
    assert_equal(*both(path, scan)[:2])


RAW = {
    "field twice": '{"ph":"X","name":"a","name":"b","ts":1,"dur":1}',
    "argument twice": '{"ph":"X","name":"a","ts":1,"dur":1,"args":{"External id":1,"External id":2}}',
    "escaped key": '{"ph":"X","n\\u0061me":"a","ts":1,"dur":1}',
    "not a number": '{"ph":"X","name":"a","ts":NaN,"dur":1,"args":{"x":inf}}',
    "leading zero": '{"ph":"X","name":"a","ts":01,"dur":1}',
    "no value": '{"ph":"X","name":"a","ts":,"dur":1}',
    "comma at the end": '{"ph":"X","name":"a","ts":1,"dur":1,}',
    "control character": '{"ph":"X","name":"a\tb","ts":1,"dur":1}',
    "bad escape": '{"ph":"X","name":"a\\x","ts":1,"dur":1}',
    "half a surrogate in an argument": '{"ph":"X","name":"a","ts":1,"dur":1,"args":{"x":"a\\ud800b"}}',
    "half a surrogate as arguments": '{"ph":"X","name":"a","ts":1,"dur":1,"args":"a\\uDC00b"}',
    "a surrogate pair in an argument": '{"ph":"X","name":"a","ts":1,"dur":1,"args":{"x":"\\ud83d\\ude00"}}',
    "half a surrogate": '{"ph":"X","name":"a\\ud83d","ts":1,"dur":1}',
    "an end within text": '{"ph":"X","name":"},{","ts":1,"dur":1}',
    "spaces": '{ "ph" :\t"X" ,\n "name" : "a" , "ts" : 1 , "dur" : 1 , "args" : { "External id" : 4 } }',
    "deep": '{"ph":"X","name":"a","ts":1,"dur":1,"args":{"x":' + "[" * 300 + "]" * 300 + "}}",
    "no object": "7",
    "empty object": "{}",
    "no phase": '{"name":"a","ts":1,"dur":1}',
    "a shape in two ways": '{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{"Input Dims":[ [ 1 ] ]}}',
}


@pytest.mark.parametrize("event", RAW.values(), ids=RAW)
def test_json_of_any_kind_is_the_same_both_ways(event, scan, tmp_path):
    """What is no JSON is refused both ways, with the same error; the rest is the same columns."""
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{event},{",".join(map(json.dumps, [EVENT, *FILLER]))}]}}')
    assert_equal(*both(path, scan)[:2])


def test_bytes_that_are_no_utf8_are_the_same_both_ways(scan, tmp_path):
    """In a name and in arguments."""
    event = b'{"ph":"X","name":"a\xff","ts":1,"dur":1,"args":{"Input type":["\xfe"],"Call stack":"\xff"}}'
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + event + b"," + json.dumps(FILLER)[1:].encode() + b"}")
    assert_equal(*both(path, scan)[:2])


@pytest.mark.parametrize("seed", range(20))
def test_damaged_traces_are_the_same_both_ways(seed, scan, tmp_path):
    """Bytes replaced at random: refused with the same error, or the same columns."""
    random = np.random.default_rng(seed)
    events = [EVENT | changed for changed in ODD.values() if changed.get("ts") != "whatever"] + FILLER
    text = bytearray(json.dumps({"traceEvents": events}).encode())
    for at in random.integers(0, len(text), 3):
        text[at] = random.choice(list(b'"{}[],:\\0-eX \xff'))
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    assert_equal(*both(path, scan)[:2])


def laid_out(members, random):
    """Return an object of JSON, its members in random order and with random spaces around them."""
    spaces = ["", " ", "  ", "\n    ", "\t", " " * 20]
    members = [members[each] for each in random.permutation(len(members))]
    texts = [":".join(f"{random.choice(spaces)}{part}{random.choice(spaces)}" for part in pair) for pair in members]
    return "{" + ",".join(texts) + "}"


@pytest.mark.parametrize("seed", range(8))
def test_keys_in_any_order_and_layout_are_the_same_both_ways(seed, scan, tmp_path):
    """The extension knows keys by their place and layout; more places and layouts than it remembers, too."""
    random = np.random.default_rng(seed)
    events = []
    for number in range(300):
        extra = [(f'"k{each}"', str(each)) for each in random.integers(0, 99, random.integers(0, 20))]
        read = {"External id": number, "stream": 7, "correlation": number, "Input Dims": [[number % 3]], "bytes": 4}
        arguments = [(json.dumps(key), json.dumps(value)) for key, value in read.items() if random.integers(0, 2)]
        members = [(json.dumps(key), json.dumps(value)) for key, value in (EVENT | {"ts": number}).items()]
        events.append(laid_out([*members, ('"args"', laid_out([*arguments, *extra], random))], random))
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{",".join(events)}]}}')
    one, other, scanned = both(path, scan, 8 * CHUNK_BYTES)
    assert scanned > 3
    assert_equal(one, other)


@pytest.fixture(scope="module")
def portable(tmp_path_factory):
    """Return the `scan` of a machine without SSE2."""
    return built_extension(SOURCE, tmp_path_factory.mktemp("portable"), "-U__SSE2__").scan


@pytest.mark.parametrize("path", RECORDINGS[:8], ids=lambda path: path.name[:40])
def test_a_machine_without_sse2_scans_the_same(path, scan, portable):
    """Byte for byte what the extension returns, of whole and of cut off pieces of real traces."""
    raw = gzip.decompress(path.read_bytes())
    text = raw[raw.index(b"[", raw.index(b'"traceEvents"')) + 1 :][: 1 << 20]
    for end in (len(text), text.rindex(b"},") + 1, len(text) // 2):
        assert portable(text, end) == scan(text, end)


@pytest.mark.parametrize("event", [*map(json.dumps, (EVENT | changed for changed in ODD.values())), *RAW.values()])
def test_odd_events_are_the_same_without_sse2(event, scan, portable):
    """Spaces of every length around them included: sixteen bytes are looked at at once."""
    for spaces in range(0, 40, 3):
        text = f"{' ' * spaces}{event},{chr(10)}{' ' * spaces}{event}{' ' * spaces}".encode()
        assert portable(text, len(text)) == scan(text, len(text))
        for end in range(len(text)):
            assert portable(text, end) == scan(text, end)


def test_the_scan_reads_nothing_but_bytes(scan):
    """A buffer that others could change or shrink while it is scanned without the interpreter's lock is refused."""
    with pytest.raises(TypeError):
        scan(bytearray(b"{}"), 2)
    with pytest.raises(TypeError):
        scan(memoryview(b"{}"), 2)


def test_without_the_extension_python_reads(monkeypatch):
    """An installation without a compiler has the same columns."""
    compiled = load_trace(RECORDINGS[-1], max_bytes=1 << 30)
    monkeypatch.setitem(sys.modules, "lockstep.trace.kineto._scan", None)
    assert compiled_scan() is None
    assert_equal(compiled, load_trace(RECORDINGS[-1], max_bytes=1 << 30))


def test_a_build_of_an_earlier_layout_is_none(monkeypatch):
    """It is left in a checkout whose sources are newer: its events would be read in the wrong places."""
    build = pytest.importorskip("lockstep.trace.kineto._scan")
    monkeypatch.setattr(build, "EVENT_BYTES", build.EVENT_BYTES - 8)
    assert compiled_scan() is None
    monkeypatch.delattr(build, "EVENT_BYTES")
    assert compiled_scan() is None


def test_an_end_beyond_the_text_is_refused(scan):
    """The extension reads no byte that is not its own."""
    with pytest.raises(ValueError, match="end: got 3 of 2 bytes"):
        scan(b"{}", 3)
