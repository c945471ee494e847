"""One rank's collectives out of columns."""

import math

import pytest

from lockstep.diagnosis.communication_causes.collectives import bus_factor, collective_kind, collectives_of
from lockstep.trace.columns import ABSENT, ANNOTATION, KERNEL, OPERATOR, CollectiveArguments, TraceMetadata, WorkKind
from tests.trace.made import columns_of, made


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("hcom_allReduce__868_0_1", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send"),
        ("gloo:all_reduce", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("broadcast", "broadcast"),
        ("reduce", "reduce"),
        ("barrier", "barrier"),
        ("ncclDevKernel_Generic", "other"),
    ],
)
def test_kinds_of_every_backend(name, kind):
    """Names of torch, NCCL kernels, HCCL and gloo mean one kind."""
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1),
        ("send", 1),
    ],
)
def test_bus_factors_of_nccl_tests(kind, factor):
    """2 (n-1)/n, (n-1)/n or 1 among 4 ranks; nothing is known of one rank or of other kinds."""
    assert bus_factor(kind, 4) == factor
    assert math.isnan(bus_factor(kind, 1))
    assert math.isnan(bus_factor("barrier", 4))


def call_arguments(name, **more) -> CollectiveArguments:
    return CollectiveArguments(name=name, group="7", ranks=(0, 1, 2, 3), group_size=4, **more)


def test_bytes_are_those_of_the_whole_group():
    """All-reduce: in; all-gather: out; reduce-scatter: in; HCCL counts one rank's part of the last two."""
    arguments = [
        call_arguments("allreduce", in_elements=10, out_elements=10, dtype="Float"),
        call_arguments("_allgather_base", in_elements=10, out_elements=40, dtype="BFloat16"),
        call_arguments("_reduce_scatter_base", in_elements=40, out_elements=10, dtype="Half"),
        call_arguments("allgather", in_elements=10, dtype="FP32"),
        call_arguments("reducescatter", out_elements=10, dtype="BFP16"),
        call_arguments("allreduce", in_elements=10, out_elements=10, dtype="what?"),
        call_arguments("barrier", in_elements=0, out_elements=0, dtype="Float"),
        call_arguments("allreduce", in_elements=1 << 61, out_elements=1 << 61, dtype="Float"),
    ]
    events = [
        made("nccl", KERNEL, (0, 7), 100 * at, 50, WorkKind.COMMUNICATION, 7, collective=each)
        for at, each in enumerate(arguments)
    ]
    found = collectives_of(columns_of(events, metadata=TraceMetadata(vendor="nvidia", rank=2)))
    assert found.rank == 2
    assert found.bytes.tolist() == [40, 80, 80, 160, 80, ABSENT, ABSENT, ABSENT]
    assert set(found.groups) == {("7", (0, 1, 2, 3))}
    assert found.group_sizes == {("7", (0, 1, 2, 3)): 4}


def test_a_kernel_without_arguments_asks_its_operator():
    """RCCL's generic kernels name nothing: record_param_comms, which launched them, does."""
    call = call_arguments("allreduce", in_elements=10, out_elements=10, dtype="BFloat16", sequence=3)
    events = [
        made("record_param_comms", OPERATOR, 1, 0, 50, external=5, collective=call),
        made("cudaLaunchKernel", "cuda_runtime", 1, 10, 5, correlation=9, external=5),
        made("ncclDevKernel_Generic", KERNEL, (0, 1), 100, 900, WorkKind.COMMUNICATION, 1, correlation=9),
    ]
    found = collectives_of(columns_of(events))
    assert (found.kinds, found.bytes.tolist(), found.sequence.tolist()) == (["all_reduce"], [20], [3])
    assert found.duration_ns.tolist() == [900]


def test_a_host_backend_is_in_the_only_group():
    """Gloo's annotations have a tensor and no group; a trace with one group means that one."""
    metadata = TraceMetadata(groups={"0": (0, 1)}, rank=1, host="vm", clock_is_shared=True)
    events = [
        made("gloo:all_reduce", ANNOTATION, 2, 500, 90, WorkKind.COMMUNICATION, shapes='[[[33088]],["float"]]'),
        made("gloo:all_reduce", ANNOTATION, 2, 100, 90, WorkKind.COMMUNICATION, shapes='[[[8]],["float"]]'),
        made("c10d::allreduce_", OPERATOR, 1, 90, 5),
    ]
    found = collectives_of(columns_of(events, metadata=metadata))
    assert found.groups == [("0", (0, 1))] * 2
    assert found.start_ns.tolist() == [100, 500]
    assert found.bytes.tolist() == [32, 33088 * 4]
    assert (found.host, found.clock_is_shared) == ("vm", True)
