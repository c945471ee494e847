"""What localisation says a second time."""

import numpy as np
import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.evidence import Evidence
from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.told_already import without_told
from lockstep.diagnosis.finding import CPU, Finding
from lockstep.diagnosis.host_causes import HostSamples
from lockstep.diagnosis.localisation import AbnormalFunction, Localisation
from lockstep.diagnosis.localisation.matrix import Function
from lockstep.diagnosis.localisation.odd_ones import OddBy
from lockstep.trace.patterns import FunctionClass
from tests.analysis.job import MS, RANKS, rank_columns

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NONE = np.zeros(0, np.int64)


def _localised(name, *, stack=(), kind=FunctionClass.HOST, ranks=(1, 2)) -> Localisation:
    function = AbnormalFunction(
        function=Function(kind, stack, name),
        ranks=np.array(ranks),
        unexpected=NONE,
        unlike=np.array(ranks),
        odd=NONE,
        odd_by=OddBy.NOTHING,
        group_kind="",
        differences=(),
        lost_s=0.5,
    )
    return Localisation(abnormal=(function,), workers=4, compared=1, left_out=0, has_peers=True)


def _on(cause, *ranks, lost_ms=250) -> list[Finding]:
    return [
        Finding(bottleneck=CPU, cause=cause, ranks=(rank,), evidence=("told",), lost_ns=lost_ms * MS) for rank in ranks
    ]


@pytest.mark.parametrize(
    ("cause", "name", "stack"),
    [
        ("data_reading", "<built-in method read of _io.BufferedReader object>", ("train.py(4): main", LOADER)),
        ("data_processing", LOADER, ()),
        ("gc", "Python GC", ("train.py(4): main",)),
        ("gc", "free_rows", ("<built-in function collect>",)),
        ("gc", "(no recorded call)", ()),
        ("dynamic_shapes", "entire_frame_compile (dynamo_timed)", ()),
        ("compilation", "re.py(1): sub", ("torch/_dynamo/convert_frame.py(500): _compile",)),
        ("dispatch", "aten::tanh", ()),
        ("dispatch", "cudaLaunchKernel", ("aten::tanh",)),
        ("synchronisation", "aten::_local_scalar_dense", ("train.py(4): main", "aten::item")),
        ("synchronisation", "cudaStreamSynchronize", ()),
    ],
)
def test_a_part_of_a_cause_is_said_once(cause, name, stack):
    """On ranks that all have the cause; where one has it not, or another cause, the function is news."""
    found = _localised(name, stack=stack)
    assert without_told(found, _on(cause, 0, 1, 2)).abnormal == ()
    assert without_told(found, _on(cause, 1)) == found
    assert without_told(found, _on("cpu_contention", 1, 2)) == found
    assert without_told(found, []) == found


def test_a_function_that_costs_more_than_what_is_said_of_it_is_news():
    """Of its 500 ms half must be told, by one finding or by several of the cause; one without a cost tells nothing."""
    found = _localised("aten::tanh")
    assert without_told(found, _on("dispatch", 1, 2, lost_ms=249)) == found
    assert without_told(found, _on("dispatch", 1, 1, 2, 2, lost_ms=125)).abnormal == ()
    assert without_told(found, _on("dispatch", 1, 2, lost_ms=0)) == found


def test_other_functions_are_news():
    """The user's own code beside a slow loader, and kernels whose operators are dispatched too slowly."""
    other = _localised("train.py(20): forward", stack=("train.py(4): main",))
    assert without_told(other, _on("data_reading", 1, 2)) == other
    waits = _localised("aten::_local_scalar_dense", stack=("train.py(4): main", "aten::item"))
    assert without_told(waits, _on("dispatch", 1, 2)) == waits
    kernel = _localised("aten::kernel", kind=FunctionClass.COMPUTE)
    assert without_told(kernel, _on("dispatch", 1, 2)) == kernel


def test_a_slow_rank_is_told_with_what_its_host_does_alone():
    """Rank 2 alone is throttled; where every rank is, it is not why the others wait for rank 2."""
    throttled = Evidence(host_samples=HostSamples(span_ns=100, throttled_ns=40, run_queue_wait_ns=0))
    quiet = Evidence(host_samples=HostSamples(span_ns=100, throttled_ns=0, run_queue_wait_ns=0))

    def evidence_of_rank_2(throttled_ranks) -> str:
        ranks = [
            analyse_rank(
                rank_columns(rank, slept_ms={2: 40}),
                rank=rank,
                evidence=throttled if rank in throttled_ranks else quiet,
            )
            for rank in RANKS
        ]
        found = analyse_cluster(ranks).findings
        (straggler,) = [each for each in found if each.cause == "waiting_for_straggler"]
        return " ".join(straggler.evidence)

    assert "there alone cpu_contention: its control group was throttled 40.0 %" in evidence_of_rank_2({2})
    assert "cpu_contention" not in evidence_of_rank_2(set(RANKS))
