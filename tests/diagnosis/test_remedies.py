import tomllib
from importlib.resources import files

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.finding import IO, Finding
from lockstep.contracts.metrics import CAUSES as INCIDENT_CAUSES
from lockstep.diagnosis import remedies
from lockstep.diagnosis.host_causes import collection, compilation, contention, data, dispatch, synchronisation
from lockstep.diagnosis.remedies import CAUSES, advise_finding, parse_table, table

HEAD = """
version = 1
[bottlenecks]
io = { title = "I/O", share_ratio = 0.089 }
[causes.data_reading]
bottleneck = "io"
title = "Slow data reading"
rule = "the loader reads"
source = "Hermes"
"""
ROW = """
[[remedies]]
causes = ["data_reading"]
suggestion = "Read less in {function}"
removes = "explained"
source = "Hermes"
how = { pytorch = "cache" }
"""
MEASURED = """
[[measured]]
operator = "Mul"
speedup = 1.34
by = { data_reading = ["RSD"] }
"""
KEYED = ROW + 'key = "RSD"\n'


def _finding(cause, *, subject="", lost_ns=None):
    return Finding(bottleneck=IO, cause=cause, ranks=(0,), evidence=("e",), subject=subject, lost_ns=lost_ns)


def test_the_packaged_table_holds_hermes_and_asplos():
    """Shares of the 135 cases as Table 4 prints them, eight operators as Table 1 does."""
    found = table()
    shares = {key: each.share_ratio for key, each in found.bottlenecks.items()}
    assert shares == {"parallel": 0.052, "io": 0.089, "cpu": 0.37, "compute": 0.319, "communication": 0.17}
    assert sum(shares.values()) == pytest.approx(1.0)
    speedups = {each.operator: each.speedup for each in found.measured}
    assert speedups == {
        "Add_ReLU": 1.72,
        "Depthwise": 1.26,
        "AvgPool": 4.31,
        "Mul": 1.34,
        "Conv2D": 2.65,
        "FullyConnection": 1.22,
        "MatMul": 1.10,
        "GeLU": 1.06,
    }
    by = {each.operator: each.by for each in found.measured}
    assert by["Depthwise"] == {
        "mte_bound": ("MRT",),
        "insufficient_parallelism": ("AIS", "RUS", "PP"),
        "inefficient_mte": ("ITG",),
    }


def test_every_cause_of_the_hosts_rules_is_in_the_table():
    """A rule that names what the table does not know would leave the operator without advice."""
    named = {
        data.READING,
        data.PROCESSING,
        data.FETCHING,
        compilation.COMPILATION,
        compilation.DYNAMIC_SHAPES,
        dispatch.DISPATCH,
        synchronisation.SYNCHRONISATION,
        collection.GC,
        contention.CONTENTION,
    }
    assert named <= set(CAUSES)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_advice(cause):
    """With a subject and without, in each framework, whatever the row's conditions."""
    for subject in ("", "aten::mm", "SyncBatchNorm", data.LOADER_PREFIX, "<built-in function collect>"):
        for framework in remedies.FRAMEWORKS:
            advised = advise_finding(_finding(cause, subject=subject, lost_ns=5), 100, framework=framework)
            assert all(each.suggestion and each.how and each.source for each in advised.advice)
            assert advised.advice


def test_every_incident_has_rows():
    """The coordinator's causes and the traces' are advised from one table."""
    assert {incident for row in table().remedies for incident in row.incidents} == set(INCIDENT_CAUSES)


def test_advice_is_ordered_by_gain_and_the_best_is_the_findings():
    """Remedies that remove the loss gain its share of the window; the others cannot be predicted."""
    advised = advise_finding(_finding("dynamic_shapes", subject="aten::linear", lost_ns=25), 100)
    assert advised.predicted_gain_ratio == 0.25
    assert advised.advice[0].suggestion == "Give aten::linear fixed shapes"
    gains = [each.predicted_gain_ratio or 0.0 for each in advise_finding(_finding("slow_link", lost_ns=9), 100).advice]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == 0.09
    assert gains[-1] == 0.0


@pytest.mark.parametrize(("lost_ns", "gain"), [(None, None), (0, None), (100, 1.0), (900, 1.0)])
def test_gain_is_no_more_than_the_window(lost_ns, gain):
    """A loss that is not known promises nothing."""
    assert advise_finding(_finding("dispatch", lost_ns=lost_ns), 100).predicted_gain_ratio == gain


