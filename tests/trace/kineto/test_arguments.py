import json
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.trace.columns import ABSENT, CollectiveArguments, Occupancy, SyncArguments, WorkKind
from lockstep.trace.kineto import arguments, load
from lockstep.trace.kineto.load import load_trace
from tests.trace.traces import document, event, write

NUMBERS = ("correlation", "external", "sequence", "bytes")


def _load(tmp_path, events, **more):
    return load_trace(write(tmp_path, document(events, **more)))


def _kernel(**args):
    return event("gemm", cat="kernel", tid=7, args={"device": 0, "stream": 7, **args})


def _operator(**args):
    return event("aten::mm", cat="cpu_op", args=args)


def _shapes(columns):
    return [None if code == ABSENT else columns.shape_texts[code] for code in columns.shapes.tolist()]


@pytest.mark.parametrize(
    ("cat", "args", "expected"),
    [
        ("kernel", {"correlation": 5, "External id": 9}, (5, 9, ABSENT, ABSENT)),
        ("Kernel", {"correlation": 5, "external id": 9}, (5, 9, ABSENT, ABSENT)),
        ("cuda_runtime", {"correlation": 5, "External id": 9, "cbid": 211}, (5, 9, ABSENT, ABSENT)),
        ("Runtime", {"correlation": 5, "external id": 9, "external ts": 1}, (5, 9, ABSENT, ABSENT)),
        ("cuda_runtime", {"correlation": 5, "bytes": "128"}, (5, ABSENT, ABSENT, 128)),
        ("gpu_memcpy", {"correlation": 5, "bytes": 128}, (5, ABSENT, ABSENT, 128)),
        ("cpu_op", {"External id": 9, "Sequence number": 3, "Fwd thread id": 1}, (ABSENT, 9, 3, ABSENT)),
        ("cpu_op", {}, (ABSENT, ABSENT, ABSENT, ABSENT)),
        ("python_function", {"Python id": 1, "correlation": 5}, (ABSENT, ABSENT, ABSENT, ABSENT)),
    ],
)
def test_numbers_of_every_age_and_vendor(tmp_path, cat, args, expected):
    """Ids and sizes are read under the keys and in the types of 2021, of today and of ROCm."""
    columns = _load(tmp_path, [event(cat=cat, args=args)])
    assert tuple(int(getattr(columns, name)[0]) for name in NUMBERS) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"blocks per SM": 4.272727, "est. achieved occupancy %": 27}, Occupancy(4.272727, 0.27)),
        ({"blocks per SM": 0, "est. achieved occupancy %": 0}, Occupancy(0, 0)),
        ({"blocks per SM": 8}, Occupancy(8, ABSENT)),
        ({"est. achieved occupancy %": 100}, Occupancy(ABSENT, 1)),
        ({"blocks per SM": "8", "est. achieved occupancy %": -1}, None),
        ({"blocks per SM": [8], "est. achieved occupancy %": True}, None),
        ({}, None),
    ],
)
def test_occupancies_of_kernels(tmp_path, args, expected):
    """As CUPTI estimates them; what is no amount is unknown, and a measured zero is 0."""
    columns = _load(tmp_path, [_kernel(**args)])
    (code,) = columns.occupancy.tolist()
    assert (None if code == ABSENT else columns.occupancies[code]) == expected


@pytest.mark.parametrize(
    ("args", "stream"),
    [
        ({"device": 3, "stream": 7}, (3, 7)),
        ({"device": 3, "stream": "7"}, (3, 7)),
        ({"stream": 7}, (ABSENT, 7)),
        ({"device": 10**30, "stream": 7}, (ABSENT, 7)),
        ({}, (7, 1)),
        ({"device": 3, "stream": -1}, (7, 1)),
        ({"device": 3, "stream": 4294967295}, (7, 1)),
        ({"device": 3, "stream": 10**20}, (7, 1)),
        ({"device": 3, "stream": [7]}, (7, 1)),
    ],
)
def test_work_of_a_device_has_a_stream(tmp_path, args, stream):
    """Where a kernel names no stream, it ran where it is shown: process and thread are device and stream there."""
    columns = _load(tmp_path, [event(cat="kernel", args=args)])
    assert [columns.streams[code] for code in columns.stream] == [stream]
    assert columns.on_device.all()


def test_a_stream_shown_as_text_is_its_number(tmp_path):
    """A thread named "stream 7" is stream 7; what has no number keeps apart from the others."""
    columns = _load(tmp_path, [event(cat="kernel", tid=tid, pid="GPU 0") for tid in ("stream 7", "a", "b", "a")])
    assert columns.streams[columns.stream[0]] == (ABSENT, 7)
    assert columns.stream[1] == columns.stream[3]
    assert len({*columns.stream.tolist()}) == 3


