"""Layouts by hand-derived numbers: hybrid sharding, experts' own tensor degree, context parallelism, padded words."""

from dataclasses import replace

import pytest

from lockstep.contracts.errors import ConfigError, LockstepError
from lockstep.simulator.hardware.clusters import dgx_h100
from lockstep.simulator.lowering.chunks import compile_chunks
from lockstep.simulator.lowering.context import CONTIGUOUS, RING, ContextParallelism
from lockstep.simulator.lowering.segments import Feature, GradientReduction, Work
from lockstep.simulator.models.transformers import llama, moe
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.spec import load_spec
from lockstep.simulator.strategy.preset import Degrees, preset

LLAMA = llama(layers=2, hidden=1024, heads=16, kv_heads=8, sequence=4096, ffn=2816, vocabulary=32000)
EXPERTS = moe(layers=2, hidden=1024, heads=16, sequence=1024, ffn=512, experts=16, chosen=2)
CLUSTER = dgx_h100(4)
SPEC = """\
model: {type: moe, layers: 4, hidden: 512, heads: 8, sequence: 256, ffn: 256, experts: 8, vocabulary: 1000}
batch: 32
strategy: {dp: 16, zero: 3}
cluster: {preset: DGX H100, nodes: 2}
"""


def part(model, degrees, *, samples=32, **more):
    """Return the one chunk of a job without pipeline, on a device whose host takes no time."""
    device = replace(CLUSTER.device, launch_s=0.0)
    (chunk,) = compile_chunks(preset(model, degrees), device, samples=samples, **more)
    return chunk.part


def features(segments):
    return [each.transfer for each in segments if isinstance(each, Feature)]


def test_hybrid_sharding_divides_within_a_replica():
    """Of 32 ranks in 4 replicas a rank keeps an eighth; an eighth of the gradients is then summed over the replicas."""
    whole = LLAMA.parameters
    sharded, hybrid = (part(LLAMA, Degrees(dp=32, zero=3, hsdp_replicas=n)) for n in (1, 4))
    assert sharded.weight_bytes == pytest.approx(2 * whole / 32)
    assert hybrid.weight_bytes == pytest.approx(2 * whole / 8)
    assert hybrid.optimizer_bytes == pytest.approx(12 * whole / 8)
    sums = next(each for each in hybrid.backward if isinstance(each, GradientReduction))
    assert (sums.sums, sums.kept) == (frozenset(("dp", "replica")), frozenset(("dp",)))


def test_hybrid_sharding_keeps_gathers_inside_the_node():
    """With a replica for each node weights are gathered over NVLink, and less passes the network."""
    steps = {}
    for replicas in (1, 4):
        tree = preset(LLAMA, Degrees(dp=32, zero=3, hsdp_replicas=replicas))
        steps[replicas] = simulate(tree, CLUSTER, batch=32)
    by_kind = [steps[n].communication_seconds.by_kind for n in (1, 4)]
    assert by_kind[1]["all_gather"] < 0.6 * by_kind[0]["all_gather"]
    assert "all_reduce" in by_kind[1]
    assert "all_reduce" not in by_kind[0]


def test_experts_of_one_tensor_rank_lie_whole_on_it():
    """Tp 4, ep 16: a rank keeps one of 16 experts whole; its tokens come from all 16 ranks of tp and ep."""
    divided = part(EXPERTS, Degrees(tp=4, ep=4, dp=8, sequence_parallel=True))
    whole = part(EXPERTS, Degrees(tp=4, ep=16, expert_tp=1, dp=8, sequence_parallel=True))
    assert whole.weight_bytes == pytest.approx(divided.weight_bytes)  # a sixteenth of all experts both ways
    exchanged = [each for each in features(whole.forward) if each.kind == "all_to_all"]
    assert {each.axes for each in exchanged} == {frozenset(("tp", "ep"))}
    assert len(exchanged) == 2 * 2  # there and back in each layer
    # 32 samples over 8 of dp, 1,024 tokens of which a rank has a quarter, 2 experts a token, 1,024 features of 2 bytes
    assert {each.volume_bytes for each in exchanged} == {4 * 256 * 2 * 1024 * 2}
    inside = [each for each in features(divided.forward) if each.kind == "all_to_all"]
    assert {each.axes for each in inside} == {frozenset(("ep",))}


