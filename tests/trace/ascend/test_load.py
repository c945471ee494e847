from collections import Counter

import numpy as np
import pytest

from lockstep.trace.ascend.collective import group_hash
from lockstep.trace.ascend.load import load_trace_view
from lockstep.trace.ascend.rank_metadata import AscendSettings
from lockstep.trace.columns import ABSENT, ANNOTATION, COPY, FILL, KERNEL, OPERATOR, RUNTIME, SYNC, WorkKind
from lockstep.trace.launches import launches_of
from lockstep.trace.steps import find_steps
from tests.trace.ascend.recordings import OUTPUT
from tests.trace.ascend.written import BASE_NS, CANN, HCCL, NPU, OVERLAP, PYTHON, flow, metadata, row, write


@pytest.fixture(scope="module")
def recording():
    return load_trace_view(OUTPUT / "trace_view.json.gz")


def _classes(columns):
    pairs = zip(columns.category.tolist(), columns.work.tolist(), strict=True)
    return Counter((columns.categories[category], WorkKind(work)) for category, work in pairs)


def test_recording_is_read_whole(recording):
    """The recording has the rows that its writer wrote, in the classes that they are."""
    assert (recording.event_count, len(recording), recording.dropped_count) == (8375, 3379, 0)
    classes = _classes(recording)
    assert classes[KERNEL, WorkKind.COMPUTE] == 187  # as many as kernel_details.csv has rows that are no collectives
    assert classes[KERNEL, WorkKind.COMMUNICATION] == 4
    assert classes[COPY, WorkKind.MEMORY] == 24
    assert classes["overlap_analysis", WorkKind.NOTHING] == 382
    assert classes["communication_task", WorkKind.NOTHING] == 296
    assert recording.start_ns.min() == 1_736_405_443_861_785_630
    assert (recording.metadata.vendor, recording.metadata.backend, recording.metadata.clock_is_shared) == (
        "ascend",
        "hccl",
        True,
    )


def test_every_device_row_of_the_recording_has_its_launch_and_operator(recording):
    """Launches are Enqueues of the training thread, before their work; operators are torch's."""
    device = np.flatnonzero(recording.on_device)
    launch = launches_of(recording)[device]
    assert np.all(launch != ABSENT)
    assert {recording.names[recording.name[row]] for row in launch} == {"Enqueue"}
    assert np.all(recording.start_ns[launch] < recording.start_ns[device])
    operators = recording.external[device] - 1
    assert {recording.categories[code] for code in recording.category[operators]} == {OPERATOR}


def test_the_recording_has_its_step(recording):
    """The profiler's step is an annotation, although torch_npu calls it an operator."""
    steps = find_steps(recording)
    assert steps.number.tolist() == [50]
    assert steps.end_ns[0] - steps.start_ns[0] == 136_897_820


def test_collectives_of_the_recording_show_what_they_move(recording):
    """Operation, group, number, elements and bytes are those of the rows' names and arguments."""
    collectives = [recording.collectives[row] for row in sorted(recording.collectives)]
    assert [(each.name, each.group, each.sequence, each.in_elements, each.dtype) for each in collectives] == [
        ("allreduce", "868", 0, 4097000, "FP32"),
        ("allreduce", "868", 1, 16781312, "FP32"),
        ("allreduce", "868", 2, 37752832, "FP32"),
        ("allreduce", "868", 3, 2469696, "FP32"),
    ]
    assert recording.bytes[recording.work == WorkKind.COMMUNICATION].tolist() == [
        4 * each.in_elements for each in collectives
    ]


def test_shapes_and_stacks_have_the_shared_form(recording):
    """Shapes are JSON of dimensions and types, stacks one frame a line with the innermost first."""
    assert '[[[4097000]],["float"]]' in recording.shape_texts
    first = recording.stacks[0].split("\n")
    assert first[0].endswith("torch/_utils.py(180): _rebuild_tensor")
    assert first[-1] == "<string>(1): <module>"


