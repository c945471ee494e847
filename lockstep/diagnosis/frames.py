"""Classifies names of call-tree nodes: which are frames, and whose code they are."""

import re
import sys

from lockstep.contracts.messages import CallNode
from lockstep.trace.names import OPERATOR_KIND, PYTHON_KIND

_FRAME = re.compile(r"^(?P<file>[^()]+)\((?P<line>\d+)\): (?P<function>.+)$")
_BUILTIN_PREFIX = "<built-in "

_FRAMEWORKS = frozenset(
    (  # noqa: SIM905 - forty words in four lines rather than in forty
        "accelerate apex datasets deepspeed einops fairscale flash_attn fsspec huggingface_hub ignite lightning "
        "lightning_fabric lightning_utilities lockstep multiprocess numpy pandas peft pyarrow pytorch_lightning "
        "safetensors scipy streaming tokenizers torch torch_xla torchao torchaudio torchdata torchvision tqdm "
        "transformer_engine transformers triton wandb webdataset xformers PIL _distutils_hack pkg_resources setuptools"
    ).split()
)
"""Packages that training uses but whose code its author rarely edits. torch strips the path to site-packages from frame
names, so installed packages cannot be distinguished from user code by path; packages not listed count as user code."""

_LIBRARIES = _FRAMEWORKS | sys.stdlib_module_names


_OWN_FILES = re.compile(r"(^|/)(lockstep/agent/|torch/autograd/profiler\.py|torch/profiler/)")
_OWN_OPERATIONS = ("_record_function_enter", "_record_function_exit")
"""What the agent adds to a captured step: its own frames, those of torch's profiler, and the mark of each step."""


def is_own(name: str) -> bool:
    """Whether a name belongs to a frame or operation of the agent or the profiler, which is never a culprit."""
    match = _FRAME.match(name)
    if match is not None:
        return _OWN_FILES.search(match["file"]) is not None
    return any(operation in name for operation in _OWN_OPERATIONS)


def is_frame(node: CallNode) -> bool:
    """Whether `node` is a Python function with a file and a line."""
    return node.kind == PYTHON_KIND and is_frame_name(node.name)


def is_frame_name(name: str) -> bool:
    """Whether a name is that of a Python function with a file and a line."""
    return _FRAME.match(name) is not None


def is_user_frame(node: CallNode) -> bool:
    """Whether `node` is a function of the user's own code: not of the standard library, torch or a framework."""
    return node.kind == PYTHON_KIND and is_user_name(node.name)


def is_user_name(name: str) -> bool:
    """Whether a name is that of a Python function of the user's own code."""
    match = _FRAME.match(name)
    if match is None or match["file"].startswith("<"):
        return False
    top = match["file"].lstrip("./").split("/", 1)[0].removesuffix(".py")
    return top not in _LIBRARIES


def is_operation(node: CallNode) -> bool:
    """Whether `node` is work without a Python line of its own: an operator or a builtin."""
    return node.kind == OPERATOR_KIND or node.name.startswith(_BUILTIN_PREFIX)


def readable(name: str) -> str:
    """Format a frame as its function with file and line; other names are unchanged."""
    match = _FRAME.match(name)
    return f"{match['function']} ({match['file']}:{match['line']})" if match else name


def short_name(name: str) -> str:
    """Return the function of a frame, or `name` itself, for use in a sentence."""
    match = _FRAME.match(name)
    return match["function"] if match else name