def test_an_operator_that_names_a_stream_is_host_work(tmp_path):
    """Triton's operators carry the stream they launch to and run on the host all the same."""
    columns = _load(tmp_path, [event("triton_fused", cat="cpu_op", args={"stream": 7, "device": 0})])
    assert columns.work.tolist() == [WorkKind.HOST]
    assert columns.stream.tolist() == [ABSENT]


@pytest.mark.parametrize("layout", ["torch", "one line", "indented"])
def test_shapes_are_one_text_however_they_are_laid_out(tmp_path, layout):
    """Dimensions and types of an operator are compact JSON, the same for the same shapes; without them there is none."""
    args = {"Input type": ["float", ""], "Input Strides": [[8, 1], []], "Input Dims": [[4, 8], []]}
    columns = _load(tmp_path, [_operator(**args), _operator(), _operator(**{"Input Dims": [[1]]})], layout=layout)
    assert _shapes(columns) == ['[[[4,8],[]],["float",""]]', None, "[[[1]],[]]"]


def test_too_many_shapes_cost_the_later_ones_only(tmp_path, monkeypatch):
    """Beyond the limits, by count or by size, an operator has no shape; those already known stay."""
    shapes = [_operator(**{"Input Dims": [[size]]}) for size in (1, 2, 3, 1)]
    monkeypatch.setattr(arguments, "SHAPES_MAX", 2)
    assert [text is None for text in _shapes(_load(tmp_path, shapes))] == [False, False, True, False]
    monkeypatch.setattr(arguments, "SHAPES_MAX", 100)
    monkeypatch.setattr(arguments, "SHAPES_MAX_BYTES", len("[[[1]],[]]"))
    assert [text is None for text in _shapes(_load(tmp_path, shapes))] == [False, True, True, False]


def test_call_stacks_are_frames_by_line(tmp_path):
    """The stacks of 2021 come innermost frame first, a frame a line; an empty one is none."""
    stack = "dataloader.py(518): __next__;train.py(42): <module>"
    columns = _load(tmp_path, [_operator(**{"Call stack": text}) for text in (stack, "", stack)])
    assert columns.stacks == ["dataloader.py(518): __next__\ntrain.py(42): <module>"]
    assert columns.stack.tolist() == [0, ABSENT, 0]


_ALL_REDUCE = {
    "Collective name": "allreduce",
    "In msg nelems": 6637568,
    "Out msg nelems": 6637568,
    "In split size": "[]",
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
    "Seq": 12,
    "Comms Id": "123456789",
}


def test_collectives_name_what_they_are(tmp_path):
    """A kernel's or an operator's arguments of a collective are its event's, and make a kernel communication."""
    events = [_kernel(), _kernel(**_ALL_REDUCE), _operator(**_ALL_REDUCE), _operator()]
    columns = _load(tmp_path, events)
    expected = CollectiveArguments(
        name="allreduce",
        group="0",
        description="default_pg",
        ranks=(0, 1),
        group_size=2,
        in_elements=6637568,
        out_elements=6637568,
        dtype="Float",
        sequence=12,
    )
    assert columns.collectives == {1: expected, 2: expected}
    assert columns.work.tolist() == [WorkKind.COMPUTE, WorkKind.COMMUNICATION, WorkKind.HOST, WorkKind.HOST]


@pytest.mark.parametrize(
    "text", ["[0, 1, ..., 63]", "", "[]", "0-63", "[0, -1]", "[0, 99999999999]", "[4294967]", 7, None]
)
def test_ranks_that_are_cut_or_senseless_are_unknown(tmp_path, text):
    """A list of ranks that does not list them all is none."""
    columns = _load(tmp_path, [_kernel(**{**_ALL_REDUCE, "Process Group Ranks": text})])
    assert columns.collectives[0].ranks is None


def test_ranks_that_are_cut_are_those_of_the_group(tmp_path):
    """Where the trace lists its process groups, a collective in a large one has its ranks."""
    content = document([_kernel(**{**_ALL_REDUCE, "Process Group Ranks": "[0, 1, ..., 63]"})])
    groups = json.dumps({"pg_config": [{"pg_name": "0", "ranks": [*range(64)]}]}).encode()
    columns = load_trace(write(tmp_path, content.replace(b"{", b'{"distributedInfo": ' + groups + b", ", 1)))
    assert columns.collectives[0].ranks == tuple(range(64))


