from lockstep.trace.columns import ABSENT, COPY, DRIVER, KERNEL, OPERATOR, RUNTIME
from lockstep.trace.launches import launches_of
from tests.trace.made import columns_of, made


def test_work_finds_the_call_that_launched_it():
    """By correlation, in whatever order the file has them; one call can launch many, as a graph's does."""
    columns = columns_of(
        [
            made("gemm", KERNEL, 9, 50, stream=7, correlation=2),
            made("cudaGraphLaunch", RUNTIME, 1, 0, correlation=2),
            made("copy", COPY, 9, 60, stream=7, correlation=2),
            made("gemm", KERNEL, 9, 70, stream=7, correlation=1),
            made("cudaLaunchKernel", RUNTIME, 1, 10, correlation=1),
        ]
    )
    assert launches_of(columns).tolist() == [1, ABSENT, 1, 4, ABSENT]


def test_of_nested_calls_the_outer_one_launched():
    """A runtime call and the driver call inside it have one correlation."""
    columns = columns_of(
        [
            made("cuLaunchKernel", DRIVER, 1, 12, 5, correlation=1),
            made("cudaLaunchKernel", RUNTIME, 1, 10, 9, correlation=1),
            made("gemm", KERNEL, 9, 70, stream=7, correlation=1),
        ]
    )
    assert launches_of(columns)[2] == 1


def test_work_launched_before_the_trace_has_no_launch():
    """Neither a missing call, nor the 0 and ABSENT of a writer that does not know, nor an operator is a launch."""
    columns = columns_of(
        [
            made("cudaLaunchKernel", RUNTIME, 1, 0, correlation=0),
            made("aten::mm", OPERATOR, 1, 0, correlation=5),
            made("cudaLaunchKernel", RUNTIME, 1, 10, correlation=1),
            *(made("gemm", KERNEL, 9, 50, stream=7, correlation=correlation) for correlation in (0, ABSENT, 2, 5)),
        ]
    )
    assert launches_of(columns).tolist() == [ABSENT] * 7


def test_a_trace_without_calls_has_no_launches():
    """Nothing to find is no error."""
    assert launches_of(columns_of([made("gemm", KERNEL, 9, 50, stream=7, correlation=3)])).tolist() == [ABSENT]
    assert launches_of(columns_of([])).tolist() == []
