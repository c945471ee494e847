"""Patterns of a recorded rank whose forward was made slow by sleeping."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.contracts.codec import encode
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.patterns import (
    FunctionClass,
    PatternSummary,
    Resource,
    Samples,
    patterns_of,
    summarise_patterns,
    table_of,
)
from lockstep.trace.steps import find_steps
from tests.contracts.test_deflated_summary import EMPTY
from tests.trace.traces import RECORDING


@pytest.fixture(scope="module")
def summary() -> PatternSummary:
    columns = load_trace(RECORDING)
    steps = find_steps(columns)
    window_ns = int(steps.start_ns[0]), int(steps.end_ns[-1])
    values = np.full(10_000, 0.5)
    cpu = Samples(start_ns=window_ns[0], period_ns=100_000, values=values, peak=1.0)
    return summarise_patterns(columns, window_ns, thread=steps.thread, samples={Resource.CPU: cpu})


def test_the_sleep_is_found_under_its_caller(summary):
    """The largest host function, by leaf time, with its stack."""
    largest = next(each for each in summary.patterns if each.kind is FunctionClass.HOST)
    assert "sleep" in largest.function
    assert "forward" in largest.stack[-1]
    assert largest.beta > 0.2
    assert (largest.mu, largest.sigma) == (pytest.approx(0.5, abs=1e-4), 0)


def test_all_of_the_window_is_somebodys(summary):
    """One training thread, collectives where it waits."""
    assert sum(each.beta for each in summary.patterns) + summary.omitted_beta == pytest.approx(1, abs=1e-9)


def test_it_travels_whole(summary):
    """All functions above 1e-4, with stacks and usage, in less than the limit."""
    table = table_of(summary, len(summary.patterns))
    assert len(encode(replace(EMPTY, patterns=table))) < 8000
    assert len(patterns_of(table).patterns) == len(summary.patterns)
