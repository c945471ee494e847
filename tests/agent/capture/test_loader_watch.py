"""Depths of a real DataLoader's queue and what its workers do, as a capture notes them."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lockstep.agent.capture import loader_watch
from lockstep.agent.capture.loader_watch import LoaderWatch

pytestmark = pytest.mark.torch

BATCHES = 12


class Items(Dataset):
    """Each takes `cpu_s` of a core, once `gate` lets it begin."""

    def __init__(self, cpu_s: float, gate=None) -> None:
        self.cpu_s = cpu_s
        self.gate = gate

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.gate is not None:
            self.gate.acquire()
        until = time.process_time() + self.cpu_s
        while time.process_time() < until:
            pass
        return torch.zeros(1)


def batches_of(cpu_s: float, gate=None):
    return iter(DataLoader(Items(cpu_s, gate), batch_size=1, num_workers=1))


def test_slow_workers_leave_the_queue_empty_and_are_busy(monkeypatch):
    """A batch is begun when training asks: none is ready by then, and the worker is seen to work."""
    monkeypatch.setattr(loader_watch, "WORKERS_PERIOD_NS", 0)
    gate = torch.multiprocessing.get_context("fork").Semaphore(0)
    watch, batches = LoaderWatch(), batches_of(0.03, gate)
    watch.begin()
    for _ in range(BATCHES):
        watch.look(batches)
        gate.release()
        next(batches)
    found = watch.end()
    ready = [depth for _, depth, _ in found["depths"]]
    assert ready == [0] * BATCHES
    assert (found["workers"], found["seen"]) == (1, 1)
    assert found["busy_ns"] > 0.03e9 * (BATCHES - 4)


def test_batches_that_are_there_are_counted():
    """Training asks when the worker has made all that it was asked for."""
    watch, batches = LoaderWatch(), batches_of(0.0)
    watch.begin()
    deadline_s = time.monotonic() + 60
    while batches._data_queue.qsize() < batches._tasks_outstanding and time.monotonic() < deadline_s:
        time.sleep(0.01)
    watch.look(batches)
    ((_, ready, outstanding),) = watch.end()["depths"]
    assert (ready, outstanding) == (2, 0)  # prefetch_factor


def test_a_loader_without_workers_has_no_queue():
    """Batches are made when training asks: there is nothing to note."""
    watch = LoaderWatch()
    watch.begin()
    watch.look(iter(DataLoader(Items(0.0), batch_size=1)))
    assert watch.end() is None


def test_a_torch_that_keeps_its_queue_elsewhere_is_not_looked_at_again():
    """Private names may go: training sees nothing of it, and the capture has no depths."""
    watch = LoaderWatch()
    watch.begin()
    watch.look(SimpleNamespace(_workers=[SimpleNamespace(pid=1)]))
    assert not watch.is_on
    assert watch.end() is None


@pytest.mark.parametrize("count", [loader_watch.READINGS_MAX + 5])
def test_depths_are_bounded(count):
    """The notes of a trace are read from its short end."""
    queue = SimpleNamespace(qsize=lambda: 3)
    iterator = SimpleNamespace(
        _workers=[SimpleNamespace(pid=-1)], _task_info={0: (0,), 1: (1, "batch")}, _data_queue=queue,
        _worker_result_queue=queue, _tasks_outstanding=9,
    )  # fmt: skip
    watch = LoaderWatch()
    watch.begin()
    for _ in range(count):
        watch.look(iterator)
    found = watch.end()
    assert len(found["depths"]) == loader_watch.READINGS_MAX
    assert found["depths"][0][1:] == (4, 5)
    assert "busy_ns" not in found
