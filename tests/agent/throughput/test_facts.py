"""What a rank tells of itself, for devices that this machine does not have: modules with the names torch gives them."""

import sys
from types import SimpleNamespace

import pytest

from lockstep.agent.throughput.facts import collect
from lockstep.agent.throughput.flops import ModelFlops
from lockstep.agent.throughput.options import read_options
from lockstep.contracts.facts import facts_from_json


def make_torch(*, cuda="", hip=None, npu="", precision="ieee"):
    """Return a stand-in with the parts of torch's interface that are asked, for a process on such a device."""
    matmul = SimpleNamespace(fp32_precision=precision)
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=None if hip else "13.0", hip=hip),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)),
        cuda=SimpleNamespace(
            is_initialized=lambda: bool(cuda), current_device=lambda: 3, get_device_name=lambda index: {3: cuda}[index]
        ),
        npu=SimpleNamespace(
            is_initialized=lambda: bool(npu), current_device=lambda: 1, get_device_name=lambda index: {1: npu}[index]
        ),
    )


def make_flops(dtype="", **settings):
    flops = ModelFlops(read_options(settings), lambda _flag: None, lambda: 0)
    flops.dtype = dtype
    return flops


@pytest.fixture
def collected(monkeypatch):
    """Return a function that gives the facts of a process with such a torch and FLOPs."""

    def collect_with(torch, flops):
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.distributed", None)
        return facts_from_json(collect(flops), where="here")

    return collect_with


@pytest.mark.parametrize(
    ("torch", "seen", "expected"),
    [
        ({"cuda": "NVIDIA H200"}, "bf16", ("NVIDIA H200", "cuda", "bf16", 989.5e12)),
        ({"cuda": "NVIDIA H200", "precision": "tf32"}, "fp32", ("NVIDIA H200", "cuda", "tf32", 494.5e12)),
        ({"cuda": "NVIDIA H200"}, "fp32", ("NVIDIA H200", "cuda", "fp32", 67e12)),
        ({"cuda": "NVIDIA H200"}, "", ("NVIDIA H200", "cuda", "", None)),
        ({"cuda": "AMD Instinct MI300X", "hip": "7"}, "bf16", ("AMD Instinct MI300X", "rocm", "bf16", 1307.4e12)),
        ({"npu": "Ascend910A"}, "fp16", ("Ascend910A", "npu", "fp16", 256e12)),
        ({"cuda": "NVIDIA Z9000"}, "bf16", ("NVIDIA Z9000", "cuda", "bf16", None)),
        ({}, "bf16", ("cpu", "cpu", "bf16", None)),
    ],
)
def test_device_and_peak(collected, torch, seen, expected):
    """The device that training has started gives name and peak; a device that it has not is not touched."""
    facts = collected(make_torch(**torch), make_flops(seen))
    assert (facts.device, facts.device_kind, facts.dtype, facts.peak_flops_per_second) == expected


def test_a_process_without_torch_says_what_it_knows(collected):
    """With the framework-neutral API the host is the device."""
    facts = collected(None, lambda _samples, _tokens: 0)
    assert (facts.device, facts.torch_version, facts.flops_source, facts.parameters) == ("cpu", "", "none", None)


def test_a_name_that_no_label_can_hold_is_made_fit(collected):
    """A driver's odd or endless name is cut and cleaned, never refused by the exporter."""
    facts = collected(make_torch(cuda="NVIDIA\tX\n" + "é" * 200), make_flops("bf16"))
    assert facts.device.startswith("NVIDIA X é")
    assert len(facts.device.encode()) <= 128
