"""Which columns of op_summary and kernel_details are device counters, and the setting that records each.

A capture has one setting (aic_metrics). Names have a prefix of the core, aic_ (cube) or aiv_ (vector), on devices with
separate cores and none on older ones. Sources: msprof's reference of profile data files and its expected headers,
torch_npu's own tests of them, and recordings.
"""

import re
from enum import StrEnum


class Metrics(StrEnum):
    """What aic_metrics can be set to."""

    PIPE = "PipeUtilization"
    ARITHMETIC = "ArithmeticUtilization"
    MEMORY = "Memory"
    MEMORY_L0 = "MemoryL0"
    MEMORY_UB = "MemoryUB"
    CONFLICT = "ResourceConflictRatio"
    L2_CACHE = "L2Cache"
    ACCESS = "MemoryAccess"


_PREFIX = r"(?:aic_|aiv_|ai_core_)?"
_BANDWIDTH = r"\(GB/s\)"
_TIME = r"\(us\)"
_PATTERNS = {
    Metrics.PIPE: rf"(mac|cube|vec|scalar|mte1|mte2|mte3|fixpipe|mte1_iq|mte2_iq)_(time{_TIME}|ratio)|icache_miss_rate"
    r"|cube_utilization\(%\)|memory_bound|vec_exe_(time\(us\)|ratio)",
    Metrics.ARITHMETIC: r"(mac|cube)_(fp16|int8|fp32|bf16|fp8)_ratio|vec_(fp32|fp16|int32|int16|misc)_ratio"
    r"|(cube|vector|vec)_fops",
    Metrics.MEMORY: rf"(ub|l1|l2|main_mem)_(read|write)_bw{_BANDWIDTH}",
    Metrics.MEMORY_L0: rf"l0[abc]_(read|write)_bw(_cube)?{_BANDWIDTH}",
    Metrics.MEMORY_UB: rf"ub_(read|write)_bw_(vector|scalar){_BANDWIDTH}",
    Metrics.CONFLICT: r"vec_(bankgroup|bank|resc)_cflt_ratio",
    Metrics.L2_CACHE: r"write_cache_(hit|miss_allocate)|r[01]_read_cache_(hit|miss_allocate)"
    r"|(write|read|total)_hit_rate\(%\)",
    Metrics.ACCESS: r"(read|write)_main_memory_datas\(KB\)"
    r"|(GM_to_L1|L1_to_GM|L0C_to_L1|L0C_to_GM|GM_to_UB|UB_to_GM)_(datas\(KB\)|bw_usage_rate\(%\))(\(estimate\))?",
}
_BY_METRICS = {metrics: re.compile(rf"{_PREFIX}(?:{pattern})") for metrics, pattern in _PATTERNS.items()}
_COMMON = re.compile(r"(?:aicore|aic|aiv)_time\(us\)|(?:aic_|aiv_)?total_cycles|(?:aic|aiv)_freq(?:uency)?\(MHz\)")
_NAME_MAX_CHARS = 64


def is_counter(column: str) -> bool:
    """Whether a column of this name is a counter of the device."""
    return _COMMON.fullmatch(column, 0, _NAME_MAX_CHARS) is not None or metrics_of(column) is not None


def metrics_of(column: str) -> Metrics | None:
    """Return the setting that records this counter; None for those that all record, and for other columns."""
    return next((each for each, form in _BY_METRICS.items() if form.fullmatch(column, 0, _NAME_MAX_CHARS)), None)
