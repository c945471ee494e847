"""Summaries as `lockstep analyze --json` writes them: a job with a slow loader on one rank, and what else one wants."""

import random

WINDOW_NS = 412_345_678
SLOW = 5
LOADER = "dataset.py(88): __getitem__"
GEMM = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
DEVICE = "NVIDIA A100-SXM4-80GB"
STEPS = 6

_ROOFS = {
    "bf16": {"flops_per_second": 312e12, "bytes_per_second": 2.039e12},
    "tf32": {"flops_per_second": 156e12, "bytes_per_second": 2.039e12},
}
_OPERATORS = (
    ("aten::mm", 310.0, 241e12, 71, "compute_bound"),
    ("aten::addmm", 255.0, 214e12, 52, "underutilised"),
    ("aten::bmm", 64.0, 71e12, 21, "underutilised"),
    ("aten::_flash_attention_forward", 180.0, 158e12, 33, "underutilised"),
    ("aten::layer_norm", 0.9, 1.71e12, 12, "memory_bound"),
    ("aten::gelu", 0.5, 0.94e12, 9, "memory_bound"),
    ("aten::add_", 0.17, 0.31e12, 8, "memory_bound"),
    ("aten::dropout", 0.21, 0.22e12, 5, "underutilised"),
    ("aten::_softmax", 1.3, 1.4e12, 4, "underutilised"),
    ("aten::embedding_dense_backward", 0.08, 0.02e12, 3, "underutilised"),
)
_FUNCTIONS = (
    ("compute", (), GEMM, 0.34, 0.86),
    ("compute", (), "flash_fwd_kernel", 0.11, 0.71),
    ("memory", (), "Memcpy HtoD (Pinned -> Device)", 0.02, 0.42),
    ("collective", (), ALL_REDUCE, 0.17, 0.64),
    ("host", ("train.py(31): main", "loader.py(12): batches"), LOADER, 0.03, 0.91),
    ("host", ("train.py(31): main",), "optim.py(204): step", 0.06, 0.33),
)


def ranks_points():
    """Return the operators on the roofline of each rank."""
    return _OPERATORS


def breakdown(window_ns, chance, *, free=0.0):
    """Return classes in whole ns that sum to the window; `free` of it goes to free time and waiting."""
    shares = [0.34, 0.09, 0.08, 0.41]
    weights = [share * (1 - free) * chance.uniform(0.96, 1.04) for share in shares]
    compute, communication, host, overlap = (int(weight * window_ns) for weight in weights)
    return {
        "compute_ns": compute,
        "communication_ns": communication,
        "host_ns": host,
        "overlap_ns": overlap,
        "free_ns": window_ns - compute - communication - host - overlap,
        "memory_ns": compute // 19,
        "overlap_ratio": overlap / window_ns,
        "compute_communication_overlap_ratio": 0.19 * (1 - free),
    }


