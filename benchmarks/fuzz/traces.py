"""Small valid Kineto traces: two steps of a rank with stacks, kernels, collectives, collections, the agent's notes."""

import json
from functools import cache
from typing import Any

_BASE_NS = 1_790_857_026_000_000_000
_PID, _THREAD, _STREAM = 7, 11, 20
_STEP_US = 10_000.0
Event = dict[str, Any]


@cache
def documents() -> tuple[bytes, ...]:
    """Return the traces: with a device and stacks, on a CPU with gloo, and one of another layout without a base."""
    return (
        _document([*_host(), *_device()], with_notes=True),
        _document([*_host(), *_gloo()], with_notes=False),
        json.dumps([*_host()[:12]]).encode(),
    )


def _document(events: list[Event], *, with_notes: bool) -> bytes:
    whole: dict[str, Any] = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": _BASE_NS,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "computeMajor": 9}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": 1,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [0, 1]}],
        },
        "traceEvents": events,
        "traceName": "trace.json",
    }
    if with_notes:
        whole["lockstep"] = {
            "version": 2,
            "unix_minus_monotonic_ns": _BASE_NS,
            "collections": [[2_000_000, 2_500_000, 2]],
        }
    return json.dumps(whole, indent=1).encode()


def _event(
    name: str, category: str, start_us: float, duration_us: float, tid: int = _THREAD, **arguments: Any
) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": _PID,
        "tid": tid,
        "ts": start_us,
        "dur": duration_us,
        "args": arguments,
    }


def _host() -> list[Event]:
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": _PID, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {
            "ph": "M",
            "name": "thread_name",
            "pid": _PID,
            "tid": _THREAD,
            "ts": 0,
            "args": {"name": "thread 11 (python)"},
        },
    ]
    for step in range(2):
        at = 100.0 + step * _STEP_US
        calls = [
            ("train.py(9): train", 0, 9900),
            ("train.py(20): forward", 100, 4000),
            ("data.py(3): read", 8000, 1500),
        ]
        events.append(_event(f"ProfilerStep#{step + 5}", "user_annotation", at, _STEP_US - 10))
        events += [
            _event(name, "python_function", at + start, length, **{"Python id": number, "Python parent id": 0})
            for number, (name, start, length) in enumerate(calls)
        ]
        events += [
            _event(
                name,
                "cpu_op",
                at + start,
                length,
                **{
                    "External id": 10 * step + number,
                    "Input Dims": [[64, 64], [64, 64]],
                    "Input type": ["float", "float"],
                },
            )
            for number, (name, start, length) in enumerate(
                [("aten::mm", 200, 900), ("aten::add", 1200, 300), ("autograd::engine::evaluate_function", 4200, 1800)]
            )
        ]
        events.append(_event("[gc] generation 2", "python_function", at + 6500, 400))
        events.append(_event("Optimizer.step#SGD.step", "user_annotation", at + 7000, 800))
    return events


def _device() -> list[Event]:
    events = []
    for step in range(2):
        at, flow = 100.0 + step * _STEP_US, 100 + step
        launch = {"correlation": flow, "External id": 10 * step}
        occupancy = {"blocks per SM": 4.272727, "est. achieved occupancy %": 27}
        events += [
            _event("cudaLaunchKernel", "cuda_runtime", at + 250, 10, **launch),
            _event(
                "ampere_sgemm_64x64", "kernel", at + 400, 2500, _STREAM, device=0, stream=_STREAM, **launch, **occupancy
            ),
            _event(
                "Memcpy HtoD",
                "gpu_memcpy",
                at + 3000,
                200,
                _STREAM,
                device=0,
                stream=_STREAM,
                bytes=1 << 20,
                correlation=flow + 50,
            ),
            _event("cudaDeviceSynchronize", "cuda_runtime", at + 6000, 400, correlation=flow + 60),
            _event(
                "ncclDevKernel_AllReduce_Sum_f32",
                "kernel",
                at + 4500,
                1500,
                _STREAM + 1,
                device=0,
                stream=_STREAM + 1,
                correlation=flow + 70,
                **{
                    "Collective name": "allreduce",
                    "In msg nelems": 4096,
                    "Out msg nelems": 4096,
                    "Group size": 2,
                    "dtype": "Float",
                    "Process Group Name": "0",
                    "Process Group Ranks": "[0, 1]",
                },
            ),
            {"ph": "s", "id": flow, "pid": _PID, "tid": _THREAD, "ts": at + 250, "cat": "ac2g", "name": "ac2g"},
            {
                "ph": "f",
                "id": flow,
                "pid": _PID,
                "tid": _STREAM,
                "ts": at + 400,
                "cat": "ac2g",
                "name": "ac2g",
                "bp": "e",
            },
        ]
    return events


def _gloo() -> list[Event]:
    return [_event("gloo:all_reduce", "user_annotation", 4600.0 + step * _STEP_US, 1500, 12) for step in range(2)] + [
        _event("c10d::allreduce_", "cpu_op", 4500.0 + step * _STEP_US, 100) for step in range(2)
    ]
