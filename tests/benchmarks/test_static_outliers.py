"""What the page on detection states of outliers among static differences."""

import pytest

from benchmarks.static_outliers import main, named_share


def test_eight_devices_of_a_fleet_ten_times_as_wide_as_the_prior_have_false_outliers_at_the_stated_rate():
    """Three in a thousand: the healthy ones are selected as the most alike, and the prior is narrower than the fleet."""
    assert 0.001 < named_share(8, 0.03, 4000) < 0.006
    assert named_share(8, 0.0025, 4000) == 0


@pytest.mark.parametrize(("spread", "ratio"), [(0.0025, 0.05), (0.014, 0.20)])
def test_a_device_that_is_slow_from_the_first_step_is_found_among_eight(spread, ratio):
    assert named_share(8, spread, 500, slow_by=ratio) > 0.98


def test_both_tables_are_printed(capsys):
    main(["--fleets", "20"])
    assert capsys.readouterr().out.count("ranks") == 2
