"""Parses an event's name: its kind, and the name under which two ranks' events are the same call.

Frames are `file(line): function`, modules `nn.Module: Class_3`, annotations whatever torch or the user wrote.
"""

import re
from functools import lru_cache

from lockstep.trace.columns import OPERATOR

PYTHON_KIND = "python"
OPERATOR_KIND = "operator"
DATA_KIND = "data"
COMMUNICATION_KIND = "communication"
GC_KIND = "gc"
KINDS = (PYTHON_KIND, OPERATOR_KIND, DATA_KIND, COMMUNICATION_KIND, GC_KIND)

NAME_MAX_CHARS = 120
"""Template-heavy builtins have names of a kilobyte, and 120 characters distinguish any two that a reader would."""

_LOOKED_AT_CHARS = 1024  # of a name that a hostile file made a megabyte long
_GC_NAME = "Python GC"  # torch 2.9 and later, with stacks and record_python_gc_info
_LOADER_PREFIX = "enumerate(DataLoader)#"
_COMMUNICATION_PREFIXES = ("c10d::", "_c10d_functional::", "gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "hccl:")
_COMMUNICATION_NAMES = ("record_param_comms",)

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_INSTANCE = re.compile(r"^(nn\.Module: .+)_\d+$")
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_HCCL = re.compile(r"^(hcom_[A-Za-z0-9]+?)_*__\d+_\d+(?:_\d+)?(?:@.*)?$", re.ASCII)
_MICRO_BATCH = re.compile(r"^(Forward|Backward) \d+$", re.ASCII)  # GPipe of torch.distributed.pipelining
_ACTIONS_PREFIX = "PP:"  # its schedules of several stages a rank: stage, kind, micro-batch
_ACTION_NUMBER = re.compile(r"(?<=[A-Z_])\d+", re.ASCII)
_WRAPPED = re.compile(r"(?:void )?cutlass::Kernel2?<(\w+)")  # its kernel is all that the template is about
_LABEL_CHARS = 48  # rocBLAS and cuDNN write all tuning parameters into a name
_ABSOLUTE = re.compile(r"^/(?:[^/(]+/)*([^/(]+/[^/(]+\(\d+\): )")


def kind_of(name: str, category: str) -> str:
    """Return one of `KINDS`."""
    if name == _GC_NAME:
        return GC_KIND
    if name.startswith(_LOADER_PREFIX):
        return DATA_KIND
    if name.startswith(_COMMUNICATION_PREFIXES) or name in _COMMUNICATION_NAMES:
        return COMMUNICATION_KIND
    return OPERATOR_KIND if category == OPERATOR else PYTHON_KIND


def kernel_label(name: str) -> str:
    """Return a kernel's name without return type, namespaces, template and call arguments, for a headline."""
    name = name[:_LOOKED_AT_CHARS].replace("(anonymous namespace)::", "")
    wrapped = _WRAPPED.match(name)
    label = wrapped[1] if wrapped else _outside_of_brackets(name).removeprefix("void ").rsplit("::", 1)[-1]
    return _cut(label or tidy(name), _LABEL_CHARS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _outside_of_brackets(name: str) -> str:
    depth, outside = 0, []
    for character in name:
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth = max(depth - 1, 0)
        elif not depth:
            outside.append(character)
    return "".join(outside).strip()


def tidy(name: str) -> str:
    """Return `name` without what differs between machines and instances.

    Addresses, instance numbers, the group and number of HCCL's operators, and the micro-batch of torch's pipeline
    schedules go; installed files keep the path below
    their library, other absolute paths their last two parts; relative ones (torch strips what stands in sys.path) stay.
    """
    return _tidied(name[:_LOOKED_AT_CHARS])


@lru_cache(maxsize=8192)
def _tidied(name: str) -> str:
    name = _ADDRESS.sub("", name)
    name = _INSTANCE.sub(r"\1", name)
    name = _HCCL.sub(r"\1", name)
    name = _MICRO_BATCH.sub(r"\1", name)
    name = _ACTION_NUMBER.sub("", name) if name.startswith(_ACTIONS_PREFIX) else name
    name = _INSTALLED.sub("", name)
    name = _ABSOLUTE.sub(r"\1", name)
    return _cut(name, NAME_MAX_CHARS)
