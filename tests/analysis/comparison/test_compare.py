"""Two runs side by side: one injected regression each, and none between equal runs."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from lockstep.analysis.comparison.compare import ALL_RANKS, ChangeVerdict, ObservedRun, compare, regressions
from lockstep.analysis.comparison.observe import TOTAL, ComparedQuantity, QuantityKind, observe
from lockstep.trace.kineto.load import load_trace
from tests.analysis.comparison.made_run import LOADER, Job

RECORDED = Path(__file__).parents[1] / "recorded"


def run_of(job):
    return ObservedRun(ranks=tuple(observe(columns, rank) for rank, columns in enumerate(job.columns())))


def found(before, after, **options):
    return {each.quantity: each for each in regressions(compare(run_of(before), run_of(after), **options))}


@pytest.mark.parametrize("seed", range(8))
def test_equal_runs_have_no_regression(seed):
    """Durations scatter by 3 %, whole runs by 1 %: no seed shows a change, either way round."""
    one, other = run_of(Job(seed=seed)), run_of(Job(seed=100 + seed))
    for before, after in ((one, other), (other, one)):
        assert [each for each in compare(before, after) if each.verdict is not ChangeVerdict.SAME] == []


@pytest.mark.parametrize("seed", range(4))
def test_equal_runs_that_scatter_widely_have_no_regression(seed):
    """A quarter of each duration as noise, and few steps: what cannot be known is not claimed."""
    jobs = [Job(seed=each, noise=0.25, steps=3) for each in (seed, 50 + seed)]
    assert found(*jobs) == {}


def test_a_slower_operator_is_named():
    """One kernel takes 1.4 times as long: that kernel, the device's total, and the step; no other kernel."""
    changed = found(Job(seed=1), Job(seed=2, operator_factor=1.4))
    assert set(changed) == {
        ComparedQuantity(QuantityKind.STEP, "step"),
        ComparedQuantity(QuantityKind.KERNEL, TOTAL),
        ComparedQuantity(QuantityKind.KERNEL, "gemm_backward"),
    }
    kernel = changed[ComparedQuantity(QuantityKind.KERNEL, "gemm_backward")]
    assert kernel.difference == pytest.approx(0.4 * 2_000_000, rel=0.1)
    assert kernel.step_ratio == pytest.approx(0.8 / 11.1, rel=0.1)


def test_a_slower_operator_of_one_rank_names_the_rank():
    """The others wait for it: their step is longer as well, their kernels are not."""
    changed = found(Job(seed=1), Job(seed=2, operator_factor=1.4, slow_rank=2))
    assert changed[ComparedQuantity(QuantityKind.KERNEL, "gemm_backward")].rank == 2
    assert ComparedQuantity(QuantityKind.STEP, "step") in changed


def test_more_kernels_are_counted():
    """Three launches more in each step: the count, the kernel and its operator."""
    changed = found(Job(seed=1), Job(seed=2, extra_launches=3))
    count = changed[ComparedQuantity(QuantityKind.COUNT, "kernels")]
    assert (count.before, count.after, count.step_ratio) == (13, 16, None)
    assert ComparedQuantity(QuantityKind.KERNEL, "softmax") in changed
    assert ComparedQuantity(QuantityKind.COLLECTIVE, "all_reduce among 4 ranks, 4194304 bytes") not in changed


def test_a_slower_collective_is_named():
    """The transmission takes half as long again; no kernel and no function does."""
    changed = found(Job(seed=1), Job(seed=2, transfer_ns=4_500_000))
    assert set(changed) == {
        ComparedQuantity(QuantityKind.STEP, "step"),
        ComparedQuantity(QuantityKind.COLLECTIVE, "all_reduce among 4 ranks, 4194304 bytes"),
    }


def test_a_slower_loader_is_named():
    """One rank's loader takes 2 ms more: the loader and that rank; the collective, in which others wait, is as fast."""
    changed = found(Job(seed=1), Job(seed=2, loader_extra_ns=2_000_000, slow_rank=3))
    assert set(changed) == {
        ComparedQuantity(QuantityKind.STEP, "step"),
        ComparedQuantity(QuantityKind.FUNCTION, TOTAL),
        ComparedQuantity(QuantityKind.FUNCTION, LOADER),
    }
    assert changed[ComparedQuantity(QuantityKind.FUNCTION, LOADER)].rank == 3


def test_the_way_back_is_an_improvement():
    """What was fixed is shown, and fails no gate."""
    changes = compare(run_of(Job(seed=1, operator_factor=1.4)), run_of(Job(seed=2)))
    assert regressions(changes) == []
    assert ComparedQuantity(QuantityKind.KERNEL, "gemm_backward") in {
        each.quantity for each in changes if each.verdict is ChangeVerdict.IMPROVEMENT
    }


def test_runs_of_other_sizes_are_compared_as_a_whole():
    """Two ranks against four: no rank is named, and a regression is found all the same."""
    changed = found(Job(seed=1, ranks=2), Job(seed=2, ranks=4, operator_factor=1.5))
    assert changed[ComparedQuantity(QuantityKind.KERNEL, "gemm_backward")].rank == ALL_RANKS
    assert changed[ComparedQuantity(QuantityKind.KERNEL, "gemm_backward")].as_json()["rank"] is None


