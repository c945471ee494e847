"""The table of how runs end, where this machine cannot make one of them happen."""

import pytest

from benchmarks.run_endings import COLUMNS, Found, ways

pytestmark = pytest.mark.torch


def test_a_row_that_this_machine_cannot_run_stays_in_the_table(tmp_path):
    """An OOM kill needs a control group; without one the row gives the reason."""
    without, with_group = (
        [way for way in ways(group) if way.root_cause == "out of memory"] for group in (None, tmp_path)
    )
    (row,) = [Found(way=way, run="").cells() for way in without]
    assert row[1].startswith("not run: this user or container cannot make a control group")
    assert len(row) == len(COLUMNS)
    assert [way.environment for way in with_group] == [{"MEMORY_CGROUP": str(tmp_path)}]