def _launched(with_calls):
    """Two kernels of one queued launch, a copy, a collective; the queue's thread calls CANN."""
    calls = [
        row("Node@launch", CANN, 2, 120, 10, args={"connection_id": 5}),
        row("Node@launch", CANN, 2, 140, 10, args={"connection_id": 6}),
    ]
    return [
        row("aten::mm", PYTHON, 1, 0, 100, cat="cpu_op", args={"Sequence number": 4}),
        row("Enqueue", PYTHON, 1, 50, 10, cat="enqueue", args={"correlation_id": 9}),
        row("Dequeue@mm", PYTHON, 2, 110, 60, cat="dequeue", args={"correlation_id": 9}),
        *(calls if with_calls else ()),
        row("Cast", NPU, 7, 200, 30, args={"Task Type": "AI_VECTOR_CORE", "connection_id": 5}),
        row("MatMul", NPU, 7, 240, 30, args={"Task Type": "AI_CORE", "connection_id": 6}),
        *flow("HostToDevice", str(5 << 32 | 0xFFFFFFFF), (CANN, 2, 125), (NPU, 7, 200)),
        *flow("HostToDevice", "40004631069296951295", (CANN, 2, 145), (NPU, 7, 240)),
        *metadata(),
    ]


@pytest.mark.parametrize("with_calls", [True, False])
def test_a_launch_is_followed_through_the_queue(tmp_path, with_calls):
    """Enqueue, Dequeue, calls and kernels share one correlation and one operator, with rows of CANN or without."""
    columns = load_trace_view(write(tmp_path, _launched(with_calls)))
    by_name = {columns.names[code]: row for row, code in enumerate(columns.name.tolist())}
    joined = [by_name[name] for name in ("Enqueue", "Dequeue@mm", "Cast", "MatMul")]
    assert columns.correlation[joined].tolist() == [by_name["Enqueue"] + 1] * 4
    assert columns.external[[by_name["aten::mm"], *joined]].tolist() == [by_name["aten::mm"] + 1] * 5
    assert launches_of(columns)[joined[2:]].tolist() == [by_name["Enqueue"]] * 2
    assert columns.correlation[by_name["aten::mm"]] == ABSENT


def test_without_flows_the_connection_joins_call_and_kernel(tmp_path):
    """Older output and single kernels have no flow; the connection's number is enough."""
    events = [each for each in _launched(with_calls=True) if each.get("cat") != "HostToDevice"]
    columns = load_trace_view(write(tmp_path, events))
    assert np.all(launches_of(columns)[columns.on_device] != ABSENT)


_ROWS = [
    (row("ProfilerStep#3", PYTHON, 1, 0, 900, cat="cpu_op"), ANNOTATION, WorkKind.NOTHING),
    (row("enumerate(DataLoader)#x", PYTHON, 1, 1, 9, cat="cpu_op"), ANNOTATION, WorkKind.NOTHING),
    (row("main.py(3): train", PYTHON, 1, 1, 9, cat="python_function"), "python_function", WorkKind.HOST),
    (row("aclrtSynchronizeStream", CANN, 1, 0, 9), RUNTIME, WorkKind.HOST),
    (row("MEMCPY_ASYNC", NPU, 2, 0, 9, args={"Task Type": "SDMA_SQE", "size(B)": 64}), COPY, WorkKind.MEMORY),
    (row("MEMSET", NPU, 2, 0, 9, args={"Task Type": "SDMA_SQE"}), FILL, WorkKind.MEMORY),
    (row("MemSet", NPU, 2, 10, 9, args={"Task Type": "AI_VECTOR_CORE"}), KERNEL, WorkKind.COMPUTE),
    (row("EVENT_WAIT", NPU, 2, 20, 9, args={"Task Type": "EVENT_WAIT_SQE"}), SYNC, WorkKind.NOTHING),
    (row("EVENT_RECORD", NPU, 2, 30, 9, args={"Task Type": "EVENT_RECORD_SQE"}), "ascend_task", WorkKind.NOTHING),
    (row("Notify Wait", NPU, 4, 0, 9, args={"Task Type": "Notify Wait"}), "communication_task", WorkKind.NOTHING),
    (row("DropOut", NPU, 3, 0, 9, args={"Task Type": "DSA_SQE"}), KERNEL, WorkKind.COMPUTE),
    (row("Sort", NPU, 3, 10, 9, args={"Task Type": "AI_CPU"}), KERNEL, WorkKind.COMPUTE),
    (row("Unheard", NPU, 3, 20, 9, args={"Task Type": "Other"}), KERNEL, WorkKind.COMPUTE),
    (
        row("hcom_allGather__868_4_2", HCCL, 0, 0, 9, args={"count": 8, "data_type": "BFP16"}),
        KERNEL,
        WorkKind.COMMUNICATION,
    ),
    (row("Memcpy", HCCL, 1, 0, 9), "communication_task", WorkKind.NOTHING),
    (row("Computing", OVERLAP, 0, 0, 9), "overlap_analysis", WorkKind.NOTHING),
    (row("of no process", 999, 0, 0, 9), "ascend", WorkKind.NOTHING),
]


