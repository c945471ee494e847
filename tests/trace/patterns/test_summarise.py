"""Patterns of made traces: which function is on the critical path how long, and how it used its resource."""

import numpy as np
import pytest

from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.limits import PATTERN_DEPTH_MAX
from lockstep.trace.columns import (
    ANNOTATION,
    COPY,
    KERNEL,
    OPERATOR,
    PYTHON,
    RUNTIME,
    CollectiveArguments,
    TraceMetadata,
    WorkKind,
)
from lockstep.trace.patterns import FunctionClass, Resource, Samples, summarise_patterns
from lockstep.trace.patterns.pattern import OUTSIDE
from tests.trace.made import columns_of, made

WINDOW = (1000, 2000)


def kernel(name, start, end, stream=7, category=KERNEL, **more):
    return made(name, category, ("gpu", stream), start, end - start, stream=stream, **more)


def frame(name, start, end, thread=1, category=PYTHON):
    return made(name, category, thread, start, end - start)


def nccl(start, end, *, stream=20, **arguments):
    return kernel(
        "ncclDevKernel_Generic",
        start,
        end,
        stream,
        work=WorkKind.COMMUNICATION,
        collective=CollectiveArguments(**arguments),
    )


def patterns_of(events, window=WINDOW, thread=1, metadata=None, **more):
    columns = columns_of(events, metadata=metadata)
    code = next(code for code, (_, tid) in enumerate(columns.threads) if tid == thread)
    return summarise_patterns(columns, window, thread=code, **more)


def betas(summary) -> dict[tuple[str, ...], float]:
    return {(*each.stack, each.function): pytest.approx(each.beta) for each in summary.patterns}


def test_classes_take_precedence_in_the_order_of_the_paper():
    """Compute before memory before collectives before Python, each only where no higher one runs."""
    found = patterns_of(
        [
            frame("train", 1000, 2000),
            kernel("gemm", 1100, 1300),
            kernel("copy", 1200, 1400, 8, COPY),
            nccl(1350, 1600),
        ]
    )
    assert betas(found) == {("gemm",): 0.2, ("copy",): 0.1, ("ncclDevKernel_Generic",): 0.2, ("train",): 0.5}


def test_python_is_evaluated_by_its_own_time_under_each_stack():
    """A function called from two places is two; callees' time is theirs; other threads do not count."""
    found = patterns_of(
        [
            frame("train", 1000, 2000),
            frame("a", 1000, 1500),
            frame("f", 1100, 1400),
            frame("aten::mm", 1200, 1300, category=OPERATOR),
            frame("b", 1500, 1900),
            frame("f", 1500, 1600),
            frame("f", 1700, 1800),
            frame("loader", 1000, 2000, thread=2),
        ]
    )
    assert betas(found) == {
        ("train",): 0.1,
        ("train", "a"): 0.2,
        ("train", "a", "f"): 0.2,
        ("train", "a", "f", "aten::mm"): 0.1,
        ("train", "b"): 0.2,
        ("train", "b", "f"): 0.2,
    }
    assert {each.kind for each in found.patterns} == {FunctionClass.HOST}


def test_beta_sums_to_one_whatever_one_stream_and_one_thread_do():
    """Random traces with gaps on both sides: every ns of the window is somebody's, exactly."""
    random = np.random.default_rng(3)
    for _ in range(50):
        ends = np.sort(random.choice(3000, 60, replace=False)).reshape(-1, 2)
        kinds = random.integers(0, 3, len(ends))
        device = [
            kernel(f"k{at % 5}", int(start), int(end), 7, (KERNEL, COPY, KERNEL)[kind], work=list(WorkKind)[2 + kind])
            for at, ((start, end), kind) in enumerate(zip(ends, kinds, strict=True))
        ]
        host = [frame("main", 300, 2600), frame("f", 400, 900), frame("g", 500, 700), frame("g", 1200, 2500)]
        found = patterns_of([*device, *host], window=(100, 2900))
        assert sum(each.beta for each in found.patterns) + found.omitted_beta == pytest.approx(1.0, abs=1e-12)


