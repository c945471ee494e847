import pytest

from lockstep.trace.calls import STEPS_MAX, build_calls, collectives
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.tree import ROOT
from tests.trace.traces import BASE_NS, RECORDING, document, event, without_children_ns, write

_MS = 1_000_000


@pytest.fixture
def load(tmp_path):
    """Return what turns events into columns."""
    return lambda events: load_trace(write(tmp_path, document(events)))


@pytest.fixture(scope="module")
def recording():
    """Return the call tree of the repository's recording."""
    return build_calls(load_trace(RECORDING))


def _nodes(tree):
    return dict(zip(tree.name, zip(tree.kind, tree.total_ns, tree.count, strict=True), strict=True))


def test_the_thread_that_steps_the_optimizer_trains(load):
    """Neither the busiest thread nor the longest backward outvotes the optimizer, but the agent's mark does."""
    events = [
        *(event(f"f{i}", i * 10, 5, tid=1) for i in range(50)),
        event("<built-in method run_backward of x>", 0, 900, tid=2),
        event("Optimizer.step#SGD.step", 0, 10, tid=3, cat="user_annotation"),
    ]
    assert build_calls(load(events)).name == ["Optimizer.step#SGD.step"]
    marked = [event("lockstep.step#1", 0, 1, tid=4, cat="user_annotation"), event("g", 0, 10, tid=4)]
    assert build_calls(load([*events, *marked])).name == ["g"]


def test_without_an_optimizer_the_longest_backward_trains(load):
    """A capture between two optimizer steps still finds its thread."""
    columns = load(
        [event("a", 0, 999, tid=1), event("run_backward", 0, 10, tid=2), event("run_backward", 0, 20, tid=3)]
    )
    assert build_calls(columns).total_ns == [20]


def test_step_marks_bound_the_window_and_are_no_calls(load):
    """Spans are cut to the agent's marks, points that win over a profiler schedule's spans and count the steps."""
    columns = load(
        [
            event("main.py(1): main", 0, 100),
            event("lockstep.step#7", 20, 3, cat="user_annotation"),
            event("lockstep.step#8", 40, 0, cat="user_annotation"),
            event("lockstep.step#9", 70, 5, cat="user_annotation"),
            event("ProfilerStep#1", 0, 100, cat="user_annotation"),
            event("f", 10, 15),
            event("f", 50, 10),
            event("f", 80, 10),
        ]
    )
    tree = build_calls(columns)
    assert tree.window_ns == (BASE_NS + 20, BASE_NS + 70)
    assert tree.steps == 2
    assert _nodes(tree) == {"main.py(1): main": ("python", 50, 1), "f": ("python", 15, 2)}


def test_scheduled_steps_bound_the_window(load):
    """Without marks of the agent the spans of a profiler schedule do, one mark alone is no window."""
    steps = [event(f"ProfilerStep#{i}", i * 30, 30, cat="user_annotation") for i in (1, 2)]
    tree = build_calls(load([event("main", 0, 100), event("lockstep.step#1", 5, 1, cat="user_annotation"), *steps]))
    assert (tree.window_ns, tree.steps) == ((BASE_NS + 30, BASE_NS + 90), 2)
    assert _nodes(tree) == {"main": ("python", 60, 1)}


def test_events_of_no_length_are_left_out(load):
    """What the clock could not separate from its neighbours is no one's caller."""
    tree = build_calls(load([event("main", 0, 100), event("nothing", 10, 0), event("f", 10, 10)]))
    assert tree.name == ["main", "f"]


def test_modules_of_one_class_are_one_call(load):
    """Instance numbers, which differ between ranks, do not split a node."""
    tree = build_calls(load([event("nn.Module: Linear_0", 0, 10), event("nn.Module: Linear_7", 10, 10)]))
    assert _nodes(tree) == {"nn.Module: Linear": ("python", 20, 2)}


