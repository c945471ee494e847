"""What a trace shows of its training decides which advice it gets."""

from lockstep.contracts.finding import CPU, Finding
from lockstep.diagnosis.context import (
    COMPILED,
    SMALL_OPTIMIZER,
    SMALL_OPTIMIZER_KERNELS,
    UNFUSED_ATTENTION,
    context_of,
    with_context,
)
from lockstep.diagnosis.remedies import advise_finding
from lockstep.trace.columns import ANNOTATION, KERNEL, OPERATOR, RUNTIME
from tests.trace.made import columns_of, made

US = 1000
ATTENTION = ("aten::bmm", "aten::add", "aten::_softmax", "aten::dropout", "aten::bmm")


def operators(*names, thread=1):
    return [made(name, OPERATOR, thread, at * 10 * US, 5 * US) for at, name in enumerate(names)]


def optimizer(kernels, *, name="aten::addcdiv_"):
    """Return a step of the optimizer that launches so many kernels."""
    events = [made("Optimizer.step#Adam.step", ANNOTATION, 1, 0, 10_000 * US), made(name, OPERATOR, 1, 1, 50)]
    for at in range(kernels):
        begin = (10 + 10 * at) * US
        events += [
            made("cudaLaunchKernel", RUNTIME, 1, begin, 3 * US, correlation=at + 1),
            made("k", KERNEL, 9, begin + 5 * US, US, stream=7, correlation=at + 1),
        ]
    return events


def context(events):
    return context_of(columns_of(events))


def suggestions(finding, events):
    advised = advise_finding(with_context(finding, context(events)), 100)
    return [each.suggestion for each in advised.advice]


def test_attention_of_single_operators_is_seen_by_its_order():
    """Product, softmax, product on one thread; a softmax of a loss, or products alone, are none."""
    assert UNFUSED_ATTENTION in context(operators(*ATTENTION))
    assert UNFUSED_ATTENTION not in context(operators("aten::bmm", "aten::bmm", "aten::_softmax"))
    assert UNFUSED_ATTENTION not in context(operators("aten::bmm") + operators("aten::_softmax", "aten::bmm", thread=2))
    assert UNFUSED_ATTENTION not in context(operators("aten::scaled_dot_product_attention"))


def test_an_optimizer_of_many_kernels_is_seen_unless_it_is_fused():
    """A hundred launches in a step; fewer are a foreach one's."""
    assert SMALL_OPTIMIZER in context(optimizer(SMALL_OPTIMIZER_KERNELS))
    assert SMALL_OPTIMIZER not in context(optimizer(SMALL_OPTIMIZER_KERNELS - 1))
    assert SMALL_OPTIMIZER not in context(optimizer(SMALL_OPTIMIZER_KERNELS, name="aten::_fused_adam_"))
    assert context([]) == ()


def test_launches_get_the_advice_that_fits():
    """Compiled code becomes a graph; what is not compiled is; a small optimizer is fused, attention is one kernel."""
    slow = Finding(bottleneck=CPU, cause="dispatch", ranks=(0,), evidence=(), subject="small kernels", lost_ns=50)
    compiled = operators("Torch-Compiled Region: 0/0")
    assert COMPILED in context(compiled)
    (graph,) = suggestions(slow, compiled)
    assert graph.startswith("Replay the compiled code as a CUDA graph")
    (fuse,) = suggestions(slow, operators("aten::mul"))
    assert fuse.startswith("Fuse the operators that follow each other")
    assert any(each.startswith("Let the optimizer update") for each in suggestions(slow, optimizer(200)))
    assert any(each.startswith("Compute attention in one kernel") for each in suggestions(slow, operators(*ATTENTION)))


def test_products_in_fp32_and_attention_get_theirs_on_a_device_that_is_the_bottleneck():
    """Tensor cores for the products, one kernel for attention."""
    low = Finding(bottleneck="compute", cause="underutilised", ranks=(0,), evidence=(), subject="aten::mm", lost_ns=50)
    fp32 = with_context(low, ("matrix in fp32",))
    assert any(each.startswith("Compute matrix products") for each in suggestions(fp32, []))
    assert not any(each.startswith("Compute matrix products") for each in suggestions(low, []))
    assert any(each.startswith("Compute attention in one kernel") for each in suggestions(low, operators(*ATTENTION)))
