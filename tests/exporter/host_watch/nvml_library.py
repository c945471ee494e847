# ruff: noqa: N802  (the library's own names)
"""libnvidia-ml's answers without a device: the functions that `nvml` calls, with the library's signatures."""

from exporter.host_watch.nvml import NVLINK_SENT_KIB, SUCCESS

NOT_SUPPORTED = 3


class NvmlLibrary:
    """Devices with processes and, for each, (SM per cent, memory per cent) or None where the query is refused."""

    def __init__(self, processes, utilization, *, links_kib=(0, 0)) -> None:
        self.processes, self.utilization, self.links_kib = processes, utilization, links_kib
        self.users = 0

    def nvmlInit_v2(self):
        self.users += 1
        return SUCCESS

    def nvmlShutdown(self):
        self.users -= 1
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.processes)
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = 1000 + index.value
        return SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, infos):
        pids = self.processes[handle.value - 1000]
        assert count._obj.value >= len(pids)
        count._obj.value = len(pids)
        for info, pid in zip(infos, pids, strict=False):
            info.pid = pid
        return SUCCESS

    def nvmlDeviceGetUtilizationRates(self, handle, found):
        shares = self.utilization[handle.value - 1000]
        if shares is None:
            return NOT_SUPPORTED
        found._obj.gpu, found._obj.memory = shares
        return SUCCESS

    def nvmlDeviceGetFieldValues(self, handle, count, values):
        assert handle.value >= 1000
        for each in values[: count.value]:
            if self.links_kib is None:
                each.status = NOT_SUPPORTED
            else:
                each.value = self.links_kib[each.field_id != NVLINK_SENT_KIB]
        return SUCCESS