def test_places_of_collectives_and_waits_count_from_the_first_block(tmp_path, monkeypatch):
    """An event's arguments are found under its place in the trace, whatever block it was read in."""
    monkeypatch.setattr(load, "TraceSource", partial(load.TraceSource, chunk_bytes=100))
    monkeypatch.setattr(load, "TraceDecoder", partial(load.TraceDecoder, block_bytes=300))
    events = [_operator() for _ in range(30)]
    events[17] = _kernel(**_ALL_REDUCE)
    events[23] = event("Stream Wait Event", cat="cuda_sync", args={"cuda_sync_kind": "Stream Wait Event"})
    columns = _load(tmp_path, events)
    assert ([*columns.collectives], [*columns.syncs]) == ([17], [23])


def test_waits_name_what_they_waited_for(tmp_path):
    """A recorded wait names the stream and the record call that it waited for, and is no work."""
    args = {
        "cuda_sync_kind": "Stream Wait Event",
        "stream": 20,
        "device": 0,
        "correlation": 8,
        "wait_on_stream": 7,
        "wait_on_cuda_event_record_corr_id": 5169,
        "wait_on_cuda_event_id": 1,
    }
    columns = _load(tmp_path, [event("Stream Wait Event", cat="cuda_sync", args=args)])
    assert columns.syncs == {0: SyncArguments(kind="Stream Wait Event", waits_on_stream=7, waits_on_correlation=5169)}
    assert columns.work.tolist() == [WorkKind.NOTHING]
    assert columns.correlation.tolist() == [8]


@pytest.mark.parametrize("raw", ["null", "[1, 2]", '"text"', "3", "{}", "true"])
@pytest.mark.parametrize("cat", ["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "python_function"])
def test_arguments_of_no_form_cost_nothing_else(tmp_path, raw, cat):
    """An event whose arguments are no object has none, and its neighbours keep theirs."""
    good = {"External id": 4, "correlation": 5}
    content = document([event(cat=cat, args=good), event(cat=cat, args="HERE"), event(cat=cat, args=good)])
    columns = load_trace(write(tmp_path, content.replace(b'"HERE"', raw.encode())))
    assert (len(columns), columns.dropped_count) == (3, 0)
    assert columns.external[0] == columns.external[2] == (ABSENT if cat == "python_function" else 4)
    assert columns.external[1] == columns.correlation[1] == ABSENT


@pytest.mark.parametrize("raw", [b"NaN", b"nan", b"-Infinity", b"inf", b"-nan(ind)"])
def test_a_number_that_is_none_costs_nothing_else(tmp_path, raw):
    """Bandwidths over no time are written as what JSON does not have; names with such words stay."""
    content = document([event("a, nan, b", cat="gpu_memcpy", args={"bw": "HERE", "bytes": 7}), event("g")])
    columns = load_trace(write(tmp_path, content.replace(b'"HERE"', raw)))
    assert columns.bytes.tolist() == [7, ABSENT]


def test_arguments_that_are_not_utf8_keep_the_rest(tmp_path):
    """Bytes that no encoding explains are replaced in shapes and collectives."""
    args = {"Input Dims": [[1]], "Input type": ["HERE"], "External id": 4, "Collective name": "HERE"}
    columns = load_trace(write(tmp_path, document([_operator(**args)]).replace(b"HERE", b"\xff")))
    assert (_shapes(columns), columns.external.tolist()) == (['[[[1]],["�"]]'], [4])


def test_a_key_twice_counts_as_its_last(tmp_path):
    """Duplicate keys are no error."""
    content = document([_operator(**{"External id": 4})]).replace(
        b'"External id": 4', b'"External id": 3, "External id": 5'
    )
    assert load_trace(write(tmp_path, content)).external.tolist() == [5]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True, allow_infinity=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_KEYS = sorted(
    {
        *_ALL_REDUCE,
        *("External id", "external id", "Sequence number", "correlation", "stream", "device", "bytes"),
        *("Input Dims", "Input type", "Call stack", "cuda_sync_kind", "wait_on_stream"),
        "wait_on_cuda_event_record_corr_id",
    }
)
_CATS = ("cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "cuda_sync", "user_annotation", "from the future")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(_CATS), st.dictionaries(st.sampled_from(_KEYS), _JSON)), min_size=1, max_size=5)
)
def test_arguments_of_any_type_never_cost_an_event(tmp_path, drawn):
    """Whatever arguments hold, every event stays, with codes that point somewhere."""
    columns = _load(tmp_path, [event(cat=cat, args=args) for cat, args in drawn])
    assert (len(columns), columns.dropped_count) == (len(drawn), 0)
    assert columns.stream.max() < len(columns.streams)
    assert columns.shapes.max() < len(columns.shape_texts)
    assert columns.stack.max() < len(columns.stacks)
    assert all(isinstance(each.sequence, int) for each in columns.collectives.values())