def test_rows_are_what_their_process_and_task_name(tmp_path):
    """Device rows have no category: process, thread and type of task decide."""
    columns = load_trace_view(write(tmp_path, [each[0] for each in _ROWS] + metadata()))
    found = [
        (columns.names[name], columns.categories[category], WorkKind(work))
        for name, category, work in zip(columns.name, columns.category, columns.work, strict=True)
    ]
    assert found == [(each["name"], category, work) for each, category, work in _ROWS]
    assert columns.bytes[[4, 13]].tolist() == [64, 16]
    assert [columns.streams[columns.stream[row]] for row in (4, 13)] == [(3, 2), (3, -2)]
    assert columns.stream[[0, 3, 15]].tolist() == [ABSENT] * 3
    assert columns.syncs[7].kind == "EVENT_WAIT"


def test_parts_of_collectives_are_work_only_where_no_collective_is_recorded(tmp_path):
    """Without the communication process (level none) its parts on the device are all that is known of it."""
    events = [row("Notify Wait", NPU, 4, 0, 9, args={"Task Type": "Notify Wait"}), *metadata()]
    assert load_trace_view(write(tmp_path, events)).work.tolist() == [WorkKind.COMMUNICATION]


def test_groups_of_the_metadata_name_collectives(tmp_path):
    """A row has three digits of its group's hash; the metadata has the group's id, name and ranks."""
    group = group_hash("10.0.0.1%eth0_60000_0_1738895506630464")
    settings = AscendSettings(rank=2, groups={group: (2, 3)}, group_names={group: "tp"})
    events = [row(f"hcom_reduceScatter__{group[-3:]}_4_2", HCCL, 0, 0, 9, args={"count": 8, "data_type": "FP32"})]
    columns = load_trace_view(write(tmp_path, [*events, *metadata()]), settings)
    collective = columns.collectives[0]
    assert (collective.name, collective.group, collective.description, collective.ranks) == (
        "reducescatter",
        group,
        "tp",
        (2, 3),
    )
    assert (collective.in_elements, collective.out_elements, collective.sequence) == (ABSENT, 8, (1 << 32) + 4)
    assert (columns.metadata.rank, columns.metadata.groups) == (2, {group: (2, 3)})


def test_collections_have_the_shared_name(tmp_path):
    """torch_npu records garbage collections in a process of their own."""
    named = {"name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Python GC"}, "ph": "M"}
    columns = load_trace_view(write(tmp_path, [row("GC", 7, 1, 0, 9, cat="GC"), named]))
    assert [columns.names[code] for code in columns.name] == ["Python GC"]
    assert columns.work.tolist() == [WorkKind.HOST]


def test_forward_and_backward_are_joined_by_their_flow(tmp_path):
    """Operators without a sequence number get that of the flow between them."""
    events = [
        row("forward", PYTHON, 1, 0, 9, cat="cpu_op", args={"Sequence number": -1}),
        row("backward", PYTHON, 2, 50, 9, cat="cpu_op", args={"Sequence number": -1}),
        row("other", PYTHON, 2, 70, 9, cat="cpu_op", args={"Sequence number": 3}),
        *flow("fwdbwd", 17, (PYTHON, 1, 0), (PYTHON, 2, 50)),
    ]
    assert load_trace_view(write(tmp_path, [*events, *metadata()])).sequence.tolist() == [17, 17, 3]


def test_a_trace_over_half_a_year_is_read_without_links(tmp_path):
    """Times that cannot be one capture's cost what depends on them, not the trace."""
    events = [
        *_launched(with_calls=True),
        *(row("far", PYTHON, 1000 + i, 2 * 10**18 - i, 1, cat="cpu_op") for i in range(9)),
    ]
    columns = load_trace_view(write(tmp_path, events))
    assert len(columns) == len([each for each in events if each["ph"] == "X"])
    assert columns.start_ns[0] == BASE_NS
    assert np.all(columns.correlation == ABSENT)
