"""Specifications: read, refused by line, changed, healed; each example is run."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.contracts.errors import LockstepError, MalformedError
from lockstep.simulator.hardware.clusters import hc2
from lockstep.simulator.lowering.operators import PlacedTensor, place_operator
from lockstep.simulator.models.model import FULL
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.spec import load_spec
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import ResolvedStrategy

EXAMPLES = Path(__file__).parents[2] / "examples" / "simulator"
SPEC = """\
name: small
model: {type: gpt, layers: 4, hidden: 1024, heads: 16, sequence: 512, vocabulary: 1024, precision: full}
batch: 64
strategy:
  tp: 4
  pp: 2
  dp: 2
  micro_batches: 4
cluster:
  preset: HC2
  health:
    links: {network/1: 0.5}
    ranks: {5: 0.7}
"""


def spec(*changes, text=SPEC, folder=None):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return load_spec(text, "spec.yaml", folder=folder)


def test_a_preset_takes_the_network_of_its_nodes():
    """`network_gbit` is the line rate of a node's cards, of which the preset's share is reached."""
    plain, slow = (
        spec(("preset: HC2\n", f"preset: DGX A100\n  nodes: 2\n{line}"), ("network/1: 0.5", "")).cluster
        for line in ("", "  network_gbit: 400\n")
    )
    assert slow.levels[1].link.bytes_per_second == plain.levels[1].link.bytes_per_second / 4
    assert slow.levels[0] == plain.levels[0]


def test_sends_overlap_where_the_specification_sets_it():
    """`overlap_sends` lets a stage go on while its message is under way, which is never slower."""
    blocking, overlapped = (
        spec(("  pp: 2\n", f"  pp: 2\n  overlap_sends: {word}\n")).forecast() for word in ("false", "true")
    )
    assert overlapped.step_seconds < blocking.step_seconds
    assert spec().forecast().step_seconds == blocking.step_seconds


def test_a_specification_is_the_job_it_describes():
    """The forecast is that of the same model, degrees, batch and sick cluster built in code."""
    model = gpt(layers=4, hidden=1024, heads=16, sequence=512, vocabulary=1024, precision=FULL)
    tree = preset(model, Degrees(tp=4, pp=2, dp=2), Schedule(micro_batches=4))
    cluster = hc2(2).with_link(1, 1, 0.5).with_rank(5, 0.7)
    expected = simulate(tree, cluster, batch=64, options=Options())
    assert spec().forecast() == expected


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_runs_and_fits(path):
    """The examples can be simulated, fit the memory, and waste no one's time: MFU is above a third."""
    found = load_spec(path.read_text(), path.name, folder=path.parent).forecast()
    assert not found.out_of_memory
    assert 1 / 3 < found.mfu_ratio < 1


def test_there_are_examples():
    """GPT-2 on 32, 175B, and a mixture of experts."""
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} >= {"gpt2_32", "gpt3_175b", "moe_64"}


@pytest.mark.parametrize(
    ("old", "new", "expected_text"),
    [
        ("layers: 4", "layer: 4", "line 2, column 20: got the unknown key 'layer', expected 'layers'"),
        ("tp: 4", "tp: four", "strategy.tp in spec.yaml, line 5, column 7: got 'four', expected a whole number 1 to"),
        ("tp: 4", "tp: 4.5", "expected a whole number"),
        ("tp: 4", "tp: .nan", "expected a whole number"),
        ("tp: 4", "tp: true", "expected a whole number"),
        ("HC2", "hc2", "line 10, column 11: got 'hc2', expected 'HC2'"),
        (
            "type: gpt",
            "typ: gpt",
            "model.typ in spec.yaml, line 2, column 9: got the unknown key 'typ', expected 'type'",
        ),
        ("precision: full", "precision: {activation: 0}", "a number above 0 (bytes per element)"),
        ("type: gpt", "type: gtp", "model.type in spec.yaml, line 2, column 15: got 'gtp', expected 'gpt'"),
        ("network/1", "netwrk/1", "LEVEL 'network' (nearest of NVLink, network)"),
        ("network/1", "network/2", "expected network/0 to network/1"),
        ("network/1", "network/01", "expected network/0 to network/1"),
        ("5: 0.7", "16: 0.7", "expected a rank below 16"),
        ("5: 0.7", "5: 0", "above 0 and at most 1"),
        ("batch: 64", "batch: 60", "line 3, column 8: got 60, expected a multiple of 8"),
        ("batch: 64\n", "", "batch in spec.yaml, line 1, column 1: got nothing"),
        ("dp: 2", "dp: 4", "got 32 ranks (tp x cp x dp x pp), expected at most the 16 devices"),
        ("dp: 2", "dp: 2\n  ep: 3", "line 8, column 7: ep: got 3, expected a divisor of dp=2"),
        ("dp: 2", "dp: 2\n  dp: 2", "got 'dp' twice, expected each key once"),
        ("preset: HC2", "preset: HC1\n  nodes: 2", "expected no nodes with HC1"),
        ("preset: HC2", "preset: HC2\n  network_gbit: 400", "expected no network_gbit with HC2"),
        ("preset: HC2", "levels: [{name: a, fanout: 2, bytes_per_second: 1e9}]", "a preset, or device and levels"),
        ("layers: 4", "layers: 2000000", "whole number 1 to 2048"),
        ("micro_batches: 4", "micro_batches: 65536", "expected a multiple of 131072"),
        ("5: 0.7", "5: &a 0.7, 6: *a", "alias"),
        ("0.7", "[" * 40, "17 deep"),
        (SPEC, "", "got null, expected a mapping"),
        (SPEC, "a: " + "9" * 5000, "at most 1000"),
        (SPEC, "#" * 300_000, "got 300000 bytes, expected at most 262144"),
        (SPEC, "a: {b", "got a syntax error (expected ',' or '}', but got '<stream end>'), expected YAML"),
        (SPEC, "a: \x00", "expected YAML"),
    ],
)
def test_what_is_wrong_is_named(old, new, expected_text):
    """A bad field is reported with line, column, what it was, what would do, and the nearest known name."""
    with pytest.raises(LockstepError) as error:
        spec((old, new))
    assert expected_text in str(error.value)


