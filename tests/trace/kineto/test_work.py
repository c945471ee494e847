import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.trace.columns import WorkKind
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.kineto.work import _COLLECTIVE_KERNEL, is_collective_kernel
from tests.trace.traces import document, event, write

COLLECTIVE_KERNELS = [
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)",
    "void ncclFunction_AllReduce<float>()",
    "rcclGenericKernel(int)",
    "oneccl_allreduce_kernel",
    "void mscclpp::allreduce<float>(float*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "void sglang::cross_device_reduce_2stage<__half, 4>()",
    "one_shot_all_reduce_kernel<c10::BFloat16, 16>",
    "two_shot_all_reduce_kernel_inplace",
    "multimem_one_shot_all_reduce_kernel",
    "multimem_all_gather_kernel",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<float>",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
    "void deep_ep::internode_ll::combine<true, 7168>(void*)",
    "nvshmemi_transfer_rma_nbi",
    "void pplx::a2a_dispatch_send()",
    "quickreduce::allreduce_prototype_twoshot",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs",
    "moeCommKernel<float>",
]
COMPUTE_KERNELS = [
    "void at::native::batch_norm_collect_statistics_kernel<Sync>(float)",
    "SyncBatchNorm_reduce",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
    "void cub::DeviceReduceSingleTileKernel<>()",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>()",
    "triton_poi_fused_all_gather_into_tensor_add_0",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>()",
    "flash_fwd_kernel",
    "synccl_gemm",
    "",
]


@pytest.mark.parametrize("name", COLLECTIVE_KERNELS)
def test_kernels_that_move_data_between_ranks_are_known(name):
    """Libraries' kernels and hand-written ones are collectives by their names."""
    assert is_collective_kernel(name)


@given(st.from_regex(_COLLECTIVE_KERNEL))
@settings(max_examples=300)
def test_every_name_of_the_rule_is_looked_for(name):
    """What is left out before the search has no name that it would find, in capitals or not."""
    assert is_collective_kernel(f"_{name}") is (_COLLECTIVE_KERNEL.search(f"_{name}") is not None)


@pytest.mark.parametrize("name", COMPUTE_KERNELS)
def test_kernels_that_compute_are_no_collectives(name):
    """Reductions in one device, gathers, synchronised batch norm and fused kernels compute."""
    assert not is_collective_kernel(name)


def _work(tmp_path, *events):
    return [WorkKind(code) for code in load_trace(write(tmp_path, document(events))).work.tolist()]


@pytest.mark.parametrize(
    ("cat", "work"),
    [
        ("python_function", WorkKind.HOST),
        ("cpu_op", WorkKind.HOST),
        ("Operator", WorkKind.HOST),
        ("cuda_runtime", WorkKind.HOST),
        ("Runtime", WorkKind.HOST),
        ("mtia_runtime", WorkKind.HOST),
        ("cuda_driver", WorkKind.HOST),
        ("kernel", WorkKind.COMPUTE),
        ("Kernel", WorkKind.COMPUTE),
        ("mtia_ccp_events", WorkKind.COMPUTE),
        ("gpu_memcpy", WorkKind.MEMORY),
        ("Memcpy", WorkKind.MEMORY),
        ("gpu_memset", WorkKind.MEMORY),
        ("Memset", WorkKind.MEMORY),
        ("collective_comm", WorkKind.COMMUNICATION),
        ("user_annotation", WorkKind.NOTHING),
        ("gpu_user_annotation", WorkKind.NOTHING),
        ("cuda_sync", WorkKind.NOTHING),
        ("Trace", WorkKind.NOTHING),
        ("overhead", WorkKind.NOTHING),
        ("mtia_insight", WorkKind.NOTHING),
        ("from the future", WorkKind.NOTHING),
    ],
)
def test_category_decides_what_an_event_is_for(tmp_path, cat, work):
    """Every category of every age has its class of work; what no one knows is none."""
    assert _work(tmp_path, event("f", cat=cat)) == [work]


def test_an_unknown_category_on_a_stream_is_compute(tmp_path):
    """What a device of the future ran on a stream is work of that device, and a collective by its name."""
    args = {"device": 0, "stream": 3}
    events = [event(name, cat="npu_kernel", args=args) for name in ("gemm", "ncclAllReduce")]
    assert _work(tmp_path, *events) == [WorkKind.COMPUTE, WorkKind.COMMUNICATION]


@pytest.mark.parametrize("cat", ["overhead", "mtia_insight", "cuda_event", "cuda_sync", "gpu_user_annotation"])
def test_rows_of_the_profiler_are_no_work_even_on_a_stream(tmp_path, cat):
    """Marks and waits that name a stream occupy nothing."""
    assert _work(tmp_path, event("f", cat=cat, args={"device": 0, "stream": 3})) == [WorkKind.NOTHING]


def test_a_device_that_waits_does_not_work(tmp_path):
    """MTIA records a queue's waits in the category of its kernels."""
    columns = load_trace(
        write(tmp_path, document([event(name, cat="mtia_ccp_events", tid=7) for name in ("event_wait", "pe_exe")]))
    )
    assert columns.work.tolist() == [WorkKind.NOTHING, WorkKind.COMPUTE]
    assert columns.on_device.tolist() == [False, True]


def test_copies_of_a_collective_stay_memory(tmp_path):
    """Only kernels become communication by name or argument; a copy is a copy, an operator host work."""
    args = {"Collective name": "allreduce"}
    events = [event("ncclKernel", cat=cat, args=args) for cat in ("gpu_memcpy", "cpu_op", "cuda_runtime", "kernel")]
    assert _work(tmp_path, *events) == [WorkKind.MEMORY, WorkKind.HOST, WorkKind.HOST, WorkKind.COMMUNICATION]


@pytest.mark.parametrize("name", ["gloo:all_reduce", "mpi:broadcast", "ucc:barrier"])
def test_host_collectives_are_communication_on_threads_of_their_own(tmp_path, name):
    """The annotation spans the transfer on the backend's thread; where collectives are called it is a mark only."""
    call = event("c10d::allreduce_", cat="cpu_op", tid=1)
    marks = [event(name, cat="user_annotation", tid=tid) for tid in (1, 2)]
    assert _work(tmp_path, call, *marks) == [WorkKind.HOST, WorkKind.NOTHING, WorkKind.COMMUNICATION]


@pytest.mark.parametrize("name", ["gloo:recv", "gloo:send", "ucc:recv", "mpi:Send"])
def test_sends_and_receives_of_a_host_are_communication_where_they_are_called(tmp_path, name):
    """They have no thread of their own: the annotation spans the transfer, from the call to its end."""
    call = event("c10d::recv_", cat="cpu_op", tid=1)
    transfer = event(name, cat="user_annotation", tid=1)
    assert _work(tmp_path, call, transfer) == [WorkKind.HOST, WorkKind.COMMUNICATION]


def test_launches_of_device_collectives_are_marks(tmp_path):
    """The annotation nccl:all_reduce spans the launch: the kernel is the communication."""
    assert _work(tmp_path, event("nccl:all_reduce", cat="user_annotation", tid=9)) == [WorkKind.NOTHING]