def rank(number, chance, *, is_slow=False):
    """Return one rank; the slow one loads its data itself while its device has nothing to do."""
    window_ns = WINDOW_NS + chance.randrange(300_000)
    loading = 0.23 if is_slow else 0.01
    path = {
        ("compute", GEMM): 0.36 - loading / 2,
        ("communication", ALL_REDUCE): 0.17 - loading / 4,
        ("compute", "flash_fwd_kernel"): 0.11,
        ("host", LOADER): loading,
        ("host", "optim.py(204): step"): 0.06,
        ("host", "cudaLaunchKernel"): 0.05,
        ("memory", "Memcpy HtoD (Pinned -> Device)"): 0.02,
        ("compute", "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"): 0.06,
        ("gap", "launch latency"): 0.04,
        ("idle", "thread 4821"): 0.05,
    }
    entries = [{"name": name, "class": kind, "ns": int(share * window_ns)} for (kind, name), share in path.items()]
    entries.sort(key=lambda each: -each["ns"])
    entries.append({"name": "(rest)", "class": "other", "ns": window_ns - sum(each["ns"] for each in entries)})
    slow = 1.31 if is_slow else 1.0
    return {
        "rank": number,
        "host": f"node-{number // 8:03d}",
        "path": f"traces/rank{number}.pt.trace.json.gz",
        "vendor": "nvidia",
        "devices": [DEVICE],
        "window_ns": window_ns,
        "steps": {
            "source": "ProfilerStep",
            "count": STEPS,
            "numbers": list(range(120, 120 + STEPS)),
            "duration_ns": [],
        },
        "breakdown": breakdown(window_ns, chance, free=loading),
        "steps_breakdown": [breakdown(window_ns // STEPS, chance, free=loading) for _ in range(STEPS)],
        "critical_path": entries,
        "critical_path_guessed_ratio": 0.031 if is_slow else 0.012,
        "collectives": [
            collective("allreduce", "dp0", 48, int(window_ns * (0.17 - loading / 4)), 52_428_800),
            collective("all_gather", "tp0", 96, int(window_ns * 0.05), 8_388_608),
        ],
        "patterns": [
            {
                "function": name,
                "stack": list(stack),
                "class": kind,
                "beta": (loading if name == LOADER else beta) * chance.uniform(0.95, 1.05),
                "mu": mu * chance.uniform(0.97, 1.03),
                "sigma": 0.04,
            }
            for kind, stack, name, beta, mu in _FUNCTIONS
        ],
        "roofline": {"device": DEVICE, "roofs": _ROOFS, "points": [point(each, slow, chance) for each in _OPERATORS]},
        "components": None,
        "findings": [],
        "not_evaluated": [{"rule": "frequency", "reason": "no clock was sampled", "ranks": [number]}],
    }


def collective(name, group, count, total_ns, size):
    return {
        "name": name,
        "group": group,
        "count": count,
        "total_ns": total_ns,
        "shortest_ns": total_ns // count // 2,
        "bytes": size,
        "bus_bandwidth_bytes_per_second": size * 1.75 / (total_ns / count / 1e9),
    }


def point(operator, slow, chance):
    name, intensity, flops, share, bound = operator
    reached = flops / slow * chance.uniform(0.97, 1.0)
    return {
        "name": name,
        "intensity": intensity,
        "flops_per_second": reached,
        "bytes_per_second": reached / intensity,
        "time_ns": int(share * 1_000_000 * slow),
        "bound": bound,
    }


def finding(cause="data_processing", *, ranks=(SLOW,), gain=0.217, bottleneck="io", subject=LOADER, **more):
    """Return a finding with one remedy."""
    return {
        "bottleneck": bottleneck,
        "cause": cause,
        "ranks": list(ranks),
        "subject": subject,
        "evidence": [
            "the loader holds the training thread for 89.5 ms of 412.3 ms, 14.9 ms a step (limit 10 ms)",
            "most of it outside calls that read: 81.2 ms in json.loads",
        ],
        "advice": [
            {
                "suggestion": f"Load batches in worker processes: {subject} runs on the training thread",
                "how": "DataLoader(..., num_workers=4, persistent_workers=True, prefetch_factor=4)",
                "predicted_gain_ratio": gain,
                "source": "Hermes, Table 4: I/O, slow data processing (num_workers)",
            },
            {
                "suggestion": "Make reading cheaper: local storage, no zip or tar archives",
                "how": "decode and tokenise once, offline",
                "predicted_gain_ratio": None,
                "source": "Hermes, Table 4: I/O, slow data reading and processing",
            },
        ],
        "predicted_gain_ratio": gain,
        "lost_ns": None if gain is None else int(gain * WINDOW_NS),
        "confidence": "high",
    } | more


def advice(suggestion, how, gain):
    return {"suggestion": suggestion, "how": how, "predicted_gain_ratio": gain, "source": "Hermes, Table 4"}


def groups(ranks, slow=SLOW):
    """Return a data-parallel group that waits for the slow rank, and tensor-parallel pairs that wait for no one."""
    members = list(range(ranks))
    blame = {str(number): 0.92 if number == slow else 0.08 / (ranks - 1) for number in members[:64]}
    found = [
        {"kind": "dp", "group": "dp0", "ranks": members, "r_wait_ratio": 0.274, "blame": blame, "slowest_rank": slow}
    ]
    for first in range(0, min(ranks, 8), 2):
        blame = {str(first): 0.52, str(first + 1): 0.48}
        pair = {
            "kind": "tp",
            "group": f"tp{first // 2}",
            "ranks": [first, first + 1],
            "r_wait_ratio": 0.031 + first / 200,
        }
        found.append(pair | {"blame": blame, "slowest_rank": first})
    return found


def summary(ranks=8, *, slow=SLOW, seed=7):
    """Return the summary of a whole job."""
    chance = random.Random(seed)
    waiting = finding(
        "waiting_for_straggler",
        gain=0.221,
        bottleneck="communication",
        subject="dp0",
        evidence=["the ranks of dp0 wait 27% of their time, 92% of it for rank 5, which came last 44 of 48 times"],
        advice=[],
    )
    small = finding(
        "small_packets",
        ranks=(0, 1),
        gain=0.012,
        bottleneck="communication",
        subject="tp0",
        evidence=["96 of 98 transfers of SDMA are below 512 KiB (limit: half of them)"],
        advice=[
            advice("Merge small messages", "bucket_cap_mb=100", 0.012),
            advice("Take the other algorithm", "HCCL_ALGO", None),
        ],
    )
    bound = finding(
        "compute_bound",
        ranks=range(ranks),
        gain=None,
        bottleneck="compute",
        subject="aten::mm",
        evidence=["aten::mm reaches 241 of 312 TFLOP/s, 77% of the roof"],
        advice=[advice("Compute in a smaller number format", "transformer_engine.pytorch.fp8_autocast", None)],
        confidence="medium",
    )
    return {
        "format": 1,
        "tool": "lockstep analyze 0.1.0",
        "ranks": [rank(number, chance, is_slow=number == slow) for number in range(ranks)],
        "collectives": [],
        "groups": groups(ranks, slow),
        "localisation": [
            {
                "function": LOADER,
                "stack": ["train.py(31): main", "loader.py(12): batches"],
                "class": "host",
                "ranks": [slow],
                "outliers": [],
                "differences": [
                    "beta 0.23 above 0.01 (expected range) on 1 worker",
                    "beta 0.23 above 0.0098 (peers) on 1 worker",
                ],
                "lost_ns": 89_500_000,
            }
        ],
        "findings": [waiting, finding(ranks=(slow,)), small, bound],
        "not_evaluated": [
            {"rule": "environment", "reason": "no self-test of the nodes was given", "ranks": []},
            {"rule": "frequency", "reason": "no clock was sampled", "ranks": list(range(8))},
        ],
        "skipped": [{"path": "traces/rank8.pt.trace.json.gz", "error": "trace: got the end of the file, expected ]"}],
    }