def test_a_trace_without_host_events_gives_an_empty_tree(load):
    """A device-only trace is no error."""
    tree = build_calls(load([event("gemm", cat="kernel")]))
    assert (len(tree), tree.window_ns, tree.steps) == (0, (0, 0), None)


def test_collectives_are_counted_by_name(load):
    """Count, total and shortest of host and device collectives in the window; launches and other names are not."""
    columns = load(
        [
            event("gloo:all_reduce", 0, 30, tid=9, cat="user_annotation"),
            event("gloo:all_reduce", 50, 10, tid=9, cat="user_annotation"),
            event("gloo:all_reduce", 500, 10, tid=9, cat="user_annotation"),
            event("ncclDevKernel_AllReduce", 0, 7, tid=20, cat="kernel"),
            event("nccl:all_reduce", 0, 5, cat="user_annotation"),
            event("gemm", 0, 5, tid=20, cat="kernel"),
        ]
    )
    found = collectives(columns, (BASE_NS, BASE_NS + 100))
    assert found == {"gloo:all_reduce": [2, 40, 10], "ncclDevKernel_AllReduce": [1, 7, 7]}


def test_collectives_are_what_is_communication_not_what_a_name_begins_with(load):
    """Kernels that a library of its own brings count; a fused kernel that computes does not, nor does a call."""
    columns = load(
        [
            event("void vllm::cross_device_reduce_1stage<half, 4>", 0, 9, tid=20, cat="kernel"),
            event("triton_poi_fused_nccl_view", 20, 5, tid=20, cat="kernel"),
            event("gloo:broadcast", 40, 6, tid=1, cat="user_annotation"),
            event("c10d::broadcast_", 39, 9, tid=1, cat="cpu_op"),
        ]
    )
    found = collectives(columns, (BASE_NS, BASE_NS + 100))
    assert list(found.values()) == [[1, 9, 9]]


def test_recording_has_the_callers_of_its_training_script(recording):
    """Frames, annotations and operators of a real rank stand where its script calls them."""

    def path(index):
        return [*path(recording.parent[index]), recording.name[index]] if index != ROOT else []

    paths = [path(index) for index in range(len(recording))]
    sleep = next(each for each in paths if each[-1] == "<built-in function sleep>")
    assert sleep[:3] == ["train.py(60): <module>", "train.py(45): main", "nn.Module: DistributedDataParallel"]
    assert sleep[-2] == "train.py(20): forward"
    assert "DistributedDataParallel.forward" in sleep
    loader = next(each for each in paths if each[-1].startswith("enumerate(DataLoader)#"))
    assert loader[-2] == "torch/utils/data/dataloader.py(720): __next__"
    operator = next(each for each in paths if each[-1] == "c10d::allreduce_")
    assert "train.py(45): main" in operator


def test_recording_keeps_the_account(recording):
    """In a real trace, with its crossing annotations, self times sum to the roots, which fill the window."""
    roots_ns = sum(total for total, parent in zip(recording.total_ns, recording.parent, strict=True) if parent == ROOT)
    window_ns = recording.window_ns[1] - recording.window_ns[0]
    own_ns = without_children_ns(recording)
    assert min(own_ns) >= 0
    assert sum(own_ns) == roots_ns == window_ns == 166_852_380


def test_each_step_has_its_totals(load):
    """Three marked steps: `f` in the first and the last, for 10 and 20; of many the first are known by themselves."""
    marks = [event(f"lockstep.step#{step}", 100 * step, 1, cat="user_annotation") for step in range(4)]
    events = [*marks, event("f", 10, 10), event("f", 210, 20)]
    tree = build_calls(load(events))
    assert (tree.name, tree.step_totals_ns()) == (["f"], [[10], [0], [20]])
    many = [event(f"lockstep.step#{step}", 100 * step, 1, cat="user_annotation") for step in range(STEPS_MAX + 3)]
    assert len(build_calls(load([*many, *events[4:]])).step_totals_ns()) == STEPS_MAX
