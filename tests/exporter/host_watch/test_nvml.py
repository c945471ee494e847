"""A library in libnvidia-ml's place; none of this was run on a device."""

import ctypes

from exporter.host_watch.device_counters import MEMORY, NVLINK, SM
from exporter.host_watch.host_reading import Target
from exporter.host_watch.nvml import FieldValue, ProcessInfo, open_nvml
from exporter.host_watch.sampler import ResourceSampler
from tests.exporter.host_watch.nvml_library import NvmlLibrary

MS = 1_000_000
RANK, OTHER, HOST_ONLY = (Target(run="r", rank=rank, ring="/nowhere", pid=pid) for rank, pid in enumerate((70, 71, 72)))


def refuse(_name):
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")


def test_a_node_without_the_driver_has_no_devices():
    """No library, or one that cannot start."""
    assert open_nvml(refuse) is None
    library = NvmlLibrary([[]], [(0, 0)])
    library.nvmlInit_v2 = lambda: 9  # the driver is not loaded
    assert open_nvml(lambda _: library) is None


def test_structures_have_the_sizes_of_the_library():
    """nvml.h on 64 bits: what is wrong here writes beyond our memory."""
    assert (ctypes.sizeof(ProcessInfo), ctypes.sizeof(FieldValue)) == (24, 40)
    assert FieldValue.value.offset == 32


def test_a_process_is_on_the_device_that_runs_it():
    """By the driver's list, whatever number CUDA gives the device; one on two devices is on neither."""
    devices = open_nvml(lambda _: NvmlLibrary([[71, 9], [70, 9]], [(0, 0), (0, 0)]))
    assert devices.device_by_pid() == {71: 0, 70: 1}


def test_what_the_driver_refuses_is_absent():
    """Utilisation under MIG, links of a card without any, processes of an old driver."""
    devices = open_nvml(lambda _: NvmlLibrary([[70]], [None], links_kib=None))
    assert (devices.utilization(0), devices.nvlink_bytes(0)) == (None, None)

    class OldLibrary(NvmlLibrary):
        nvmlDeviceGetComputeRunningProcesses_v3 = property()  # noqa: N815

    assert open_nvml(lambda _: OldLibrary([[70]], [(1, 1)])).device_by_pid() == {}


def test_a_capture_samples_the_device_of_each_rank(tmp_path):
    """Shares of time stay shares; links are held against the most that they were seen to move; then the driver is free."""
    library = NvmlLibrary([[OTHER.pid], [RANK.pid]], [(10, 5), (80, 40)])
    now_ns, found = [1_000_000_000], []

    def pause(_seconds):
        now_ns[0] += 10 * MS
        if len(found) == 5:
            now_ns[0] += 1 << 40  # the capture is over
        found.append(library.users)
        library.utilization[1] = (80, 40) if len(found) % 2 else (20, 0)
        library.links_kib = (1000 * len(found), 500 * len(found))

    sampler = ResourceSampler(
        root=tmp_path, clock_ns=lambda: now_ns[0], pause=pause, open_devices=lambda: open_nvml(lambda _: library)
    )
    sampler.note_capture([RANK, OTHER, HOST_ONLY])
    if sampler._thread is not None:
        sampler._thread.join(30)
    assert (found[0], library.users) == (1, 0)
    mine = sampler.series("r", 0, 1_000_000_000, 1_050_000_000, offset_ns=0)
    assert mine[SM].ratios[:4] == [0.8, 0.2, 0.8, 0.2]
    assert mine[MEMORY].ratios[:4] == [0.4, 0.0, 0.4, 0.0]
    assert mine[NVLINK].ratios[:4] == [1.0] * 4
    assert sampler.series("r", 1, 1_000_000_000, 1_050_000_000, offset_ns=0)[SM].ratios[:4] == [0.1] * 4
    assert sampler.series("r", 2, 1_000_000_000, 1_050_000_000, offset_ns=0) == {}
