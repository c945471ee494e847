"""Times operators of PyTorch on this machine's device: products, element-wise operators, attention, all-reduces.

The part for CUDA has not been run on a device.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.device_fit import (
    DeviceMeasurements,
    MeasuredAllReduce,
    MeasuredAttention,
    MeasuredCopy,
    MeasuredProduct,
)

CPU, CUDA = "cpu", "cuda"
_REPEATS = 3
_PRODUCT_SHARE, _COPY_SHARE, _ATTENTION_SHARE = 0.5, 0.15, 0.35
"""Of the time: what each kind of operator may take."""
_FIRST_SIZE, _FIRST_BYTES, _FIRST_TOKENS = 256, 1 << 24, 256
_ASPECTS = ((1, 1, 1), (1, 1, 4), (2, 4, 1))
"""Rows, columns and inner dimension of products, in sizes. Every second product is held out, so an odd number of
aspects brings each of them into both halves."""
_SIZES_MAX, _COPIES_MAX, _SEQUENCES_MAX = 5, 6, 6
_COPY_BYTES_MAX = 1 << 30
_LEAST = 4
"""Measurements of a kind that are made whatever they take: two fitted, two held out."""
_HEADS, _HEAD_DIM, _TOKENS = 8, 64, 4096
_ALL_REDUCE_BYTES = (1 << 12, 1 << 24, 1 << 25, 1 << 26)
_SINGLE_BYTES = 4


def measure_device(kind: str, *, seconds: float, width: float, local_ranks: int) -> DeviceMeasurements:
    """Return what operators take on the device `kind` (cpu, cuda) in about `seconds`, elements of `width` bytes.

    With at least two `local_ranks` all-reduces among so many processes of this host are measured as well.

    Raises
    ------
    ConfigError
        PyTorch or the device is missing.
    """
    try:
        import torch  # noqa: PLC0415  (seconds to import)
    except ImportError:
        raise ConfigError("--operators: got no PyTorch, expected it installed here") from None
    if kind == CUDA and not torch.cuda.is_available():
        raise ConfigError(f"--device: got {CUDA}, expected a device that PyTorch finds")
    dtype = torch.float32 if width >= _SINGLE_BYTES else torch.bfloat16
    timer = _Timer(torch, kind)
    return DeviceMeasurements(
        products=list(_products(torch, timer, dtype, seconds * _PRODUCT_SHARE)),
        copies=list(_copies(torch, timer, seconds * _COPY_SHARE)),
        attention=list(_attention(torch, timer, dtype, seconds * _ATTENTION_SHARE)),
        all_reduces=_all_reduces(torch, kind, local_ranks) if local_ranks > 1 else (),
    )


class _Timer:
    """Times calls on one device: the median of a few, after one that is not counted."""

    def __init__(self, torch: Any, kind: str) -> None:
        self.kind = kind
        self._synchronise: Callable[[], None] = torch.cuda.synchronize if kind == CUDA else lambda: None

    def seconds(self, call: Callable[[], Any]) -> float:
        call()
        self._synchronise()
        times = []
        for _ in range(_REPEATS):
            begin_s = time.perf_counter()
            call()
            self._synchronise()
            times.append(time.perf_counter() - begin_s)
        return median(times)


def _within(limit_s: float, sizes: int, *, least: int = _LEAST) -> Iterator[int]:
    """Yield 0, 1, ... while the next may be expected to end within `limit_s`: each takes longer than the one before."""
    begin_s = before_s = time.perf_counter()
    for index in range(sizes):
        now_s = time.perf_counter()
        if index >= least and now_s - begin_s + 4 * (now_s - before_s) > limit_s:
            return
        before_s = now_s
        yield index


def _products(torch: Any, timer: _Timer, dtype: Any, limit_s: float) -> Iterator[MeasuredProduct]:
    """Yield square, deep and wide products of growing size."""
    for index in _within(limit_s, _SIZES_MAX * len(_ASPECTS), least=2 * len(_ASPECTS)):
        size = _FIRST_SIZE << (index // len(_ASPECTS))
        rows, columns, inner = (size * each for each in _ASPECTS[index % len(_ASPECTS)])
        first = torch.randn(rows, inner, device=timer.kind, dtype=dtype)
        second = torch.randn(columns, inner, device=timer.kind, dtype=dtype)
        taken_s = timer.seconds(partial(torch.matmul, first, second.T))
        yield MeasuredProduct(rows=rows, columns=columns, inner=inner, seconds=taken_s)


def _copies(torch: Any, timer: _Timer, limit_s: float) -> Iterator[MeasuredCopy]:
    """Yield sums of two tensors into a third, larger than caches."""
    for index in _within(limit_s, _COPIES_MAX):
        size_bytes = min(_FIRST_BYTES << index, _COPY_BYTES_MAX)
        first = torch.ones(size_bytes // _SINGLE_BYTES, device=timer.kind)
        second, result = torch.ones_like(first), torch.empty_like(first)
        taken_s = timer.seconds(partial(torch.add, first, second, out=result))
        yield MeasuredCopy(moved_bytes=3.0 * size_bytes, seconds=taken_s)


def _attention(torch: Any, timer: _Timer, dtype: Any, limit_s: float) -> Iterator[MeasuredAttention]:
    """Yield both passes of causal attention, from many short sequences to a long one."""
    attend = torch.nn.functional.scaled_dot_product_attention

    def both_passes(heads: list[Any], gradient: Any) -> None:
        torch.autograd.grad(attend(*heads, is_causal=True), heads, gradient)

    for index in _within(limit_s, _SEQUENCES_MAX):
        tokens = _FIRST_TOKENS << index
        shape = (max(1, _TOKENS // tokens), _HEADS, tokens, _HEAD_DIM)
        heads = [torch.randn(shape, device=timer.kind, dtype=dtype, requires_grad=True) for _ in range(3)]
        taken_s = timer.seconds(partial(both_passes, heads, torch.ones_like(heads[0])))
        flops = 2.0 * shape[0] * tokens * tokens * _HEADS * _HEAD_DIM  # two products, of which a mask leaves half
        yield MeasuredAttention(tokens=tokens, flops=flops, seconds=taken_s)


def _all_reduces(torch: Any, kind: str, ranks: int) -> list[MeasuredAllReduce]:
    """Return all-reduces of growing size among `ranks` processes of this host."""
    if kind == CUDA and torch.cuda.device_count() < ranks:
        raise ConfigError(f"--local-ranks: got {ranks}, expected at most {torch.cuda.device_count()} devices")
    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "seconds.json"
        torch.multiprocessing.spawn(_reduce, args=(ranks, kind, name, str(result)), nprocs=ranks)
        taken = json.loads(result.read_text(encoding="utf-8"))
    return [
        MeasuredAllReduce(ranks=ranks, size_bytes=float(size), seconds=seconds)
        for size, seconds in zip(_ALL_REDUCE_BYTES, taken, strict=True)
    ]


def _reduce(rank: int, ranks: int, kind: str, folder: str, result: str) -> None:
    """Run one rank of the all-reduces; rank 0 writes the times."""
    import torch  # noqa: PLC0415  (in its own process)
    import torch.distributed as dist  # noqa: PLC0415

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = f"{CUDA}:{rank}" if kind == CUDA else CPU
    if kind == CUDA:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    backend = "nccl" if kind == CUDA else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    timer = _Timer(torch, kind)
    times = []
    for size in _ALL_REDUCE_BYTES:
        data = torch.zeros(size // _SINGLE_BYTES, device=device)
        times.append(timer.seconds(partial(dist.all_reduce, data)))
    if rank == 0:
        Path(result).write_text(json.dumps(times), encoding="utf-8")
    dist.destroy_process_group()
