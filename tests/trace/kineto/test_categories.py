import pytest

from lockstep.trace import columns
from lockstep.trace.kineto import categories
from lockstep.trace.kineto.load import load_trace
from tests.trace.traces import document, event, write


@pytest.mark.parametrize(
    ("category", "today"),
    [
        ("Operator", columns.OPERATOR),
        ("Kernel", columns.KERNEL),
        ("Runtime", columns.RUNTIME),
        ("Memcpy", columns.COPY),
        ("Memset", columns.FILL),
        ("cuda_runtime", columns.RUNTIME),
        ("mtia_runtime", columns.RUNTIME),
        ("xpu_runtime", columns.RUNTIME),
        ("privateuse1_runtime", columns.RUNTIME),
        ("hpu_op", columns.RUNTIME),
        ("xpu_driver", columns.DRIVER),
        ("mtia_ccp_events", columns.KERNEL),
        ("GCU_MEMCPY", columns.COPY),
        ("mlu_memset", columns.FILL),
        ("GCU_USER_ANNOTATION", columns.DEVICE_ANNOTATION),
        ("user_annotation", columns.ANNOTATION),
        ("gpu_user_annotation", columns.DEVICE_ANNOTATION),
        ("xpu_sync", columns.SYNC),
        ("python_function", columns.PYTHON),
        ("Trace", "Trace"),
        ("", ""),
    ],
)
def test_categories_have_todays_names(category, today):
    """Every name that libkineto or a fork of it ever wrote has one of today's; what no one knows stays."""
    assert categories.today(category) == today


def test_annotations_of_2021_are_annotations(tmp_path):
    """Steps, loaders and optimizers had the category of operators; operators keep it, and so do today's."""
    names = [
        "ProfilerStep#3",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#SGD.step",
        "nccl:all_reduce",
        "aten::mm",
        "my ProfilerStep#3",
    ]
    events = [*(event(name, cat="Operator") for name in names), event("ProfilerStep#4", cat="cpu_op")]
    found = load_trace(write(tmp_path, document(events)))
    assert [found.categories[code] for code in found.category] == [columns.ANNOTATION] * 4 + [columns.OPERATOR] * 3
