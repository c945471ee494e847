import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.hardware.clusters import A100
from lockstep.simulator.lowering.chunks import compile_chunks
from lockstep.simulator.lowering.segments import Feature, GradientReduction, WeightGather, Work
from lockstep.simulator.models.transformers import gpt, llama, moe
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.tree import StrategyTree, resolve

MODEL = gpt(layers=4, hidden=64, heads=8, sequence=32, vocabulary=128)
MOE = moe(layers=2, hidden=64, heads=8, sequence=32, ffn=128, experts=4, vocabulary=128)


def transfers_of(segments):
    return [
        (s.transfer.kind, "".join(sorted(s.transfer.axes)), s.transfer.volume_bytes)
        for s in segments
        if isinstance(s, Feature | WeightGather)
    ]


def chunks_of(degrees, model=MODEL, samples=8, tree=None):
    return compile_chunks(tree or preset(model, degrees), A100, samples=samples)


def layer(degrees, model=MODEL, samples=8):
    """Return the transfers of one layer in the middle, forward and backward."""
    whole = chunks_of(degrees, model, samples)[0].part
    blocks = len(model.blocks) - 2
    forward, backward = transfers_of(whole.forward), transfers_of(whole.backward)
    return [(len(found) // blocks, found[len(found) // 2]) for found in (forward, backward)]


def test_tensor_parallel_needs_two_all_reduces_each_way():
    """Columns then rows: a sum after attention and one after the wide layer, forward and, mirrored, backward."""
    tokens_bytes = 8 * 32 * 64 * 2
    for count, middle in layer(Degrees(tp=4)):
        assert count == 2
        assert middle == ("all_reduce", "tp", tokens_bytes)


def test_sequence_parallel_turns_them_into_halves():
    """With tokens split between columns and rows, each all-reduce is a reduce-scatter and an all-gather."""
    part = chunks_of(Degrees(tp=4, sequence_parallel=True))[0].part
    for found in (transfers_of(part.forward), transfers_of(part.backward)):
        kinds = [kind for kind, _, _ in found]
        assert "all_reduce" not in kinds
        assert abs(kinds.count("all_gather") - kinds.count("reduce_scatter")) <= 1
        assert kinds.count("all_gather") == 2 * 4 + 1


def test_context_parallel_gathers_keys_and_values():
    """Two thirds of queries, keys and values are gathered over cp; their gradients are scattered back."""
    (ahead, gathered), (back, scattered) = layer(Degrees(cp=2))
    assert (ahead, back) == (1, 1)
    assert gathered == ("all_gather", "cp", pytest.approx(8 * 32 * 64 * 2 * 2))
    assert scattered == ("reduce_scatter", "cp", pytest.approx(8 * 32 * 64 * 2 * 2))


def test_experts_exchange_tokens():
    """Experts on ep ranks: all-to-all to them and back, in both directions."""
    for count, (kind, axes, volume) in layer(Degrees(ep=4, dp=4), MOE):
        assert (count, kind, axes) == (2, "all_to_all", "ep")
        assert volume == 2 * 8 * 32 * 64 * 2 / 4


def test_data_parallel_sums_gradients_only():
    """Data parallelism needs nothing in forward; every weight's gradient is summed over dp once."""
    part = chunks_of(Degrees(dp=8))[0].part
    assert transfers_of(part.forward) == transfers_of(part.backward) == []
    summed = [segment for segment in part.backward if isinstance(segment, GradientReduction)]
    assert sum(segment.total_bytes for segment in summed) == MODEL.parameters * 4
    assert all(segment.sums == {"dp"} and not segment.kept for segment in summed)


def test_expert_weights_are_summed_among_their_copies_only():
    """With every expert on one rank there is no one to sum with; the other weights are summed over all."""
    part = chunks_of(Degrees(ep=4, dp=4), MOE)[0].part
    summed = sum(segment.total_bytes for segment in part.backward if isinstance(segment, GradientReduction))
    experts = 2 * 4 * 3 * 64 * 128
    assert summed == (MOE.parameters - experts) * 4


@pytest.mark.parametrize(("zero", "kept"), [(1, ["dp"]), (2, ["dp"]), (3, ["dp"])])
def test_zero_keeps_in_parts(zero, kept):
    """Stage 1 scatters gradients and returns weights, 2 scatters in every pass, 3 gathers weights before each pass."""
    part = chunks_of(Degrees(dp=8, zero=zero))[0].part
    summed = [segment for segment in part.backward if isinstance(segment, GradientReduction)]
    assert {tuple(segment.kept) for segment in summed} == {tuple(kept)}
    assert {segment.every_pass for segment in summed} == {zero >= 2}
    gathered = [segment for segment in part.forward if isinstance(segment, WeightGather)]
    assert bool(gathered) == (zero == 3)
    assert bool(part.returns) == (zero < 3)
    moved = sum(t.volume_bytes for t in part.returns) + sum(g.transfer.volume_bytes for g in gathered)
    # Tied output weights are gathered with their embedding.
    assert moved == pytest.approx(MODEL.parameters * 2)


def test_work_is_divided_and_not_lost():
    """However a model is split, ranks times FLOPs of one rank is the whole, but for what tp repeats: here nothing."""
    for degrees in (Degrees(), Degrees(tp=2, dp=2), Degrees(cp=2, tp=2), Degrees(dp=4, pp=2)):
        chunks = chunks_of(degrees, samples=8)
        total = sum(chunk.part.flops * len(chunk.mesh) for chunk in chunks)
        assert total == pytest.approx(8 * MODEL.flops_per_sample)


def test_recomputation_repeats_forward_with_its_transfers():
    """Full recomputation puts a layer's forward, transfers included, before its backward, and keeps its input only."""
    plain = chunks_of(Degrees(tp=2))[0].part
    tree = preset(MODEL, Degrees(tp=2))
    tree.root.recompute("full")
    again = chunks_of(None, tree=tree)[0].part
    work = {
        name: sum(s.seconds for s in segments if isinstance(s, Work))
        for name, segments in (("forward", plain.forward), ("backward", plain.backward), ("again", again.backward))
    }
    assert work["again"] == pytest.approx(work["forward"] + work["backward"])
    assert len(transfers_of(again.backward)) == len(transfers_of(plain.forward)) + len(transfers_of(plain.backward))
    assert again.stored_bytes < plain.stored_bytes / 5


def test_full_recomputation_leaves_embedding_and_head_alone():
    """By degrees, layers alone are computed again: what the last norm and the logits keep stays kept."""
    everything = preset(MODEL, Degrees(tp=2))
    everything.root.recompute("full")
    every, layers = (
        chunks_of(None, tree=tree)[0].part for tree in (everything, preset(MODEL, Degrees(tp=2, recompute="full")))
    )
    seconds = [sum(s.seconds for s in part.backward if isinstance(s, Work)) for part in (every, layers)]
    assert seconds[1] < seconds[0]
    assert layers.stored_bytes > every.stored_bytes


def test_selective_recomputation_computes_fused_attention_again():
    """It is no word without effect where attention never writes its scores: the forward pass comes again."""
    model = llama(layers=2, hidden=64, heads=4, kv_heads=2, sequence=32, ffn=128, vocabulary=256)
    plain, again = (
        chunks_of(None, tree=preset(model, Degrees(recompute=what)))[0].part for what in ("none", "selective")
    )
    seconds = [sum(s.seconds for s in part.backward if isinstance(s, Work)) for part in (plain, again)]
    assert seconds[1] > seconds[0]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_pipeline_sums_gradients_once_a_step(stage):
    """Whatever ZeRO stage a pipeline has, gradients are not summed and weights not gathered in every micro-batch."""
    for chunk in chunks_of(Degrees(dp=2, pp=2, zero=stage)):
        sums = [segment for segment in chunk.part.backward if isinstance(segment, GradientReduction)]
        assert sums
        assert not any(segment.every_pass for segment in sums)
        assert not any(isinstance(segment, WeightGather) for segment in chunk.part.forward)
    without = chunks_of(Degrees(dp=2, zero=stage))[0].part
    assert all(segment.every_pass for segment in without.backward if isinstance(segment, GradientReduction))


def test_what_tensor_parallel_ranks_all_hold_is_sent_in_parts():
    """Each sends its part to the next stage, which gathers it; the gradients come back the same way."""
    whole, parts = (chunks_of(Degrees(tp=tp, pp=2)) for tp in (1, 2))
    assert parts[1].received_bytes == whole[1].received_bytes / 2
    gathers = [transfers_of(segments) for segments in (parts[1].part.forward[:1], parts[0].part.backward[:1])]
    assert gathers == [[("all_gather", "tp", whole[1].received_bytes)]] * 2


def test_heads_may_be_wider_or_narrower_than_the_model():
    """`head_dim` sets the features of the heads: four of 32 in a model of 64 double what attention computes."""
    plain, wide = (
        llama(layers=1, hidden=64, heads=4, kv_heads=2, head_dim=dim, sequence=32, ffn=128, vocabulary=256)
        for dim in (None, 32)
    )
    flops = [
        {op.name: op.flops for op in model.operators() if op.name in ("qkv", "attention", "proj", "fc1")}
        for model in (plain, wide)
    ]
    ratios = {name: flops[1][name] / flops[0][name] for name in flops[0]}
    assert ratios == {"qkv": 2.0, "attention": 2.0, "proj": 2.0, "fc1": 1.0}


SBH = 8 * 32 * 64
SCORES = 8 * 8 * 32 * 32


@pytest.mark.parametrize(
    ("names", "saved", "transient"),
    [
        (("attention",), 5 * SCORES, 5 * SCORES),
        (("fc1", "gelu", "fc2"), 16 * SBH, 16 * SBH),
        (("attention", "fc1", "gelu", "fc2"), 5 * SCORES + 16 * SBH, max(5 * SCORES, 16 * SBH)),
        (("attention", "fc1"), 5 * SCORES, 5 * SCORES),
        (("residual1", "norm2"), SBH, SBH),
    ],
    ids=str,
)
def test_operators_recomputed_apart_keep_an_input_each(names, saved, transient):
    """Of a layer's sbh(34 + 5as/h) bytes neighbours that are recomputed keep their first input, and return in turn."""
    tree = preset(MODEL, Degrees())
    plain = chunks_of(None, tree=tree)[0].part
    for name in names:
        tree[f"layer1.{name}"].recompute()
    part = chunks_of(None, tree=tree)[0].part
    assert plain.stored_bytes - part.stored_bytes == saved
    assert part.transient_bytes == transient


def test_recomputation_per_operator_of_a_llama():
    """Of 34 bytes a token and feature of a layer with fused attention 14.5 are kept; half of the products return."""
    model = llama(layers=2, hidden=64, heads=4, sequence=32, ffn=224, kv_heads=4, vocabulary=64)
    parts = {}
    for what in ("none", "selective", "per_operator", "full"):
        (chunk,) = chunks_of(None, tree=preset(model, Degrees(recompute=what)))
        parts[what] = chunk.part
    assert parts["selective"].stored_bytes == parts["none"].stored_bytes  # fused attention keeps no scores
    assert parts["full"].stored_bytes < parts["per_operator"].stored_bytes < parts["none"].stored_bytes
    seconds = {
        what: sum(segment.seconds for segment in part.backward if isinstance(segment, Work))
        for what, part in parts.items()
    }
    assert seconds["none"] < seconds["per_operator"] < seconds["full"]
    layer = {what: (part.stored_bytes, part.transient_bytes) for what, part in parts.items()}
    saved = layer["none"][0] - layer["per_operator"][0]
    assert layer["per_operator"][1] == pytest.approx(saved / 2)  # one of two layers at a time


@pytest.mark.parametrize(("node", "sums"), [("layer3", 1), ("layer3.attention", 5)])
def test_what_is_recomputed_comes_before_its_own_backward(node, sums):
    """A layer that recomputes attention only has sent the gradients of what lies behind it when it gathers keys again."""
    tree = preset(MODEL, Degrees(cp=2))
    tree[node].recompute()
    segments = chunks_of(None, tree=tree)[0].part.backward
    gathers = [s for s in segments if isinstance(s, Feature) and s.transfer.kind == "all_gather"]
    assert len(gathers) == 1
    before = segments[: segments.index(gathers[0])]
    # final_norm; then of the layer fc2, fc1, norm2 and proj
    assert sum(isinstance(segment, GradientReduction) for segment in before) == sums


def test_a_word_on_a_leaf_goes_before_its_parents():
    """What a leaf states holds against the block, the block against the root; what none states comes with the data."""
    tree = preset(MODEL, Degrees(tp=2, dp=2))
    tree["layer1"].split(b="tp", replicate="dp")
    tree["layer1.fc1"].split(o="dp")
    splits = resolve(tree["layer1.fc1"]).splits
    assert (splits["tp"], splits["dp"]) == ("o", "o")
    assert resolve(tree["layer1.gelu"]).splits == {"tp": "b", "dp": None, "cp": "s", "ep": "b"}
    assert resolve(tree["layer0.gelu"]).splits == {"dp": "b", "cp": "s", "ep": "b"}


def test_an_inner_node_maps_and_recomputes_what_is_below():
    """Blocks with their own mesh are stages; a block that recomputes leaves the others alone."""
    tree = StrategyTree.of(MODEL)
    mesh = Mesh.grid({"dp": 2, "pp": 2})
    tree.root.map(mesh.at("pp", 0)).split(b="dp")
    for name in ("layer2", "layer3", "head"):
        tree[name].map(mesh.at("pp", 1))
    tree["layer0"].recompute()
    chunks = chunks_of(None, tree=tree)
    assert [len(chunk.contents) for chunk in chunks] == [3, 3]
    assert chunks[1].received_bytes == 8 * 32 * 64 * 2 / 2
    assert chunks[0].part.transient_bytes > 0 == chunks[1].part.transient_bytes


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda t: t["layer0.fc9"], r"got 'fc9', expected for example \['fc2'\]"),
        (lambda t: t["layer0.fc1"].split(q="tp"), "dimension to split in fc1: got 'q'"),
        (lambda t: t["layer0"].split("weights", over="dp"), "item to split"),
        (lambda t: t.root.recompute("some"), "got 'some'"),
    ],
)
def test_words_that_mean_nothing_are_refused(break_it, message):
    """Unknown nodes, dimensions, items and recomputations are named with what would do."""
    with pytest.raises(ConfigError, match=message):
        break_it(preset(MODEL, Degrees(tp=2)))


def test_splits_that_do_not_divide_are_refused():
    """Eight heads do not go to three ranks, and a block needs a mesh."""
    with pytest.raises(ConfigError, match="split of 'v' in lookup: got 3 parts of 128"):
        chunks_of(Degrees(tp=3))
    with pytest.raises(ConfigError, match="mesh of embedding: got none"):
        chunks_of(None, tree=StrategyTree.of(MODEL))


@pytest.mark.parametrize(
    "degrees",
    [{"tp": 0}, {"dp": 4, "ep": 3}, {"zero": 4}, {"virtual": 2}],
)
def test_degrees_that_cannot_be_are_refused(degrees):
    """Each degree is checked where it is given."""
    with pytest.raises(ConfigError, match="got"):
        Degrees(**degrees)


def test_more_stages_than_blocks_are_refused():
    """Eight chunks of four layers are too many."""
    with pytest.raises(ConfigError, match="got 8 chunks, expected at most the 4 blocks"):
        preset(MODEL, Degrees(pp=8))
