import pytest

from lockstep.trace import names


@pytest.mark.parametrize(
    ("name", "tidy"),
    [
        ("train.py(60): forward", "train.py(60): forward"),
        ("torch/nn/modules/linear.py(130): forward", "torch/nn/modules/linear.py(130): forward"),
        ("/home/u/jobs/gpt/model/block.py(12): forward", "model/block.py(12): forward"),
        ("/train.py(1): main", "/train.py(1): main"),
        ("/opt/env/lib/python3.11/site-packages/a/b/c.py(3): f", "a/b/c.py(3): f"),
        ("/usr/lib/python3.11/threading.py(10): run", "threading.py(10): run"),
        ("/usr/lib/python3/dist-packages/numpy/core.py(1): f", "numpy/core.py(1): f"),
        ("nn.Module: Linear_3", "nn.Module: Linear"),
        ("nn.Module: Block_2_12", "nn.Module: Block_2"),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f4fecba7000>",) * 2,
        ("aten::add_", "aten::add_"),
        ("Forward 12", "Forward"),
        ("Backward 0", "Backward"),
        ("Forward 2 of 3", "Forward 2 of 3"),
        ("PP:0F1", "PP:0F"),
        ("PP:(0F12;1B3)OVERLAP_F_B", "PP:(0F;1B)OVERLAP_F_B"),
    ],
)
def test_names_lose_machine_and_instance_only(name, tidy):
    """Two ranks' names of one call are equal, and what distinguishes calls stays."""
    assert names.tidy(name) == tidy.replace(" at 0x7f4fecba7000", "")


def test_long_names_are_cut():
    """A name of a megabyte costs no megabyte, nor the time of one."""
    assert len(names.tidy("/" + "a/" * 500_000 + "b.py(1): f")) == names.NAME_MAX_CHARS


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("train.py(60): forward", "python_function", "python"),
        ("aten::add", "cpu_op", "operator"),
        ("Python GC", "python_function", "gc"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", "data"),
        ("Optimizer.step#AdamW.step", "user_annotation", "python"),
        ("c10d::allreduce_", "cpu_op", "communication"),
        ("nccl:all_reduce", "user_annotation", "communication"),
        ("record_param_comms", "cpu_op", "communication"),
    ],
)
def test_kinds(name, category, kind):
    """Kind follows from name and category, and is one that messages may carry."""
    assert names.kind_of(name, category) == kind
    assert kind in names.KINDS


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, Array<char*, 1>)",
            "vectorized_elementwise_kernel",
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>(int)",
            "vectorized_layer_norm_kernel",
        ),
        ("volta_sgemm_128x128_nt", "volta_sgemm_128x128_nt"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32>(cutlass_80_simt::Params)",
            "cutlass_80_simt_sgemm_128x32",
        ),
        (
            "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x128_MI16",
            "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_M…",
        ),
        ("aten::mm", "mm"),
        ("<(", "<("),
    ],
)
def test_a_kernels_label_is_without_templates(name, label):
    """Headlines name the kernel, not its C++ type."""
    assert names.kernel_label(name) == label


@pytest.mark.parametrize("number", ["868_0_1", "868_17", "023_4_2@9128731"])
def test_hccl_operators_are_alike_on_all_ranks(number):
    """Group and sequence number differ between ranks and steps; the operation is the function."""
    assert names.tidy(f"hcom_allReduce__{number}") == "hcom_allReduce"
    assert names.tidy("hcom_allReduce_by_hand") == "hcom_allReduce_by_hand"
