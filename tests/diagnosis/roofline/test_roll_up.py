"""Many operators as one finding, and none where the device is not what holds the step."""

import pytest

from lockstep.contracts.finding import COMPUTE, Finding, NotEvaluated
from lockstep.diagnosis.remedies import advise_finding
from lockstep.diagnosis.roofline.roll_up import roll_up

WINDOW_NS = 1000


def operator(name, lost_ns, *, cause="underutilised", context=()):
    return Finding(
        bottleneck=COMPUTE,
        cause=cause,
        ranks=(0,),
        evidence=(f"{name} holds much", f"{name} reaches little", "its shapes"),
        subject=name,
        lost_ns=lost_ns,
        context=context,
    )


MANY = [operator(f"op{at}", at) for at in (10, 40, 30, 20, 5)]


def test_operators_of_one_cause_are_one_finding():
    """The three that lose most are named, the others counted, and their losses are one."""
    (found,) = roll_up(MANY, window_ns=WINDOW_NS, computing_ns=900)
    assert found.subject == "op40, op30, op20 and 2 more"
    assert found.lost_ns == 105
    assert found.evidence[:2] == ("op40 holds much", "op40 reaches little")


@pytest.mark.parametrize(("computing_ns", "evaluated"), [(499, False), (500, True)])
def test_a_device_that_stands_still_is_not_blamed(computing_ns, evaluated):
    """Where it computes in less than half of the window faster operators would not shorten the step."""
    found = roll_up(MANY, window_ns=WINDOW_NS, computing_ns=computing_ns)
    assert isinstance(found, NotEvaluated) is not evaluated
    assert roll_up([], window_ns=WINDOW_NS, computing_ns=0) == []


def test_little_is_left_out():
    """Together below 5 % of the window they are not worth it; a loss that no one knows is kept."""
    few = [operator("a", 25), operator("b", 24)]
    bound = operator("c", None, cause="memory_bound")
    assert roll_up([*few, bound], window_ns=WINDOW_NS, computing_ns=900) == [bound]
    assert len(roll_up([*few, operator("d", 1)], window_ns=WINDOW_NS, computing_ns=900)) == 1


def test_advice_depends_on_what_loses_most():
    """A fourth product in fp32 does not make tensor cores the advice for three that are on them."""
    many = [operator(f"op{at}", at, context=("matrix in tf32",)) for at in (40, 30, 20)]
    (found,) = roll_up([*many, operator("op5", 5, context=("matrix in fp32",))], window_ns=WINDOW_NS, computing_ns=900)
    assert found.context == ("matrix in tf32",)
    assert not any("tensor cores" in each.suggestion for each in advise_finding(found, WINDOW_NS).advice)


@pytest.mark.parametrize(
    ("context", "suggestions"),
    [
        (("elementwise in bf16",), ["Fuse aten::mul with its neighbours"]),
        (("matrix in bf16",), ["Use a lower precision in aten::mul", "Fuse aten::mul with its neighbours"]),
        (
            ("elementwise in fp32", "optimizer in small kernels"),
            [
                "Fuse aten::mul with its neighbours",
                "Partition optimizer states, gradients and parameters over the replicas",
            ],
        ),
    ],
)
def test_advice_for_what_the_memory_binds(context, suggestions):
    """Autocast leaves elementwise operators alone, and ZeRO helps the optimizer's."""
    bound = operator("aten::mul", None, cause="memory_bound", context=context)
    assert [each.suggestion for each in advise_finding(bound, WINDOW_NS).advice] == suggestions


@pytest.mark.parametrize(
    ("subject", "context", "with_words", "without_words"),
    [
        ("aten::mm", ("matrix in fp32",), "TF32", "torch.compile"),
        ("aten::mm", ("matrix in bf16",), "larger batches", "TF32"),
        (
            "aten::bmm, aten::_softmax",
            ("matrix in bf16", "elementwise in bf16", "attention in single operators"),
            "scaled_dot_product_attention",
            "TF32",
        ),
        ("aten::mul", ("elementwise in bf16",), "torch.compile", "TF32"),
        ("aten::mul", ("elementwise in bf16", "compiled code"), "larger batches", "torch.compile"),
        ("aten::mul", ("elementwise in bf16", "vendor nvidia"), "torch.compile", "torch_npu"),
    ],
)
def test_advice_fits_the_operators_and_the_code(subject, context, with_words, without_words):
    """fp32 products get TF32, softmax between products fused attention; compiled code is not to be compiled."""
    advised = advise_finding(operator(subject, 100, context=context), WINDOW_NS)
    how = " ".join(each.how for each in advised.advice)
    assert with_words in how
    assert without_words not in how


def test_launching_compiled_code_calls_for_a_graph():
    """CUDA graphs for what is compiled, fusing for what is not."""
    slow = Finding(bottleneck="cpu", cause="dispatch", ranks=(0,), evidence=(), subject="k + k", lost_ns=100)
    (fuse, *_) = advise_finding(slow, WINDOW_NS).advice
    assert "Fuse the operators" in fuse.suggestion
    compiled = Finding(
        bottleneck="cpu", cause="dispatch", ranks=(0,), evidence=(), lost_ns=100, context=("compiled code",)
    )
    suggestions = [each.suggestion for each in advise_finding(compiled, WINDOW_NS).advice]
    assert any("CUDA graph" in each for each in suggestions)
    assert not any("Fuse the operators" in each for each in suggestions)
