"""Facts about this rank, stored once after its first step: the device, its peak, the model's size and format.

Device UUIDs are untested on devices: what torch reports follows from torch 2.13's sources (csrc/cuda/Module.cpp).
"""

import os
import re
import sys
from typing import Any

from lockstep.agent.throughput.flops import ModelFlopsReporter
from lockstep.agent.throughput.options import ThroughputOptions, read_options
from lockstep.agent.throughput.precision import allows_tf32
from lockstep.contracts.limits import NAME_MAX_BYTES

HOST = ("cpu", "cpu")
"""Device and kind of a process that has touched none. A host has no peak here: what it can do is not published so."""


_UUID = re.compile(r"(?!0{8}-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SLICE = re.compile(r"\bMIG\b")


def collect(
    model: ModelFlopsReporter | None, mark_writer: str = "", kernels: tuple[str, str] = ("", ""), stacks: str = ""
) -> dict[str, Any]:
    """Return the JSON form of `contracts.facts.RankFacts`, without loading that class (80 KiB).

    `model` knows its FLOPs, where there is torch.

    `kernels` are those in front of collectives: what they are written in, and why not in C++. `stacks` is
    `StackDumps.fact`.

    Never starts a device that training has not started.
    """
    torch: Any = sys.modules.get("torch")
    options = read_options(os.environ)
    name, kind = HOST if torch is None else _device(torch)
    dtype = _dtype(torch, "" if model is None else model.dtype, kind, options)
    return {
        "device": _label(name),
        "device_kind": kind,
        "dtype": dtype,
        "peak_flops_per_second": options.peak_flops or _peak(name, dtype),
        "parameters": None if model is None else model.parameters,
        "flops_source": "none" if model is None else model.source,
        "torch_version": "" if torch is None else _label(str(torch.__version__)),
        "backend": _backend(),
        "device_uuid": _uuid(torch, name) if kind == "cuda" else "",
        "mark_writer": mark_writer,
        "collective_kernels": kernels[0],
        "collective_kernels_reason": _label(kernels[1]),
        "stacks": stacks,
        "flight_recorder": _path_prefix("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        "flight_recorder_pipe": _path_prefix("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE"),
    }


def _peak(device: str, dtype: str) -> float | None:
    """Return the device's peak; the table is loaded only where there is a device."""
    if device == HOST[0]:
        return None
    from lockstep.contracts.peaks import peak_flops_per_second  # noqa: PLC0415  (as above)

    return peak_flops_per_second(device, dtype)


def _path_prefix(first: str, second: str) -> str:
    """Return what one of two variables holds, empty where the training has set neither, or a text too long."""
    prefix = os.environ.get(first) or os.environ.get(second, "")
    return prefix if prefix.isprintable() and len(prefix.encode(errors="replace")) <= NAME_MAX_BYTES else ""


def _device(torch: Any) -> tuple[str, str]:
    """Return name and kind of the device that this process trains on."""
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_initialized():
        return str(npu.get_device_name(npu.current_device())), "npu"
    if torch.cuda.is_initialized():
        kind = "rocm" if torch.version.hip else "cuda"
        return str(torch.cuda.get_device_name(torch.cuda.current_device())), kind
    return HOST


def _uuid(torch: Any, name: str) -> str:
    """Return the UUID of the NVIDIA device that this process trains on as DCGM writes it, empty where unknown.

    Others stay without: ROCm's are characters of a serial number, which torch prints as if they were digits; those of
    Ascend are 16 bytes of its runtime, and how npu-exporter's `vdie_id`, 20 bytes of the chip, follows is unknown; and
    DCGM counts a MIG slice under the UUID of its whole device, which a process in the slice does not see.
    """
    if _SLICE.search(name):
        return ""
    try:
        text = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid).lower()
    except (AttributeError, RuntimeError):  # an older torch does not report it
        return ""
    text = text.removeprefix("gpu-")
    return f"GPU-{text}" if _UUID.fullmatch(text) else ""


def _dtype(torch: Any, seen: str, kind: str, options: ThroughputOptions) -> str:
    if options.dtype is not None:
        return options.dtype
    return "tf32" if seen == "fp32" and kind == "cuda" and allows_tf32(torch) else seen


def _backend() -> str:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    return _label(str(distributed.get_backend()))


def _label(text: str) -> str:
    """Return `text` as it may stand in a label."""
    printable = "".join(part if part.isprintable() else " " for part in text)
    return printable.encode(errors="replace")[:NAME_MAX_BYTES].decode(errors="ignore")
