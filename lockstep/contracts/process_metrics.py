"""The metrics of each service about its own process, named as in every Prometheus client library."""

from lockstep.contracts.metric import Level, Metric, Type


def _process(name: str, type_: Type, help_: str, level: Level = "default") -> Metric:
    return Metric(name=f"process_{name}", type=type_, help=help_, source="both", level=level)


PROCESS: tuple[Metric, ...] = (  # texts as in every client library: Prometheus shows one for all its targets
    _process("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", "full"),
    _process("resident_memory_bytes", "gauge", "Resident memory size in bytes.", "minimal"),
    _process("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
    _process("cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", "minimal"),
    _process("max_fds", "gauge", "Maximum number of open file descriptors."),
    _process("open_fds", "gauge", "Number of open file descriptors."),
)