@pytest.mark.parametrize(
    ("degrees", "named"),
    [
        ({"tp": 4, "ep": 2, "expert_tp": 1, "dp": 4}, "ep: got 2 with expert_tp=1, expected a multiple of tp=4"),
        ({"tp": 4, "expert_tp": 2, "dp": 4}, "expert_tp: got 2, expected 1 or tp=4"),
        ({"tp": 2, "ep": 16, "expert_tp": 1, "dp": 4}, "expected a divisor of dp=8"),
        ({"dp": 4, "hsdp_replicas": 2}, "hsdp_replicas: got 2 with zero=0"),
        ({"dp": 4, "hsdp_replicas": 3, "zero": 3}, "hsdp_replicas: got 3"),
    ],
)
def test_degrees_that_do_not_fit_are_refused(degrees, named):
    """By name, with what was given and what would do."""
    with pytest.raises(ConfigError, match=named):
        Degrees(**degrees)


def test_a_ring_hides_its_transfers_behind_parts_of_attention():
    """Forward: all of cp 4 parts but one during the round of keys and values; backward: all parts, during two rounds."""
    degrees = Degrees(cp=4, dp=2)
    ring = part(LLAMA, degrees, samples=2, context=ContextParallelism(exchange=RING))
    gathered = part(LLAMA, degrees, samples=2, context=ContextParallelism())
    # One sample, 4,096 tokens, 8 heads of keys and as many of values, 64 features of 2 bytes.
    volume_bytes = 4096 * 2 * 8 * 64 * 2
    (round_,) = {each for each in ring.forward if isinstance(each, Feature) and each.hides_s}
    assert (round_.transfer.kind, round_.transfer.volume_bytes) == ("all_gather", volume_bytes)
    assert [each.volume_bytes for each in features(gathered.forward)] == [volume_bytes] * 2
    back = [each for each in ring.backward if isinstance(each, Feature) and each.hides_s]
    assert [each.transfer.kind for each in back] == ["all_gather", "reduce_scatter"] * 2
    assert {each.transfer.volume_bytes for each in back} == {volume_bytes}
    # Attention's backward pass has 2.5 times the work of its forward pass, at the speed of its own.
    attention = CLUSTER.device.attention_speed
    ratio = 2.5 * attention.forward / attention.backward
    assert back[0].hides_s == pytest.approx(ratio * round_.hides_s * 4 / 3 / 2, rel=0.05)


def test_a_ring_costs_its_copies_where_links_cost_nothing():
    """What is hidden is work that is done anyway; without bytes to copy a ring changes nothing."""
    free = replace(CLUSTER, levels=tuple(level.scaled(bandwidth=1e9, latency=0.0) for level in CLUSTER.levels))
    tree = preset(LLAMA, Degrees(cp=4, dp=2))

    def step_s(exchange, **device):
        cluster = free.with_device(launch_s=0.0, attention=(), **device)
        options = Options(context=ContextParallelism(exchange=exchange))
        return simulate(tree, cluster, batch=2, options=options).step_seconds

    memory = {"memory_bytes_per_second": 1e18}
    assert step_s(RING, **memory) == pytest.approx(step_s("gather", **memory), rel=1e-6)
    assert step_s(RING) > step_s("gather")


