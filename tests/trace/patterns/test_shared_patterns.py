"""Every recording next to the checkout: the account of beta, the size on the wire, and the slow rank of four."""

from dataclasses import replace

import pytest

from lockstep.analysis.fitting import PATTERNS_MAX
from lockstep.contracts.codec import decode, encode
from lockstep.diagnosis.localisation import findings_of, gather, localise
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.patterns import PatternSummary, patterns_of, summarise_patterns, table_of
from lockstep.trace.steps import find_steps
from tests.contracts.test_deflated_summary import EMPTY, TOPIC
from tests.trace.traces import SHARED_TRACES

pytestmark = pytest.mark.shared

_SEVERAL_STREAMS = ("control", "test", "benchmark_result")
"""Where functions of one class run at the same time beta sums to slightly more than 1."""


def summary_of(path) -> PatternSummary:
    columns = load_trace(path)
    steps = find_steps(columns)
    window_ns = int(steps.start_ns.min()), int(steps.end_ns.max())
    return summarise_patterns(columns, window_ns, thread=steps.thread)


@pytest.mark.parametrize("path", SHARED_TRACES, ids=[f"{path.parent.name}/{path.name}" for path in SHARED_TRACES])
def test_beta_sums_to_one_and_the_summary_is_small(path):
    """Nothing of the window is lost or counted twice, and all that matters travels."""
    summary = summary_of(path)
    total = sum(each.beta for each in summary.patterns) + summary.omitted_beta
    if path.name.startswith(_SEVERAL_STREAMS):
        assert 1 <= total < 1.05
    else:
        assert total == pytest.approx(1, abs=1e-9)
    sent = decode(TOPIC, encode(replace(EMPTY, patterns=table_of(summary, len(summary.patterns)))))
    assert len(patterns_of(sent.patterns).patterns) == len(summary.patterns) > 5


def test_the_slow_forward_of_four_ranks_comes_first():
    """From traces over the wire to a finding: the right rank, function and caller."""
    folder = [path for path in SHARED_TRACES if path.parent.name == "slow_forward_rank2_with_stack"]
    sent = {rank: table_of(summary_of(path), PATTERNS_MAX) for rank, path in enumerate(folder)}
    found = findings_of(localise(gather({rank: patterns_of(table) for rank, table in sent.items()})))
    assert found[0].ranks == (2,)
    assert "sleep" in found[0].subject
    assert "forward" in found[0].evidence[-1]