def test_executions_of_one_function_at_once_count_once():
    """Equation 3 asks whether a function is on the path, not how often."""
    found = patterns_of([frame("t", 1000, 1001), kernel("gemm", 1000, 1500, 7), kernel("gemm", 1200, 1600, 8)])
    assert betas(found)[("gemm",)] == 0.6


def test_time_in_no_call_has_a_name():
    """Without stacks Python itself leaves no events."""
    found = patterns_of([frame("aten::mm", 1000, 1250, category=OPERATOR), kernel("gemm", 1100, 1500)])
    assert betas(found) == {("gemm",): 0.4, ("aten::mm",): 0.1, (OUTSIDE,): 0.5}


def test_what_crosses_its_caller_is_cut_to_it():
    """Clocks round: the callee's time beyond its caller is no one's call."""
    found = patterns_of([frame("a", 1000, 1500), frame("b", 1400, 1600)])
    assert betas(found) == {("a",): 0.4, ("a", "b"): 0.1, (OUTSIDE,): 0.5}


def test_events_are_cut_to_the_window_and_empty_ones_dropped():
    """What lies outside or has no length is not there."""
    found = patterns_of(
        [frame("main", 0, 5000), kernel("k", 900, 1100), kernel("z", 1500, 1500), kernel("y", 2000, 2500)]
    )
    assert betas(found) == {("k",): 0.1, ("main",): 0.9}


def test_host_collectives_are_on_the_path_only_where_the_training_thread_waits():
    """A host backend moves data while backward computes on the same cores: that is no waiting."""
    ms = 1_000_000
    found = patterns_of(
        [
            frame("main", 0, 10 * ms),
            frame("<built-in method run_backward of x>", 0, 8 * ms),
            frame("aten::mm", 0, 5 * ms, category=OPERATOR),
            made("gloo:all_reduce", ANNOTATION, 2, 2 * ms, 5 * ms, work=WorkKind.COMMUNICATION),
        ],
        window=(0, 10 * ms),
    )
    run_backward = ("main", "<built-in method run_backward of x>")
    assert betas(found) == {
        ("gloo:all_reduce",): 0.2,
        (*run_backward, "aten::mm"): 0.5,
        run_backward: 0.1,
        ("main",): 0.2,
    }
    assert found.patterns[1].kind is FunctionClass.COLLECTIVE


def test_the_loaders_annotation_is_a_call_others_are_not():
    """PyTorch wraps next() of a loader in an annotation; without stacks it is the only trace of it."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    found = patterns_of(
        [
            frame(loader, 1000, 1400, category=ANNOTATION),
            frame("ProfilerStep#1", 1000, 2000, category=ANNOTATION),
            frame("f", 1400, 2000),
        ]
    )
    assert betas(found) == {(loader,): 0.4, ("f",): 0.6}


def test_collectives_of_a_generic_kernel_are_distinguished_by_their_arguments():
    """ROCm's kernel hides its type in the name."""
    found = patterns_of(
        [frame("t", 1000, 1001), nccl(1100, 1200, name="allreduce"), nccl(1300, 1500, name="all_gather")]
    )
    assert betas(found)[("ncclDevKernel_Generic [allreduce]",)] == 0.1
    assert betas(found)[("ncclDevKernel_Generic [all_gather]",)] == 0.2


def test_long_kernel_names_that_differ_at_their_end_stay_apart():
    """Templates of one kernel share a kilobyte."""
    found = patterns_of(
        [frame("t", 1000, 1001), kernel("k" * 500 + "1", 1000, 1100), kernel("k" * 500 + "2", 1200, 1300)]
    )
    names = [each.function for each in found.patterns if each.kind is FunctionClass.COMPUTE]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 120


def test_small_functions_are_counted_not_kept():
    """Below 1e-4 of the window."""
    found = patterns_of([frame("main", 0, 100_000), kernel("k", 5, 14), kernel("l", 20, 30)], window=(0, 100_000))
    assert betas(found) == {("main",): 0.99981, ("l",): 1e-4}
    assert (found.omitted_count, found.omitted_beta) == (1, pytest.approx(9e-5))