def test_the_subject_chooses_between_remedies():
    """A loader on the training thread gets workers, one with workers gets more; a batch norm no hint on item()."""
    alone = advise_finding(_finding("data_processing", subject="enumerate(DataLoader)#_SingleProcessDataLoaderIter"), 9)
    staffed = advise_finding(
        _finding("data_processing", subject="enumerate(DataLoader)#_MultiProcessingDataLoaderIter"), 9
    )
    assert alone.advice[0].suggestion.startswith("Load batches in worker processes")
    assert staffed.advice[0].suggestion.startswith("Give the loader more workers")
    norms = advise_finding(_finding("synchronisation", subject="SyncBatchNorm"), 9)
    assert [each.suggestion for each in norms.advice] == ["Use fewer synchronised batch norms"]


def test_the_way_is_given_for_the_framework_that_is_used():
    """Ascend's and MindSpore's own; PyTorch's where they have none, the only one where PyTorch has none."""
    way = {
        framework: advise_finding(_finding("dynamic_shapes"), 9, framework=framework).advice[0].how
        for framework in remedies.FRAMEWORKS
    }
    assert "torch.compile(dynamic=True)" in way["pytorch"]
    assert "set_compile_mode" in way["ascend"]
    assert "set_inputs" in way["mindspore"]
    assert "set_threshold" in advise_finding(_finding("gc"), 9, framework="ascend").advice[-1].how
    assert "AI core" in advise_finding(_finding("aicpu"), 9, framework="pytorch").advice[0].how


def test_subjects_are_text_and_never_a_format():
    """A function's name may hold braces."""
    advised = advise_finding(_finding("dispatch", subject="k<{function.__class__}>"), 9)
    assert "k<{function.__class__}>" in advised.advice[0].suggestion


def test_a_cause_without_a_row_gets_no_advice():
    """A rule of tomorrow does not fail today."""
    assert advise_finding(_finding("tomorrow", lost_ns=5), 9).advice == ()


def test_a_small_table_is_read():
    """Every part in its place."""
    found = parse_table(HEAD + KEYED + MEASURED)
    assert found.remedies[0].how_in("ascend") == "cache"
    assert found.measured[0].by == {"data_reading": ("RSD",)}


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("version = ", "TOML"),
        (HEAD.replace("version = 1", "version = 2") + KEYED + MEASURED, "version 2"),
        (HEAD + KEYED, "parts"),
        (HEAD.replace('title = "Slow data reading"\n', "") + KEYED + MEASURED, "causes.data_reading"),
        (HEAD + KEYED + 'colour = "red"\n' + MEASURED, r"remedies\[0\]"),
        (HEAD + KEYED.replace('"explained"', '"everything"') + MEASURED, r"remedies\[0\].removes"),
        (HEAD + KEYED.replace('"explained"', "1") + MEASURED, r"remedies\[0\].removes"),
        (HEAD + KEYED.replace("pytorch", "theano") + MEASURED, r"remedies\[0\].how"),
        (HEAD + KEYED.replace("{function}", "{secret}") + MEASURED, r"remedies\[0\].suggestion"),
        (HEAD + KEYED.replace("{function}", "{function") + MEASURED, r"remedies\[0\].suggestion"),
        (HEAD + KEYED.replace('["data_reading"]', '["data_writing"]') + MEASURED, r"remedies\[0\].causes"),
        (HEAD + KEYED.replace('["data_reading"]', "[]") + MEASURED, r"remedies\[0\].causes"),
        (HEAD + KEYED.replace("causes", "incidents").replace("data_reading", "data") + MEASURED, "a remedy for each"),
        (HEAD + KEYED.replace('causes = ["data_reading"]\n', "") + MEASURED, "at least one cause"),
        (HEAD.replace('bottleneck = "io"', 'bottleneck = "coffee"') + KEYED + MEASURED, "data_reading.bottleneck"),
        (HEAD + ROW + MEASURED, "measured.Mul"),
        (HEAD.replace("0.089", '"much"') + KEYED + MEASURED, "bottlenecks.io.share_ratio"),
        (HEAD.replace('io = { title = "I/O", share_ratio = 0.089 }', "io = 3") + KEYED + MEASURED, "bottlenecks.io"),
    ],
)
def test_a_wrong_table_is_refused_by_name(text, expected_text):
    """What is wrong, where, and what was expected instead."""
    with pytest.raises(MalformedError, match=expected_text):
        parse_table(text, where="mine.toml")


def test_the_file_is_part_of_the_package():
    """It is read from next to the module, wherever the package is installed."""
    assert tomllib.loads(files("lockstep.diagnosis").joinpath(remedies.FILE).read_text("utf-8"))["version"] == 1
