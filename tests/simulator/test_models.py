"""Transformers and vision models against published figures."""

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.models.attention import LatentAttention
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


def test_a_wide_layer_without_a_gate_has_two_products():
    """Nemotron 4 15B: 12.5 billion parameters, and 3.2 of embedding and output (Parmar et al. 2024)."""
    sizes = {"layers": 32, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 24576, "sequence": 4096}
    model = llama(**sizes, vocabulary=256_000, gate=False)
    products = 32 * 6144 * (6144 * (1 + 2 / 6) + 6144 + 2 * 24576)
    assert model.parameters == products + 2 * 256_000 * 6144 + (2 * 32 + 1) * 6144
    assert products / 1e9 == pytest.approx(12.5, abs=0.05)


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


def test_deepseek_v3_has_the_published_parameters():
    """671,026,419,200 parameters (its checkpoint without multi-token prediction), less 58 x 256 biases of routers."""
    latent = LatentAttention(kv_rank=512, query_rank=1536, nope_dim=128, rope_dim=64, value_dim=128)
    model = moe(
        layers=61, hidden=7168, heads=128, sequence=4096, ffn=2048, experts=256, chosen=8, shared_ffn=2048,
        dense_layers=3, dense_ffn=18432, latent=latent, vocabulary=129280,
    )  # fmt: skip
    assert model.parameters == 671_026_419_200 - 58 * 256


def test_deepseek_v2_lite_has_queries_from_the_token_itself():
    """15.7 billion parameters: 2,048 features, 16 heads, 64 experts of 1,408, two of them more shared."""
    latent = LatentAttention(kv_rank=512, query_rank=None, nope_dim=128, rope_dim=64, value_dim=128)
    model = moe(
        layers=27, hidden=2048, heads=16, sequence=4096, ffn=1408, experts=64, chosen=6, shared_ffn=2816,
        dense_layers=1, dense_ffn=10944, latent=latent, vocabulary=102400,
    )  # fmt: skip
    queries, down, up, out = 2048 * 16 * 192, 2048 * (512 + 64), 512 * 16 * 256, 16 * 128 * 2048
    attention = queries + down + 512 + up + out + 2 * 2048
    wide = 3 * 2048 * (64 * 1408 + 2816) + 2048 * 64
    assert model.parameters == 27 * attention + 26 * wide + 3 * 2048 * 10944 + 2 * 102400 * 2048 + 2048
    assert model.parameters / 1e9 == pytest.approx(15.7, abs=0.05)


def test_latent_attention_computes_what_its_products_do():
    """Forward FLOPs of one layer by hand: down, up, scores, values, out; heads of 24 for keys and 12 for values."""
    s, h, heads = 16, 64, 4
    latent = LatentAttention(kv_rank=8, query_rank=20, nope_dim=16, rope_dim=8, value_dim=12)
    model = llama(layers=1, hidden=h, heads=heads, sequence=s, ffn=32, latent=latent, vocabulary=10)
    down, up = 2 * s * h * (20 + 8 + 8), 2 * s * heads * (20 * 24 + 8 * (16 + 12))
    core = 2 * s * s * heads * (24 + 12)
    out, wide, head = 2 * s * heads * 12 * h, 2 * s * 3 * h * 32, 2 * s * h * 10
    assert model.flops_per_sample == 3 * (down + up + core + out + wide + head)


QWEN3_30B = {
    "layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "sequence": 4096, "ffn": 768,
    "experts": 128, "chosen": 8, "vocabulary": 151936,
}  # fmt: skip


def test_qwen3_normalizes_queries_and_keys():
    """30,532,122,624 parameters; 36 heads of 128 features a token are read and written once, and in backward 3.5 times."""
    plain, model = moe(**QWEN3_30B), moe(**QWEN3_30B, head_norm=True)
    assert model.parameters == 30_532_122_624
    assert model.parameters - plain.parameters == 48 * 2 * 128
    norms = [op for op in model.operators() if op.name == "head_norm"]
    assert len(norms) == 48
    assert norms[0].moved_elements == 2 * 4096 * (32 + 4) * 128
    assert norms[0].backward_moves_ratio == 3.5
    assert norms[0].stored_input_bytes == 2 * 4096 * (32 + 4) * 128
    assert model.flops_per_sample == plain.flops_per_sample
    dense = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "sequence": 16, "ffn": 64}
    assert llama(**dense, head_norm=True).parameters - llama(**dense).parameters == 2 * 2 * 16