@pytest.mark.parametrize(
    ("changes", "expected_text"),
    [
        ((("heads: 16", "heads: 6"),), "'a' in attention: got 4 parts of 6, expected a divisor (it is split over tp)"),
        ((("layers: 4", "layers: 1"),), "stages: got 2 chunks, expected at most"),
    ],
)
def test_a_job_that_cannot_be_spread_so_names_its_strategy(changes, expected_text):
    """What only the simulation finds out is reported with the place in the text too."""
    with pytest.raises(LockstepError) as error:
        spec(*changes).forecast()
    assert str(error.value).startswith("strategy in spec.yaml, line 5, column 3: ")
    assert expected_text in str(error.value)
    with pytest.raises(LockstepError, match=r"strategy in spec\.yaml, line 5"):
        spec(*changes).compiled()


@given(st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused(text):
    """Whatever the text, the answer is a job or an error of ours."""
    with pytest.raises(LockstepError):
        load_spec(text, "noise")


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_damage_is_read_or_refused(data):
    """A specification with characters replaced is a job or an error of ours, never anything else."""
    at = data.draw(st.integers(0, len(SPEC) - 1))
    text = SPEC[:at] + data.draw(st.text(alphabet="0123456789{}[]:,.-e \n&*!|'", max_size=4)) + SPEC[at + 2 :]
    with suppress(LockstepError):
        assert load_spec(text, "damaged").batch > 0


def test_numbers_as_people_write_them():
    """2e9 is a number, though YAML 1.1 wants a dot and a sign; quotes make text of it."""
    assert spec(("tp: 4", "tp: 4\n  bucket_bytes: 2e7")).options.bucket_bytes == 2e7
    with pytest.raises(MalformedError, match="bucket_bytes"):
        spec(("tp: 4", "tp: 4\n  bucket_bytes: '2e7'"))
    assert spec(("tp: 4", "tp: 4\n  bucket_bytes: null")).options.bucket_bytes is None


def test_a_change_is_the_file_with_that_change():
    """A changed job equals the one read from a file with that change, and leaves the first alone."""
    first = spec()
    changed = first.changed_by({"batch": 128, "strategy.micro_batches": 8, "strategy.algorithms.all_reduce": "tree"})
    text = (("batch: 64", "batch: 128"), ("micro_batches: 4", "micro_batches: 8\n  algorithms: {all_reduce: tree}"))
    assert changed.forecast() == spec(*text).forecast()
    assert first.batch == 64
    assert "algorithms" not in first.document["strategy"]


def test_a_change_may_give_ranks_as_numbers():
    """What a program sets is what a file would hold: keys become texts, so that healing finds them."""
    hurt = spec().healed().changed("cluster.health", {"ranks": {3: 0.5}})
    assert hurt.sick() == ("rank/3",)
    assert hurt.healed().changed("batch", 64).sick() == ()


@pytest.mark.parametrize(
    ("path", "value", "expected_text"),
    [
        ("batch", object(), "a JSON value"),
        ("strategy.tpp", 2, "expected 'tp'"),
        ("batch.x", 2, "batch"),
        ("batch", 3, "multiple of 8"),
        ("strategy.overrides.0.node", "head", "got a mapping"),
    ],
)
def test_a_wrong_change_is_named(path, value, expected_text):
    """A change that no file could hold is refused the same way."""
    with pytest.raises(LockstepError, match=expected_text):
        spec().changed(path, value)


def test_healing_is_leaving_the_sickness_out():
    """Healed one by one and together, the job is the file without the named elements."""
    first = spec()
    assert first.sick() == ("network/1", "rank/5")
    without_rank = spec(("    ranks: {5: 0.7}\n", ""))
    assert first.healed("rank/5").forecast() == without_rank.forecast()
    assert first.healed("rank/5").sick() == ("network/1",)
    assert first.healed().sick() == ()
    assert first.healed().forecast().step_seconds < first.forecast().step_seconds
    assert first.healed("rank/5").changed("batch", 128).forecast() == without_rank.changed("batch", 128).forecast()
    with pytest.raises(LockstepError, match="'rank/5'"):
        first.healed("rank/6")


def test_calibration_replaces_the_machine_numbers_and_brings_the_band():
    """Fitted parameters rule the cluster, links as ratios; the band is in every forecast."""
    section = "calibration:\n  parameters: {launch_s: 1e-3, link_bandwidth_ratio: 0.5}\n  error_band_ratio: 0.06\n"
    found = spec(text=SPEC + section)
    assert found.cluster.device.launch_s == 1e-3
    assert found.cluster.levels[1].link.bytes_per_second == hc2().levels[1].link.bytes_per_second / 2
    assert found.forecast().error_band_ratio == 0.06
    assert found.healed().changed("batch", 128).forecast().error_band_ratio == 0.06
    assert found.forecast().step_seconds > spec().forecast().step_seconds
    assert spec().forecast().error_band_ratio is None


@pytest.mark.parametrize("name", ["matrix_efficiency", "memory_efficiency", "link_bandwidth_ratio"])
def test_a_calibration_that_divides_by_nothing_is_refused(name):
    """A device or a link that gives nothing has no step; latencies, gamma and half of the efficiency may be 0."""
    with pytest.raises(MalformedError, match=rf"calibration\.parameters\.{name} .*got 0, expected a number above 0"):
        spec(text=SPEC + f"calibration: {{parameters: {{{name}: 0}}}}\n")
    nothing = "{half_flops: 0, launch_s: 0, link_latency_ratio: 0, overlap_factor: 0}"
    assert spec(text=SPEC + f"calibration: {{parameters: {nothing}}}\n").forecast().step_seconds > 0


def test_overrides_name_nodes_of_the_tree():
    """split, keep, map, schedule and recompute reach the nodes that the pattern names, and nothing else."""
    words = """\
  overrides:
    - {node: "layer*.fc1", split: {replicate: tp}}
    - {node: layer3, map: 0, recompute: full}
    - {node: layer2, keep: {optimizer: [dp]}}
    - {node: ., schedule: {micro_batches: 8}}
"""
    found = spec(("  micro_batches: 4\n", "  micro_batches: 4\n" + words))
    tree = found.tree()
    assert [tree[f"layer{index}.fc1"].splits for index in range(4)] == [{"tp": None}] * 4
    assert tree["layer0.fc2"].splits == {"tp": "h"}
    assert tree["layer3"].mesh == tree["layer0"].mesh != tree["layer2"].mesh
    assert tree["layer3"].recomputation == "full"
    assert tree["layer2"].memory == {"optimizer": frozenset({"dp"})}
    assert tree.root.order == found.schedule == Schedule(micro_batches=8)


@pytest.mark.parametrize(
    ("override", "expected_text"),
    [
        ("{node: layer*.fc3}", "for 'fc3' 'fc2'"),
        ("{node: layr0.fc1}", "for 'layr0' 'layer0'"),
        ("{node: layer0.fc1, split: {q: tp}}", "got the unknown dimension 'q', expected one of b, h, o, s, replicate"),
        ("{node: layer0.fc1, map: 0}", "expected a block of the model"),
        ("{node: layer0, map: 2}", "expected a stage below 2"),
        ("{node: layer0, schedule: {micro_batches: 2}}", "only it has a schedule"),
        ("{node: layer0, recompute: everything}", "full"),
        ("{node: head, split: {replicat: tp}}", "got the unknown dimension 'replicat', expected 'replicate'"),
        ("{node: layer0, split: {e: tp}}", "got the unknown dimension 'e'"),
        (
            "{node: ., split: {o: tpp}}",
            "got the unknown axis 'tpp', expected 'tp' (nearest of tp, cp, ep, dp, replica)",
        ),
        ("{node: layer0, keep: {optimizer: [dp, pd]}}", "overrides.0.keep.optimizer"),
    ],
)
def test_a_wrong_override_is_named(override, expected_text):
    """Nodes that are not there and words that they cannot be reported are refused by line."""
    with pytest.raises(LockstepError) as error:
        spec(("  tp: 4", f"  overrides: [{override}]\n  tp: 4")).tree()
    assert expected_text in str(error.value)
    assert "line 5" in str(error.value)


LEVELS = """\
model: {type: vgg19}
batch: 64
strategy: {dp: 4}
cluster:
  device: {flops_per_second: 1e13, memory_bytes_per_second: 1e12, memory_bytes: 16e9}
  levels:
    - {name: PCIe, fanout: 2, bytes_per_second: 12e9, measured: {2: [{bytes_per_second: 6e9}]}}
    - {name: network, fanout: 2, bytes_per_second: 1e9, launch_s: 1e-5}
"""


def test_a_machine_by_its_levels():
    """Levels of links and a device of one's own; a name in place of the device's numbers."""
    found = spec(text=LEVELS)
    assert found.cluster.size == 4
    assert found.cluster.levels[0].measured[2][0].bytes_per_second == 6e9
    named = spec((LEVELS[LEVELS.index("{flops") : LEVELS.index("\n  levels")], "{name: A100}"), text=LEVELS)
    assert named.cluster.device.flops_per_second == 312e12
    assert named.forecast().step_seconds < found.forecast().step_seconds


@pytest.mark.parametrize(
    ("old", "new", "expected_text"),
    [
        ("flops_per_second: 1e13, ", "", "flops_per_second in spec.yaml, line 5"),
        ("name: network", "name: PCIe", "expected another name"),
        ("name: network", "name: rank", "expected another name"),
        ("fanout: 2, bytes_per_second: 12e9", "fanout: 1048576, bytes_per_second: 12e9", "devices, expected at most"),
        ("measured: {2:", "measured: {two:", "the size of a group"),
        ("flops_per_second: 1e13", "flops_per_second: 1e-300", r"got 1e-300, expected a number above 0 \(FLOP/s\)"),
    ],
)
def test_a_wrong_machine_is_named(old, new, expected_text):
    """Missing numbers, names that are taken, more devices than a job has."""
    with pytest.raises(MalformedError, match=expected_text):
        spec((old, new), text=LEVELS)


MICRO = """\
model: {type: llama, layers: 4, hidden: 1024, heads: 8, sequence: 2048, ffn: 4096, precision: {product: 1}}
batch: 64
strategy: {dp: 4, tp: 2, micro_batch_size: 4}
cluster: {preset: DGX H100}
"""


def test_a_micro_batch_has_so_many_samples():
    """64 samples on 4 replicas in micro-batches of 4 are 4 micro-batches, and stay of 4 with another dp."""
    job = load_spec(MICRO, "job")
    assert job.schedule.micro_batches == 4
    other = job.changed_by({"strategy.dp": 2, "strategy.tp": 4})
    assert other.schedule.micro_batches == 8
    counted = job.changed_by({"strategy.micro_batch_size": None, "strategy.micro_batches": 4})
    assert counted.forecast() == job.forecast()
    with pytest.raises(LockstepError, match=r"line 3.*got 5, expected a divisor of the 64 samples over dp 4"):
        load_spec(MICRO.replace("micro_batch_size: 4", "micro_batch_size: 5"), "job")
    with pytest.raises(LockstepError, match="one of micro_batch_size, micro_batches"):
        job.changed("strategy.micro_batches", 2)


def test_products_in_fp8_leave_attention_and_head_alone():
    """Linear layers reach twice the arithmetic, for casts of what they read; attention, head and norms are as before."""
    narrow = load_spec(MICRO, "job")
    wide = narrow.changed("model.precision", "mixed")
    assert narrow.forecast().step_seconds < wide.forecast().step_seconds
    assert narrow.forecast().stage_memory_bytes == wide.forecast().stage_memory_bytes
    times = []
    for job in (narrow, wide):
        device, precision = job.cluster.device, job.model.precision
        mesh = Mesh.grid({"tp": 1})
        arriving = PlacedTensor(total_bytes=2.0 * 2048 * 1024, placement={})
        nothing = ResolvedStrategy({}, {}, "none")
        layer = dict(job.model.blocks)["layer0"].operators()
        head = dict(job.model.blocks)["head"].operators()
        by_name = {}
        for op in (*layer, *head):
            placed = place_operator(op, nothing, arriving, mesh, device, samples=4, precision=precision)
            by_name[op.name] = placed.forward_s
        times.append(by_name)
    changed = {name for name in times[0] if times[0][name] != times[1][name]}
    assert changed == {"qkv", "proj", "fc1", "fc2"}
    assert times[0]["fc1"] < times[1]["fc1"] < 2 * times[0]["fc1"]
    older = narrow.changed("cluster.preset", "DGX A100")  # no FP8 there: only the casts are lost
    assert older.forecast().step_seconds >= wide.changed("cluster.preset", "DGX A100").forecast().step_seconds
