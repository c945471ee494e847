"""The picture of merged stacks: a row for each line of the tree, its share of the ranks, the late ones apart."""

import re

from coordinator.detect.hangs.hang_stacks import merge, tree_text
from coordinator.page.stack_tree import draw_stacks, read_rows

MAIN, LATE, WAITS = ("/srv/train.py", 120, "main"), ("/srv/train.py", 88, "load"), ("/srv/torch.py", 3, "all_reduce")


def lines_of(ranks, late):
    return tree_text(merge({rank: (LATE if rank in late else WAITS, MAIN) for rank in ranks}))


def test_rows_have_the_depth_ranks_and_frames_of_the_tree():
    """Read from what `tree_text` writes, for ranks that are written out and for those that are only counted."""
    rows = read_rows(lines_of(range(1024), {5}))
    assert [(row.depth, row.count, row.frames) for row in rows] == [
        (0, 1024, "train.py(120): main"),
        (1, 1, "train.py(88): load"),
        (1, 1023, "torch.py(3): all_reduce"),
    ]
    assert rows[1].named == {5}
    odd = read_rows(lines_of(range(40), set(range(1, 40, 2))))
    assert [row.count for row in odd] == [40, 20, 20]
    assert read_rows(("...", "", "no tree")) == []


def test_the_late_rank_stands_out_and_each_row_is_its_share():
    """One of 1,024 is still to be seen."""
    drawn = draw_stacks(lines_of(range(1024), {5}), (5,))
    assert drawn.count("<text") == 3
    widths = [float(each) for each in re.findall(r'width="([0-9.]+)%" height="22" class="(?:late|others)"', drawn)]
    assert widths[0] == 100
    assert 0.3 < widths[1] < 1
    assert 96 < widths[2] < 97
    assert drawn.count('class="late"') == 1
    assert "rank 5: train.py(88): load" in drawn
    assert 'role="img"' in drawn


def test_frames_are_text():
    """Names come from the training."""
    drawn = draw_stacks(("rank 1: <script>alert(1)</script>",), ())
    assert "<script" not in drawn
    assert "&lt;script" in drawn


def test_without_stacks_there_is_no_picture():
    """A hang whose ranks wrote nothing."""
    assert draw_stacks((), (1,)) == ""
