"""The framework's counters of device memory: when they are read, and what becomes of a torch that has none."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.agent.device.memory_counters import INTERVAL_NS, DeviceMemoryCounters

STATS = {"reserved_bytes": {"all": {"current": 70}}, "allocated_bytes": {"all": {"current": 60, "peak": 65}}}


def torch_with(**cuda: Any) -> SimpleNamespace:
    properties = SimpleNamespace(total_memory=100)
    offered = {
        "is_initialized": lambda: True,
        "memory_stats_as_nested_dict": lambda: STATS,
        "current_device": lambda: 0,
        "get_device_properties": lambda _: properties,
    }
    return SimpleNamespace(cuda=SimpleNamespace(**(offered | cuda)))


def polled(monkeypatch: pytest.MonkeyPatch, torch: Any, *times_ns: int) -> list[tuple[int, int, int, int]]:
    monkeypatch.setitem(sys.modules, "torch", torch)
    counters, stored = DeviceMemoryCounters(), []
    for now_ns in times_ns:
        counters.poll(now_ns, stored.append)
    return stored


def test_the_counters_are_read_once_a_second(monkeypatch: pytest.MonkeyPatch):
    """Stores of marks come ten times a second."""
    begin = 10**15
    assert polled(monkeypatch, torch_with(), begin, begin + INTERVAL_NS - 1) == [(70, 60, 65, 100)]
    assert polled(monkeypatch, torch_with(), begin, begin + INTERVAL_NS) == [(70, 60, 65, 100)] * 2


def test_a_device_that_is_not_in_use_is_not_begun_for_this(monkeypatch: pytest.MonkeyPatch):
    """The first call of torch.cuda would make a context of hundreds of MiB."""

    def refuse() -> None:
        pytest.fail("read before the training used the device")

    torch = torch_with(is_initialized=lambda: False, memory_stats_as_nested_dict=refuse)
    assert polled(monkeypatch, torch, 10**15) == []
    assert polled(monkeypatch, None, 10**15) == []


@pytest.mark.parametrize(
    "cuda",
    [
        pytest.param({"memory_stats_as_nested_dict": dict}, id="other names"),
        pytest.param({"memory_stats_as_nested_dict": lambda: None}, id="nothing"),
        pytest.param({"get_device_properties": lambda _: SimpleNamespace()}, id="no size"),
    ],
)
def test_a_torch_without_these_counters_is_asked_once(monkeypatch: pytest.MonkeyPatch, cuda: dict[str, Any]):
    """Training goes on without the figure."""
    asked = []
    first = cuda.get("memory_stats_as_nested_dict", lambda: STATS)

    def read() -> Any:
        asked.append(1)
        return first()

    torch = torch_with(**(cuda | {"memory_stats_as_nested_dict": read}))
    assert polled(monkeypatch, torch, 10**15, 10**15 + INTERVAL_NS) == []
    assert len(asked) == 1


def test_the_torch_at_hand_offers_what_is_read():
    """By name; without a device none of them can be called."""
    import torch  # noqa: PLC0415

    assert not [name for name in vars(torch_with().cuda) if not callable(getattr(torch.cuda, name, None))]
