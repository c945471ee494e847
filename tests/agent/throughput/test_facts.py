"""What a rank reports of itself, for devices that this machine does not have: modules with the names torch gives them."""

import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest

from lockstep.agent.throughput.facts import collect
from lockstep.agent.throughput.flops import ModelFlopsReporter
from lockstep.agent.throughput.options import read_options
from lockstep.contracts.facts import RankFacts, facts_from_json

UUID = "576ef18e-b48f-c787-e91d-f93658b27b8e"


class FakeUuid:
    """What torch gives for a UUID: an object whose text is one, without the GPU of other tools before it."""

    def __init__(self, text):
        self._text = text

    def __str__(self):
        return self._text


def make_torch(*, cuda="", hip=None, npu="", precision="ieee", uuid=UUID):
    """Return a stand-in with the parts of torch's interface that are asked, for a process on such a device.

    `uuid` is what the properties of the current device have; None where this torch does not report it.
    """
    matmul = SimpleNamespace(fp32_precision=precision)
    properties = SimpleNamespace() if uuid is None else SimpleNamespace(uuid=FakeUuid(uuid))
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=None if hip else "13.0", hip=hip),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)),
        cuda=SimpleNamespace(
            is_initialized=lambda: bool(cuda),
            current_device=lambda: 3,
            get_device_name=lambda index: {3: cuda}[index],
            get_device_properties=lambda index: {3: properties}[index],
        ),
        npu=SimpleNamespace(
            is_initialized=lambda: bool(npu),
            current_device=lambda: 1,
            get_device_name=lambda index: {1: npu}[index],
            get_device_properties=lambda index: {1: properties}[index],
        ),
    )


def make_flops(dtype="", **settings):
    flops = ModelFlopsReporter(read_options(settings), lambda _flag: None, lambda: 0)
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


def test_a_process_without_torch_reports_what_it_knows(collected):
    """With the framework-neutral API the host is the device."""
    facts = collected(None, None)
    assert (facts.device, facts.torch_version, facts.flops_source, facts.parameters) == ("cpu", "", "none", None)


def test_a_name_that_no_label_can_hold_is_made_fit(collected):
    """A driver's odd or endless name is cut and cleaned, never refused by the exporter."""
    facts = collected(make_torch(cuda="NVIDIA\tX\n" + "é" * 200), make_flops("bf16"))
    assert facts.device.startswith("NVIDIA X é")
    assert len(facts.device.encode()) <= 128


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ({"cuda": "NVIDIA H200"}, f"GPU-{UUID}"),
        ({"cuda": "NVIDIA H200", "uuid": f"GPU-{UUID.upper()}"}, f"GPU-{UUID}"),
        ({"cuda": "NVIDIA H200", "uuid": None}, ""),
        ({"cuda": "NVIDIA H200", "uuid": "None"}, ""),
        ({"cuda": "NVIDIA H200", "uuid": "00000000-0000-0000-0000-000000000000"}, ""),
        ({"cuda": "NVIDIA H200", "uuid": f"{UUID}\n"}, ""),
        ({"cuda": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, ""),
        ({"cuda": "AMD Instinct MI300X", "hip": "7"}, ""),
        ({"npu": "Ascend910B2C"}, ""),
        ({}, ""),
    ],
)
def test_uuid(collected, torch, expected):
    """The current device's UUID as DCGM exporter writes it; nothing where it would be another's, or none at all."""
    assert collected(make_torch(**torch), make_flops("bf16")).device_uuid == expected


def test_a_device_that_is_lost_has_no_uuid_and_harms_nothing(collected):
    """A driver's error while the properties are asked for leaves the other facts as they are."""

    def fail(_index):
        raise RuntimeError("CUDA error: unspecified launch failure")

    torch = make_torch(cuda="NVIDIA H200")
    torch.cuda.get_device_properties = fail
    facts = collected(torch, make_flops("bf16"))
    assert (facts.device, facts.device_uuid) == ("NVIDIA H200", "")


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_a_device_that_training_has_not_started_is_not_asked(collected, kind):
    """Where nothing is initialised, no function that would initialise it is called."""
    torch = make_torch()
    module = getattr(torch, kind)
    asked = []
    for name in ("current_device", "get_device_name", "get_device_properties"):
        setattr(module, name, lambda *_, name=name: asked.append(name))
    assert collected(torch, make_flops("bf16")).device == "cpu"
    assert asked == []


@pytest.mark.parametrize(
    ("variables", "prefixes"),
    [
        ({}, ("", "")),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/srv/a_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/srv/b_"}, ("/srv/a_", "")),
        (
            {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/srv/b_", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/srv/p_"},
            ("/srv/b_", "/srv/p_"),
        ),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/" * 129, "TORCH_FR_DEBUG_INFO_PIPE_FILE": "/srv/\n"}, ("", "")),
    ],
)
def test_the_files_of_the_flight_recorder_are_those_that_the_training_names(
    collected, monkeypatch, variables, prefixes
):
    """NCCL's own names of the variables too; a path that no label holds is none."""
    for name in ("FR_DUMP_TEMP", "NCCL_DEBUG_INFO_TEMP", "FR_DEBUG_INFO_PIPE", "NCCL_DEBUG_INFO_PIPE"):
        monkeypatch.delenv(f"TORCH_{name}_FILE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    facts = collected(make_torch(), None)
    assert (facts.flight_recorder, facts.flight_recorder_pipe) == prefixes


def test_facts_are_the_fields_of_rank_facts():
    """The agent writes them without the class, so nothing else holds their names together."""
    assert list(collect(None)) == [field.name for field in fields(RankFacts)]