@pytest.mark.parametrize(("padded", "copies"), [(False, 2), (True, 4)])
def test_tokens_of_experts_are_copied_before_and_after_their_products(padded, copies):
    """Each copy reads and writes the features of each chosen expert's token: to sort, and to pad (TEGroupedMLP)."""
    first, second = (
        op for op in moe(**QWEN3_30B, padded_tokens=padded).blocks[1][1].operators() if op.products and op.routing
    )
    for product, outer in ((first, 2048 + 2 * 768), (second, 768 + 2048)):
        assert product.moved_elements == 8 * 4096 * (outer + copies * 2048)
        assert product.backward_moves_ratio is not None
        assert product.moved_elements * product.backward_moves_ratio == pytest.approx(
            8 * 4096 * (2 * outer + copies * 2048)
        )


def test_a_token_is_copied_for_each_expert_before_it_is_sent_and_summed_afterwards():
    """DeepEP and HybridEP read the tokens themselves, and sum what they receive."""
    for shared_ffn in (0, 512):
        layer = moe(**QWEN3_30B, shared_ffn=shared_ffn).blocks[1][1]
        router, combine = (op for op in layer.operators() if op.permuted_elements)
        tokens, copies = 4096 * 2048, 9 * 4096 * 2048
        for op, own, own_backward in ((router, tokens, 5 * tokens), (combine, 3 * tokens * (shared_ffn > 0), 0)):
            direct = op.without_permutation()
            for each, more in ((op, copies), (direct, 0)):
                assert each.moved_elements == own + more
                assert each.backward_moves_ratio is not None
                assert each.moved_elements * each.backward_moves_ratio == pytest.approx(own_backward + more)
            assert direct.permuted_elements == 0
            assert direct.weights == op.weights


def test_the_gate_of_experts_moves_what_that_of_a_dense_layer_does():
    """Three elements a feature in forward; five in backward, which writes the gradients of both inputs."""
    gate = next(op for op in moe(**QWEN3_30B).operators() if op.name == "expert_gate")
    dense = next(
        op for op in llama(layers=1, hidden=64, heads=4, sequence=16, ffn=64).operators() if op.name == "swiglu"
    )
    assert gate.moved_elements == 3 * 8 * 4096 * 768
    assert gate.backward_moves_ratio == dense.backward_moves_ratio == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("flags", "launches"),
    [
        ({}, {"router": (4, 5), "expert1": (2, 3), "expert_gate": (1, None), "expert2": (2, 3), "combine": (1, None)}),
        ({"graphed_router": True}, {"router": (1, 1), "expert1": (2, 3)}),
        ({"padded_tokens": True}, {"router": (4, 5), "expert1": (3, 4), "expert2": (3, 4)}),
    ],
)
def test_the_host_issues_the_kernels_of_a_layer_with_experts(flags, launches):
    """Product, top-k, auxiliary loss and permutation; sort, product; gate; product, sort; the sum over experts."""
    layer = moe(**QWEN3_30B, **flags).blocks[1][1]
    found = {op.name: (op.launches, op.backward_launches) for op in layer.operators()}
    assert {name: found[name] for name in launches} == launches


def test_every_token_passes_shared_experts():
    """They weigh and cost what a dense wide layer of their features does, whatever the number of experts."""
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 16, "ffn": 256, "experts": 8, "chosen": 2}
    alone, shared = moe(**sizes), moe(**sizes, shared_ffn=96)
    assert shared.parameters - alone.parameters == 2 * 3 * 64 * 96
    assert shared.flops_per_sample - alone.flops_per_sample == 2 * 3 * 2 * 16 * 3 * 64 * 96


def test_dense_layers_come_first():
    """Their wide layers have features of their own; blocks keep their names."""
    sizes = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 16, "ffn": 32, "experts": 8}
    model = moe(**sizes, dense_layers=1, dense_ffn=512)
    names = [[op.name for op in block.operators()] for _, block in model.blocks]
    assert ["fc1" in each for each in names] == [False, True, False, False, False, False]
    assert ["router" in each for each in names] == [False, False, True, True, True, False]
    with pytest.raises(ConfigError, match="dense layers"):
        moe(**sizes, dense_layers=5, dense_ffn=512)