def test_a_kernel_with_another_name_is_no_regression_by_itself():
    """A library that chooses another kernel of the same speed changes names, not the total."""
    before = run_of(Job(seed=1))
    after = run_of(Job(seed=2))
    renamed = ObservedRun(ranks=tuple(replace(each, samples=_renamed(each.samples)) for each in after.ranks))
    changes = {each.quantity.name: each.verdict for each in compare(before, renamed)}
    assert (changes["gemm_forward"], changes["gemm_forward_v2"]) == (ChangeVerdict.LESS, ChangeVerdict.MORE)
    assert ChangeVerdict.REGRESSION not in changes.values()


def test_a_kernel_that_takes_anothers_place_is_no_regression():
    """Autotuning moves time between two kernels of both runs; their sum stays."""
    before, after = run_of(Job(seed=1)), run_of(Job(seed=2))
    shifted = ObservedRun(ranks=tuple(replace(each, samples=_shifted(each.samples)) for each in after.ranks))
    changes = {each.quantity.name: each.verdict for each in compare(before, shifted)}
    assert (changes["gemm_forward"], changes["softmax"]) == (ChangeVerdict.MORE, ChangeVerdict.LESS)
    assert ChangeVerdict.REGRESSION not in changes.values()


def _shifted(samples):
    one, other = (ComparedQuantity(QuantityKind.KERNEL, name) for name in ("gemm_forward", "softmax"))
    return samples | {one: samples[one] + 1e6, other: samples[other] - 1e6}


def test_one_odd_step_hides_no_regression():
    """The first step after a pause is ten times as long; the others are enough."""
    before, after = (_with_odd_step(run_of(job)) for job in (Job(seed=1), Job(seed=2, operator_factor=1.5)))
    changed = {each.quantity for each in regressions(compare(before, after))}
    assert ComparedQuantity(QuantityKind.STEP, "step") in changed
    assert ComparedQuantity(QuantityKind.KERNEL, "gemm_backward") in changed


def _with_odd_step(run):
    factors = np.array([10.0, *[1.0] * 7])
    return ObservedRun(
        ranks=tuple(
            replace(each, samples={name: values * factors for name, values in each.samples.items()})
            for each in run.ranks
        )
    )


def _renamed(samples):
    old, new = (
        ComparedQuantity(QuantityKind.KERNEL, "gemm_forward"),
        ComparedQuantity(QuantityKind.KERNEL, "gemm_forward_v2"),
    )
    return {new if name == old else name: values for name, values in samples.items()}


def test_the_tolerance_is_a_choice():
    """A kernel that is 9 % slower, 2.2 % of the step, passes with 10 % of tolerance, and does not with 5 %."""
    steady = {"noise": 0.001, "drift": 0, "kernel_ns": 6_000_000, "transfer_ns": 100_000}
    jobs = Job(seed=1, **steady), Job(seed=2, operator_factor=1.09, **steady)
    assert ComparedQuantity(QuantityKind.KERNEL, "gemm_backward") in found(*jobs)
    assert found(*jobs, tolerance=0.1) == {}


def test_one_step_each_is_evaluated_by_a_wide_limit():
    """No one knows the noise of one step: a quarter more is let pass, twice as much is not."""
    assert found(Job(seed=1, steps=1), Job(seed=2, steps=1, operator_factor=1.2)) == {}
    assert ComparedQuantity(QuantityKind.KERNEL, "gemm_backward") in found(
        Job(seed=1, steps=1), Job(seed=2, steps=1, operator_factor=2.0)
    )


def recorded(name, folder=RECORDED):
    ranks = [load_trace(path) for path in sorted((folder / name).glob("rank*.json.gz"))]
    return ObservedRun(ranks=tuple(observe(columns, rank) for rank, columns in enumerate(ranks)))


@pytest.mark.parametrize("names", list(permutations(("first", "second", "third"), 2)))
def test_recordings_of_one_job_have_no_regression(names):
    """A healthy job of four real ranks, recorded three times on a machine shared with others (`recorded_job`)."""
    before, after = (recorded(name, Path(__file__).parent / "recorded") for name in names)
    assert regressions(compare(before, after)) == []


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("forward", "DistributedDataParallel.forward"),
        ("loader", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    ],
)
def test_recorded_faults_are_named(name, function):
    """A real job of four ranks against itself healthy: function and rank of the fault, and the step."""
    changes = {each.quantity: each for each in regressions(compare(recorded("healthy"), recorded(name)))}
    change = changes[ComparedQuantity(QuantityKind.FUNCTION, function)]
    assert change.rank == 2
    assert change.difference == pytest.approx(40e6, rel=0.1)
    assert ComparedQuantity(QuantityKind.STEP, "step") in changes


def test_self_times_of_functions_sum_to_the_total():
    """No time of a thread belongs to two functions."""
    for rank in recorded("forward_stacks").ranks:
        functions = {name: values for name, values in rank.samples.items() if name.kind is QuantityKind.FUNCTION}
        total = functions.pop(ComparedQuantity(QuantityKind.FUNCTION, TOTAL))
        assert np.allclose(sum(functions.values()), total)