def test_contiguous_parts_of_a_causal_sequence_wait_for_the_last():
    """Of 4 parts the last computes 7/4 of an even share of attention; without context parallelism nothing changes."""

    def attention_s(degrees, split):
        made = part(LLAMA, degrees, samples=8, context=ContextParallelism(split=split))
        none = part(LLAMA, degrees, samples=8, context=ContextParallelism(split="halves"))
        return [sum(each.seconds for each in p.forward if isinstance(each, Work)) for p in (made, none)]

    slow_s, even_s = attention_s(Degrees(cp=4, dp=2), CONTIGUOUS)
    one_s, same_s = attention_s(Degrees(dp=8), CONTIGUOUS)
    assert one_s == same_s
    device = CLUSTER.device
    # Two layers of half of 4 s^2 h FLOPs a sample, 4 samples a rank, each sample over 4 ranks.
    flops = 2 * 0.5 * 4 * 4096**2 * 1024 * 4 / 4
    assert slow_s - even_s == pytest.approx(
        0.75 * flops / (device.reached_flops_per_second * device.attention_speed.forward), rel=0.05
    )


def test_recomputation_of_a_ring_goes_round_again():
    """What is computed again hides its transfers as the first time."""
    degrees = Degrees(cp=4, dp=2, recompute="full")
    made = part(LLAMA, degrees, samples=2, context=ContextParallelism(exchange=RING))
    hiding = [each for each in made.backward if isinstance(each, Feature) and each.hides_s]
    assert len(hiding) == 2 * 3


def test_the_specification_has_the_fields():
    """Each reaches the job; padded vocabularies follow tp, also where an alternative changes it."""
    text = SPEC.replace("zero: 3", "zero: 3, hsdp_replicas: 2, context_exchange: ring, context_split: contiguous")
    spec = load_spec(text.replace("vocabulary: 1000", "vocabulary: 1000, vocabulary_multiple: 128"), "x")
    assert spec.degrees.hsdp_replicas == 2
    assert spec.options.context == ContextParallelism(exchange=RING, split=CONTIGUOUS)
    words = [spec.changed_by({"strategy.tp": tp, "strategy.dp": 16 // tp}).model for tp in (1, 4)]
    added = words[1].parameters - words[0].parameters
    assert added == 2 * 512 * (1024 - 1024) == 0
    assert words[0].parameters - load_spec(SPEC, "x").model.parameters == 2 * 512 * 24
    odd = spec.changed_by({"model.vocabulary": 1025, "strategy.tp": 4, "strategy.dp": 4, "strategy.hsdp_replicas": 2})
    assert odd.model.parameters - words[0].parameters == 2 * 512 * (1536 - 1024)
    back = odd.changed_by({"strategy.tp": 1, "strategy.dp": 16})
    assert back.model.parameters - words[0].parameters == 2 * 512 * (1152 - 1024)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("dense_layers: 1", "dense_ffn"),
        ("dense_layers: 4, dense_ffn: 64", "dense_layers"),
        ("kv_heads: 4, latent: {kv_rank: 64}", "kv_heads"),
        ("latent: {}", "kv_rank"),
    ],
)
def test_models_that_do_not_fit_are_refused(model, named):
    """By the field's place."""
    with pytest.raises(LockstepError, match=f"model.*{named}"):
        load_spec(SPEC.replace("experts: 8", f"experts: 8, {model}"), "x")


def test_a_model_with_everything_is_simulated():
    """Latent attention, shared experts, dense layers, tensor parallel with whole experts, in a pipeline."""
    text = """
model: {type: moe, layers: 8, hidden: 1024, heads: 16, sequence: 512, ffn: 256, experts: 16, chosen: 4, shared_ffn: 512,
  dense_layers: 2, dense_ffn: 2048, latent: {kv_rank: 128, query_rank: 256, nope_dim: 64, rope_dim: 32, value_dim: 64}}
batch: 32
strategy: {tp: 2, ep: 4, expert_tp: 1, dp: 4, pp: 2, micro_batches: 4, sequence_parallel: true, zero: 1}
cluster: {preset: DGX H100, nodes: 2}
"""
    found = load_spec(text, "x").forecast()
    assert found.step_seconds > 0
    assert {"all_to_all", "all_gather", "reduce_scatter", "send"} <= found.communication_seconds.by_kind.keys()
