"""Lists of patterns, ragged, become one array."""

import numpy as np
import pytest

from lockstep.contracts.errors import LocalError
from lockstep.diagnosis.localisation import Function, PatternMatrix, gather, matrix
from lockstep.trace.patterns import FunctionClass, Pattern, PatternSummary

GEMM = Function(FunctionClass.COMPUTE, (), "gemm")
READ = Function(FunctionClass.HOST, ("train", "next"), "read")


def pattern(function, beta, mu=None, sigma=None) -> Pattern:
    return Pattern(function=function.name, stack=function.stack, kind=function.kind, beta=beta, mu=mu, sigma=sigma)


def summary(*patterns, window_ns=100) -> PatternSummary:
    return PatternSummary(window_ns=window_ns, patterns=patterns)


def test_what_a_rank_does_not_run_is_nothing_and_unmeasured():
    """Beta is a measured 0, usage is not a number; ranks are in order."""
    got = gather({5: summary(pattern(GEMM, 0.5, 0.9, 0.1)), 2: summary(pattern(READ, 0.25), window_ns=300)})
    assert got.functions == [READ, GEMM]
    assert got.rank_W.tolist() == [2, 5]
    assert got.window_ns_W.tolist() == [300, 100]
    assert got.values_FDW[:, 0].tolist() == [[0.25, 0], [0, 0.5]]
    assert np.isnan(got.values_FDW[0, 1:]).all()
    assert np.isnan(got.values_FDW[1, 1:, 0]).all()
    assert got.values_FDW[1, 1:, 1] == pytest.approx([0.9, 0.1])


def test_one_function_under_two_stacks_is_two():
    """And the same name of another class is a third."""
    other = Function(FunctionClass.HOST, ("train",), "read")
    got = gather(
        {0: summary(pattern(READ, 0.2), pattern(other, 0.3), pattern(Function(FunctionClass.MEMORY, (), "read"), 0.1))}
    )
    assert len(got.functions) == 3


def test_functions_that_matter_nowhere_are_left_out():
    """At most 1 % of the window on every rank."""
    got = gather({0: summary(pattern(GEMM, 0.01), pattern(READ, 0.5)), 1: summary(pattern(GEMM, 0.009))})
    assert got.functions == [READ]
    assert got.left_out == 0


def test_a_function_that_is_listed_twice_has_the_sum():
    """Deep stacks that differ only beyond what travels."""
    got = gather({0: summary(pattern(READ, 0.25), pattern(READ, 0.5))})
    assert got.values_FDW[0, 0].tolist() == [0.75]


def test_what_does_not_fit_is_reported(monkeypatch):
    """Functions that take most time in all stay."""
    monkeypatch.setattr(matrix, "CELLS_MAX", 4)
    functions = [Function(FunctionClass.COMPUTE, (), f"k{at}") for at in range(5)]
    got = gather(
        {rank: summary(*(pattern(each, 0.02 + at / 50) for at, each in enumerate(functions))) for rank in (0, 1)}
    )
    assert got.functions == functions[3:]
    assert got.left_out == 3


def test_no_worker_and_no_function():
    """No rank, or ranks without functions."""
    assert gather({}).values_FDW.shape == (0, 3, 0)
    assert gather({0: summary()}).values_FDW.shape == (0, 3, 1)


@pytest.mark.parametrize(
    ("values", "windows", "what"),
    [
        (np.zeros((1, 3, 3), np.float32), 2, "values_FDW"),
        (np.zeros((1, 3, 2)), 2, "values_FDW"),
        (np.zeros((1, 3, 2), np.float32), 3, "window_ns_W"),
        (np.full((1, 3, 2), -1, np.float32), 2, "beta"),
        (np.full((1, 3, 2), np.nan, np.float32), 2, "beta"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(values, windows, what):
    """Ours to avoid, so reported at once."""
    with pytest.raises(LocalError, match=what):
        PatternMatrix([GEMM], np.arange(2), np.ones(windows, np.int64), values)
