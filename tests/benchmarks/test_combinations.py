"""Random combinations of what scenarios have one by one."""

from dataclasses import replace

from benchmarks.combinations import draw, main, measure
from benchmarks.scenarios.job import Imbalance, Noise


def test_a_seed_is_one_job_with_and_without_a_fault():
    """The healthy job of a seed shows what the other one adds."""
    for seed in range(20):
        healthy, slow = (draw(seed, has_fault=has_fault) for has_fault in (False, True))
        assert replace(slow, faults=()) == healthy == draw(seed, has_fault=False)
    assert len({draw(seed, has_fault=False).degrees for seed in range(20)}) > 5


def test_what_the_state_machine_names_is_scored():
    """A rank that is twice as slow is found, and nothing is named in the same job without it."""
    job = replace(draw(3, has_fault=True), degrees="dp=8", noise=Noise(), imbalance=Imbalance())
    slow = replace(job, faults=(replace(job.faults[0], ratio=1.0, ranks=(5,)),))
    assert measure(slow).found == 1
    assert measure(replace(job, faults=())).wrong == 0


def test_both_sums_are_printed(capsys):
    """One line of healthy jobs, and two of those with a fault."""
    main(["--runs", "1", "--first-seed", "5"])
    printed = capsys.readouterr().out
    assert "1 jobs without a fault" in printed
    assert "found 1 of 1" in printed