def test_hardware_samples_give_mean_and_deviation_weighted_by_critical_duration():
    """Two executions, one with a wait inside: equations 4 and 5 by hand."""
    values = np.zeros(100)
    values[10:20] = 0.5  # gemm 1, whole
    values[45:50] = 1.0  # gemm 2 is idle before
    values[44] = 0.5
    samples = {Resource.SM: Samples(start_ns=1000, period_ns=10, values=values * 1980, peak=1980.0)}
    found = patterns_of(
        [frame("main", 1000, 2000), kernel("gemm", 1100, 1200), kernel("gemm", 1300, 1500)], samples=samples
    )
    gemm = next(each for each in found.patterns if each.function == "gemm")
    second = np.array([0.5, 1, 1, 1, 1, 1])
    assert gemm.mu == pytest.approx((10 * 0.5 + second.sum()) / 16, abs=1e-4)
    assert gemm.sigma == pytest.approx(6 * second.std() / 16, abs=1e-4)
    assert gemm.active_mu == pytest.approx(gemm.mu)
    assert gemm.gap_ratio == 0
    main = next(each for each in found.patterns if each.function == "main")
    assert (main.mu, main.sigma, main.active_mu, main.gap_ratio) == (None, None, None, None)


def test_a_collective_is_measured_by_the_link_that_it_uses():
    """Inside a node by NVLink, across nodes by the NIC, and by whichever was sampled where no one knows."""

    def level(value):
        return Samples(start_ns=1000, period_ns=10, values=np.full(100, value), peak=1.0)

    links = {Resource.NVLINK: level(0.9), Resource.NIC: level(0.4)}
    metadata = TraceMetadata(groups={"7": (0, 8)})
    events = [
        frame("main", 1000, 2000),
        nccl(1000, 1200, name="allgather", ranks=(0, 1, 2, 3)),
        nccl(1300, 1500, name="reducescatter", group="7"),
        nccl(1600, 1700, name="allreduce"),
    ]
    found = patterns_of(events, samples=links, ranks_per_node=8, metadata=metadata)
    mu = {each.function[len("ncclDevKernel_Generic") :]: each.mu for each in found.patterns}
    assert mu[" [allgather]"] == pytest.approx(0.9, abs=1e-4)
    assert mu[" [reducescatter]"] == mu[" [allreduce]"] == pytest.approx(0.4, abs=1e-4)
    only = patterns_of(events, samples={Resource.NVLINK: level(0.9)}, metadata=metadata)
    assert {round(each.mu, 3) for each in only.patterns if each.kind is FunctionClass.COLLECTIVE} == {0.9}


def test_executions_between_two_samples_have_no_mean():
    """A kernel shorter than the period may hold no sample; it has no weight, and alone no mu."""
    samples = {Resource.SM: Samples(start_ns=1000, period_ns=100, values=np.ones(10), peak=1.0)}
    found = patterns_of([frame("m", 1000, 2000), kernel("gemm", 1110, 1190)], samples=samples)
    assert next(each for each in found.patterns if each.function == "gemm").mu is None


def test_stacks_keep_their_innermost_callers():
    """A recursion of 400 keeps the callers next to the function."""
    deep = [frame(f"f{depth}", 1000, 2000, category=RUNTIME) for depth in range(400)]
    (found,) = patterns_of(deep).patterns
    assert found.function == "f399"
    assert found.stack == tuple(f"f{depth}" for depth in range(399 - PATTERN_DEPTH_MAX, 399))


def test_windows_that_cannot_be_are_refused():
    """Empty ones are ours to avoid; one of weeks is a file made to be expensive."""
    with pytest.raises(LocalError, match="window"):
        patterns_of([frame("m", 0, 1)], window=(5, 5))
    with pytest.raises(MalformedError, match="window"):
        patterns_of([kernel("k", 0, 1 << 61), kernel("l", 0, 5), frame("m", 0, 1 << 61)], window=(0, 1 << 61))


def test_samples_on_the_clock_of_the_trace_that_cannot_be_are_named():
    """The error names which resource."""
    samples = {Resource.SM: Samples(start_ns=0, period_ns=0, values=np.ones(1), peak=1.0)}
    with pytest.raises(MalformedError, match="samples of sm"):
        patterns_of([frame("m", 1000, 2000), kernel("k", 1000, 1500)], samples=samples)
