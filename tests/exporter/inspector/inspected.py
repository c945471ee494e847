"""Lines as the plugin's JSON mode writes them (format 4.2)."""

import json
from typing import Any


def line(
    rank: int = 0,
    *,
    sequence: int = 1,
    time_us: Any = 100,
    ranks: int = 4,
    pid: int = 100,
    hostname: str = "worker-0",
    communicator: str = "0x8f1c",
    name: str = "dp",
    operation: str = "AllReduce",
    **perf: Any,
) -> bytes:
    """Return the line of one collective; `perf` replaces its fields."""
    document = {
        "header": {"id": communicator, "comm_name": name, "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.2",
            "git_rev": "git-unknown",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_752_867_229_276_459,
            "hostname": hostname,
            "pid": pid,
        },
        "coll_perf": {
            "coll": operation,
            "coll_algo": "RING",
            "coll_proto": "SIMPLE",
            "coll_sn": sequence,
            "coll_msg_size_bytes": 1 << 20,
            "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 10.5,
            "coll_busbw_gbs": 20.0,
            **perf,
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()
