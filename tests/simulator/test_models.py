"""Transformers and vision models against published figures."""

import pytest

from lockstep.simulator.models.transformers import gpt, llama, moe
from lockstep.simulator.models.vision import from_profile, resnet50, vgg19

SC21 = [
    (2304, 24, 24, 1.65),
    (3072, 30, 32, 3.56),
    (4096, 36, 32, 7.47),
    (6144, 40, 48, 18.45),
    (8192, 48, 64, 39.10),
    (10240, 60, 80, 76.05),
    (12288, 80, 96, 145.62),
    (16384, 96, 128, 310.13),
    (20480, 105, 128, 529.60),
    (25600, 128, 160, 1008.04),
]


@pytest.mark.parametrize(("hidden", "layers", "heads", "billions"), SC21)
def test_gpt_has_the_published_parameters_and_flops(hidden, layers, heads, billions):
    """Parameters and 72Bslh^2(1 + s/6h + V/12lh) FLOPs of Narayanan et al. 2021, table 1."""
    s, vocabulary = 2048, 51200
    model = gpt(layers=layers, hidden=hidden, heads=heads, sequence=s, vocabulary=vocabulary)
    flops = 72 * s * layers * hidden**2 * (1 + s / (6 * hidden) + vocabulary / (12 * layers * hidden))
    assert model.parameters / 1e9 == pytest.approx(billions, abs=5e-3)
    assert model.flops_per_sample == pytest.approx(flops, rel=1e-12)


def test_other_transformers_have_the_published_parameters():
    """Llama 2 7B and 70B and Mixtral 8x7B, to the parameter."""
    small = llama(layers=32, hidden=4096, heads=32, sequence=4096, ffn=11008)
    large = llama(layers=80, hidden=8192, heads=64, kv_heads=8, sequence=4096, ffn=28672)
    mixture = moe(layers=32, hidden=4096, heads=32, kv_heads=8, sequence=4096, ffn=14336, experts=8)
    assert [small.parameters, large.parameters, mixture.parameters] == [6738415616, 68976648192, 46702792704]


def test_a_token_uses_only_its_experts():
    """With eight experts of which two are chosen, wide layers cost what two cost and weigh what eight do."""
    sizes = {"layers": 1, "hidden": 64, "heads": 4, "sequence": 16, "ffn": 256}
    dense = llama(**sizes)
    mixture = moe(**sizes, experts=8, chosen=2)
    wide = 3 * 2 * 16 * 64 * 256 * 3
    router = 3 * 2 * 16 * 64 * 8
    assert mixture.flops_per_sample - dense.flops_per_sample == wide + router
    assert mixture.parameters - dense.parameters == 7 * 3 * 64 * 256 + 64 * 8


def test_vision_models_have_the_published_size():
    """VGG19 and ResNet-50 to the parameter, and their multiplications: 19.6 and 4.1 billion."""
    assert [vgg19().parameters, resnet50().parameters] == [143_667_240, 25_557_032]
    assert vgg19().flops_per_sample / 6e9 == pytest.approx(19.63, abs=5e-3)
    assert resnet50().flops_per_sample / 6e9 == pytest.approx(4.09, abs=5e-3)


def test_a_profile_becomes_a_chain():
    """Operators of a profile keep their figures and order."""
    model = from_profile([("a", 10.0, 2.0, 3.0, 4.0), ("b", 20.0, 2.0, 5.0, 4.0)], name="profiled")
    assert [op.name for op in model.operators()] == ["a", "b"]
    assert model.flops_per_sample == 90
    assert model.parameters == 8
