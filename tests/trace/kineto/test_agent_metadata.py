"""The agent's notes at the end of a trace, whatever wrote the file."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep.agent.capture.recording import FACTS_VERSION, NOTED_COLLECTIONS_MAX
from lockstep.agent.capture.trace_file import FACTS_KEY, extend
from lockstep.contracts.errors import MalformedError
from lockstep.trace.kineto import agent_metadata as module
from lockstep.trace.kineto.agent_metadata import AgentMetadata, NotedCollection, NotedLoader, read_notes

OFFSET_NS = 1_700_000_000_000_000_000


def make_trace(path: Path, facts: dict[str, Any], padding: int = 0) -> Path:
    """Write a trace as torch does, and let the agent's own code add to it."""
    pad = json.dumps({"ph": "X", "name": "x" * padding})
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{pad}], "traceName": "t"}}')
    extend(path, [{"ph": "X", "name": "Python GC"}], facts, 1 << 30)
    return path


def facts(collections: list[Any], **values: Any) -> dict[str, Any]:
    made = {"version": FACTS_VERSION, "run": "r", "rank": 3, "boundaries": [], "collections": collections}
    return made | {"unix_minus_monotonic_ns": OFFSET_NS} | values


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("padding", [0, 3 * module.AGENT_METADATA_MAX_BYTES])
def test_collections_are_put_on_the_clock_of_the_trace(tmp_path: Path, *, padding: int, packed: bool):
    """Start, length and generation of each, from a short and a long file, packed or not."""
    path = make_trace(tmp_path / "t.json", facts([[100, 150, 2], [200, 201, None]]), padding)
    if packed:
        packed_path = tmp_path / "t.json.gz"
        packed_path.write_bytes(gzip.compress(path.read_bytes()))
        path = packed_path
    expected = (NotedCollection(OFFSET_NS + 100, 50, 2), NotedCollection(OFFSET_NS + 200, 1, None))
    assert read_notes(path) == AgentMetadata(collections=expected, dropped_count=0)


def test_the_largest_notes_fit(tmp_path: Path):
    """As many collections and steps as an agent notes, with the longest numbers, are read whole."""
    assert FACTS_KEY == "lockstep"
    long_ns = 10**18
    made = facts([[long_ns + i, long_ns + i + 1, 2] for i in range(NOTED_COLLECTIONS_MAX)], reason="r" * 500)
    made["boundaries"] = [[10**18, 10**18]] * 101
    path = make_trace(tmp_path / "t.json", made, 3 * module.AGENT_METADATA_MAX_BYTES)
    notes = read_notes(path)
    assert notes is not None
    assert len(notes.collections) == NOTED_COLLECTIONS_MAX == module.COLLECTIONS_MAX
    assert len(json.dumps(made)) * 2 < module.AGENT_METADATA_MAX_BYTES


def test_notes_without_generations_are_read(tmp_path: Path):
    """Version 1 had pairs."""
    path = make_trace(tmp_path / "t.json", facts([[1, 3]], version=1))
    assert read_notes(path) == AgentMetadata(collections=(NotedCollection(OFFSET_NS + 1, 2, None),), dropped_count=0)


@pytest.mark.parametrize("text", ['{"traceEvents": []}', '[{"ph": "X"}]', '{"traceEvents": [], "lockstep": 7}', "{}"])
def test_a_trace_without_notes_gives_nothing(tmp_path: Path, text: str):
    """No one noted: that is another answer than no collections."""
    path = tmp_path / "t.json"
    path.write_text(text)
    assert read_notes(path) is None
    assert read_notes(make_trace(path, facts([]))) == AgentMetadata(collections=(), dropped_count=0)


def test_collections_that_make_no_sense_are_dropped_and_counted(tmp_path: Path):
    """The good ones stay."""
    bad = [None, [1], [1, 2, 3, 4], [5, 4, 0], ["1", 2, 0], [1, 2, 3], [1, 2, True], [1.0, 2, 0], [1 << 70, 1 << 70, 0]]
    notes = read_notes(make_trace(tmp_path / "t.json", facts([*bad, [1, 2, 0]])))
    assert notes == AgentMetadata(collections=(NotedCollection(OFFSET_NS + 1, 1, 0),), dropped_count=len(bad))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 3}, "version of the notes"),
        ({"version": [1] * 1000}, "version of the notes"),
        ({"unix_minus_monotonic_ns": "0"}, "unix_minus_monotonic_ns"),
        ({"unix_minus_monotonic_ns": 1 << 62}, "unix_minus_monotonic_ns"),
        ({"collections": {}}, "collections"),
    ],
)
def test_notes_of_another_form_are_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str):
    """Nothing is half-read."""
    with pytest.raises(MalformedError, match=named):
        read_notes(make_trace(tmp_path / "t.json", facts([[1, 2, 0]]) | change))


@pytest.mark.parametrize("kind", ["missing", "pipe", "folder", "cut", "deep"])
def test_files_that_are_no_traces_are_refused(tmp_path: Path, kind: str):
    """Neither do they block nor raise anything else."""
    path = tmp_path / "t.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "cut":
        whole = make_trace(path, facts([[1, 2, 0]])).read_bytes()
        path.write_bytes(whole[:-5])
    elif kind == "deep":
        path.write_text('{"lockstep":' + "[" * 100_000)
    with pytest.raises(MalformedError):
        read_notes(path)


def test_a_packed_file_is_limited_before_it_is_unpacked(tmp_path: Path):
    """A small file that promises much is refused by its size."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 5_000_000))
    with pytest.raises(MalformedError, match="trace size"):
        read_notes(path, max_bytes=1_000_000)


def test_depths_of_the_loader_are_read(tmp_path: Path):
    """What was ready and what was asked for at each batch, and what the workers did meanwhile."""
    noted = {"depths": [[5, 0, 4], [9, 2, 2]], "workers": 2, "seen": 2, "span_ns": 100, "busy_ns": 150}
    path = make_trace(tmp_path / "t.json", facts([], loader={**noted, "blocked_ratio": 0.25}))
    notes = read_notes(path)
    assert notes is not None
    assert notes.loader == NotedLoader(
        ready=(0, 2), outstanding=(4, 2), workers=2, seen=2, span_ns=100, busy_ns=150, blocked_ratio=0.25
    )


@pytest.mark.parametrize(
    "noted",
    [
        7,
        {},
        {"depths": [], "workers": 1},
        {"depths": [[1, -1, 0]], "workers": 1},
        {"depths": [[1, 1, 1]], "workers": "x"},
    ],
)
def test_a_loader_that_makes_no_sense_is_none(tmp_path: Path, noted: Any):
    """The collections next to it still count."""
    notes = read_notes(make_trace(tmp_path / "t.json", facts([[100, 150, 2]], loader=noted)))
    assert notes is not None
    assert (len(notes.collections), notes.loader) == (1, None)


def test_workers_that_the_kernel_does_not_count_leave_the_depths(tmp_path: Path):
    """Without schedstat there are depths alone."""
    notes = read_notes(make_trace(tmp_path / "t.json", facts([], loader={"depths": [[1, 1, 1]], "workers": 1})))
    assert notes is not None
    assert notes.loader == NotedLoader(ready=(1,), outstanding=(1,), workers=1)
