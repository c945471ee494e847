import json

import pytest

from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.trace.columns import ABSENT, TraceMetadata
from lockstep.trace.kineto import metadata
from lockstep.trace.kineto.load import load_trace
from tests.trace.traces import document, event, write

_TORCH = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}, {"id": 1, "name": "NVIDIA H100"}],
    "cupti_version": 22,
    "with_stack": 1,
    "distributedInfo": {
        "backend": "nccl",
        "rank": 3,
        "world_size": 4,
        "pg_count": 2,
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
            {"pg_name": "7", "ranks": [1, 3]},
        ],
        "nccl_version": "2.22.3",
    },
    "host_name": "node7",
}


def _metadata(tmp_path, keys, *, events=(), after=False, **more):
    text = json.dumps(keys)[1:-1].encode()
    content = document([*events, event()], **more)
    before = content.replace(b"{", b"{" + text + b", ", 1)
    content = content[:-1] + b", " + text + b"}" if after else before
    return load_trace(write(tmp_path, content)).metadata


@pytest.mark.parametrize("after", [False, True], ids=["before the events", "after them"])
def test_a_document_names_whose_it_is(tmp_path, after):
    """Rank, groups, devices and host are read wherever they stand."""
    assert _metadata(tmp_path, _TORCH, after=after) == TraceMetadata(
        vendor="nvidia",
        devices=("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        backend="nccl",
        rank=3,
        world_size=4,
        host="node7",
        groups={"0": (0, 1, 2, 3), "7": (1, 3)},
        group_descriptions={"0": "default_pg"},
        versions={"NCCL": "2.22.3"},
        clock_is_shared=True,
    )


@pytest.mark.parametrize("key", ["env", "environment"])
def test_variables_that_a_program_gave_the_profiler(tmp_path, key):
    """Those of the network are kept, set or not; others are none of a trace's business."""
    variables = {"NCCL_IB_DISABLE": "1", "HCCL_RDMA_TC": "", "HOME": "/", "NCCL_X": 7, "GLOO_SOCKET_IFNAME": "e" * 999}
    found = _metadata(tmp_path, {key: variables}).environment
    assert found == {"NCCL_IB_DISABLE": "1", "HCCL_RDMA_TC": "", "GLOO_SOCKET_IFNAME": "e" * metadata.TEXT_MAX_CHARS}
    assert _metadata(tmp_path, {key: [1]}).environment == {}


def test_a_document_without_facts_leaves_nothing_known(tmp_path):
    """Without keys next to the events nothing is guessed but that it is a CPU's."""
    assert _metadata(tmp_path, {"x": 1}, base_ns=None) == TraceMetadata(vendor="cpu")


@pytest.mark.parametrize(
    ("keys", "events", "vendor"),
    [
        ({"deviceProperties": [{"name": "AMD Instinct MI300X"}]}, [], "amd"),
        ({"deviceProperties": [{"name": "Tesla V100-SXM2-16GB"}]}, [], "nvidia"),
        ({"deviceProperties": [{"name": "A100-PG509-200"}]}, [], "nvidia"),
        ({"roctracer_version": 4.1}, [], "amd"),
        ({"cuda_runtime_version": 12040}, [], "nvidia"),
        ({}, [event("hipLaunchKernel", cat="cuda_runtime"), event(cat="kernel")], "amd"),
        ({}, [event("cudaLaunchKernel", cat="cuda_runtime"), event(cat="kernel")], "nvidia"),
        ({}, [event("f", cat="mtia_ccp_events")], "mtia"),
        ({}, [event("f", cat="kernel")], ""),
        ({}, [event("f", cat="cpu_op")], "cpu"),
    ],
)
def test_the_vendor_is_that_of_devices_tools_or_calls(tmp_path, keys, events, vendor):
    """The first of the sources: devices by name, versions of the profiler's library, names of calls."""
    assert _metadata(tmp_path, {"x": 1, **keys}, events=events).vendor == vendor


@pytest.mark.parametrize(
    ("base_ns", "start_ns", "shared"), [(None, 5000, False), (None, 1_661_203_462_605_893_000, True), (1, 5000, True)]
)
def test_clocks_are_shared_where_times_are_of_day(tmp_path, base_ns, start_ns, shared):
    """A base or times since 1970 make starts comparable; times since boot do not."""
    content = document([event(start_ns=start_ns)], base_ns=base_ns)
    assert load_trace(write(tmp_path, content)).metadata.clock_is_shared is shared


@pytest.mark.parametrize(
    "keys",
    [
        {"distributedInfo": "no", "deviceProperties": "no", "host_name": 7},
        {"distributedInfo": [1], "deviceProperties": [1], "host_name": None},
        {"distributedInfo": {"rank": "x", "world_size": -1, "backend": 3, "pg_config": {"a": 1}}},
        {"distributedInfo": {"rank": 2**70, "world_size": WORLD_SIZE_MAX + 1, "pg_config": [1, {"pg_name": "0"}]}},
        {"distributedInfo": {"rank": 1.5, "pg_config": [{"pg_name": "0", "ranks": "0-3"}, {"ranks": [1]}]}},
        {
            "distributedInfo": {
                "pg_config": [{"pg_name": "0", "ranks": [-1]}, {"pg_name": "1", "ranks": [WORLD_SIZE_MAX]}]
            }
        },
    ],
)
def test_parts_of_another_form_are_left_out(tmp_path, keys):
    """What is stated in a way that cannot be read is unknown, and costs no event."""
    assert _metadata(tmp_path, keys, base_ns=None) == TraceMetadata(vendor="cpu")


def test_one_bad_group_leaves_the_others(tmp_path):
    """Groups are evaluated one by one."""
    groups = [{"pg_name": "0", "ranks": "all"}, {"pg_name": 1, "ranks": [0, 1]}]
    assert _metadata(tmp_path, {"distributedInfo": {"pg_config": groups, "rank": 1}}).groups == {"1": (0, 1)}


def test_a_part_beyond_its_limit_is_left_out(tmp_path, monkeypatch):
    """A key that is larger than any real one is not decoded."""
    monkeypatch.setattr(metadata, "PART_MAX_BYTES", 200)
    found = _metadata(tmp_path, _TORCH)
    assert (found.rank, len(found.devices), found.host) == (ABSENT, 2, "node7")


def _named(tmp_path, *thread_args):
    metadata = [{"ph": "M", "name": "thread_name", "pid": 7, "tid": tid, "args": args} for tid, args in thread_args]
    columns = load_trace(write(tmp_path, document([*metadata, event(tid=1), event(tid=2)])))
    return {columns.threads[code][1]: name for code, name in columns.thread_names.items()}


def test_threads_have_the_name_that_somebody_gave_them(tmp_path):
    """Of several names the one wins that is not the program's, whichever comes first."""
    plain, own = {"name": "thread 1 (python3.11)"}, {"name": "thread 1 (pt_autograd_0)"}
    assert _named(tmp_path, (1, plain), (1, own), (2, plain)) == {1: "pt_autograd_0", 2: "python3.11"}
    assert _named(tmp_path, (1, own), (1, plain), (2, {"name": "stream 7 "})) == {1: "pt_autograd_0", 2: "stream 7"}


@pytest.mark.parametrize("args", [{}, {"name": 3}, [], "x", {"name": ""}, {"labels": "GPU 0"}])
def test_names_of_no_form_are_none(tmp_path, args):
    """A thread whose name makes no sense has none, and neither has one without events."""
    assert _named(tmp_path, (1, args), (99, {"name": "gone"})) == {}
