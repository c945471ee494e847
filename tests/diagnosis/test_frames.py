import pytest

from lockstep.contracts.messages import CallNode
from lockstep.diagnosis import frames


def _node(name, kind="python"):
    return CallNode(parent=-1, name=name, kind=kind, total_ns=1, self_ns=1, count=1)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("train.py(60): forward", True),
        ("examples/gpt/train_gpt.py(80): read_document", True),
        ("proj/model.py(3): <lambda>", True),
        ("megatron/core/pipeline.py(1): forward_step", True),
        ("torch/optim/adam.py(214): step", False),
        ("transformers/trainer.py(1): training_step", False),
        ("lockstep/agent/hooks/data.py(3): __next__", False),
        ("multiprocessing/queues.py(98): get", False),
        ("threading.py(1002): _bootstrap", False),
        ("<frozen importlib._bootstrap>(241): _call_with_frames_removed", False),
        ("<string>(1): <module>", False),
        ("<built-in function sleep>", False),
        ("nn.Module: Block", False),
        ("Optimizer.step#AdamW.step", False),
    ],
)
def test_user_frames(name, user):
    """Only functions of files that are neither the standard library's nor a framework's are the user's."""
    assert frames.is_user_frame(_node(name)) is user


def test_an_operator_is_no_frame_whatever_its_name():
    """The kind decides before the name."""
    assert not frames.is_frame(_node("train.py(60): forward", "operator"))
    assert frames.is_frame(_node("torch/optim/adam.py(214): step"))


def test_operations():
    """Operators and builtins do work that no Python line does; frames do not."""
    assert frames.is_operation(_node("aten::mm", "operator"))
    assert frames.is_operation(_node("<built-in method matmul of type object>"))
    assert not frames.is_operation(_node("train.py(60): forward"))


def test_short_names_are_for_sentences():
    """A frame is called by its function, anything else by its name."""
    assert frames.short_name("a/train.py(60): forward") == "forward"
    assert frames.short_name("aten::mm") == "aten::mm"
