"""Stacks of a hang: the tree of all ranks, and the sentence, function and cause that follow."""

from collections.abc import Sequence

import pytest

from coordinator.detect.hangs.hang_stacks import TREE_LINES_MAX, explain_hang, merge, place_of, tree_text
from coordinator.detect.hangs.ranks_text import ranks_text
from lockstep.contracts.messages import RankStacks, ThreadStack

SITE = "/usr/lib/python3.11/site-packages"
MAIN = ("/srv/train.py", 120, "main")
DOWNLOAD = (("/srv/train.py", 88, "stuck_in_download"), MAIN)
LOADER = (
    ("/usr/lib/python3.11/socket.py", 706, "readinto"),
    ("/srv/data.py", 12, "fetch"),
    (f"{SITE}/torch/utils/data/dataloader.py", 630, "__next__"),
    MAIN,
)
BACKWARD = (
    (f"{SITE}/torch/autograd/graph.py", 829, "_engine_run_backward"),
    (f"{SITE}/torch/_tensor.py", 648, "backward"),
    MAIN,
)


BUFFERS = ((f"{SITE}/torch/nn/parallel/distributed.py", 2363, "_distributed_broadcast_coalesced"), MAIN)
FORWARD = (("/srv/model.py", 7, "forward"), (f"{SITE}/torch/nn/parallel/distributed.py", 1600, "forward"), MAIN)


def collective(name):
    return (
        (f"{SITE}/torch/distributed/distributed_c10d.py", 100, "_wait"),
        (f"{SITE}/torch/distributed/distributed_c10d.py", 2501, name),
        (f"{SITE}/torch/distributed/c10d_logger.py", 81, "wrapper"),
        MAIN,
    )


def stacks(rank, frames=(), reason=""):
    threads = [ThreadStack(is_training=True, frames=list(frames))] if frames else []
    return RankStacks(run="job", node="n", rank=rank, request_id=1, unix_ns=1, threads=threads, reason=reason)


def explain(frames_of, late=(1,), cause="unknown", scope="rank"):
    return explain_hang([stacks(rank, frames) for rank, frames in frames_of.items()], late, cause, scope)


def test_the_late_rank_stands_in_its_function_and_the_others_wait():
    """The sentence of the incident, its function and its cause."""
    found = explain({0: BACKWARD, 1: DOWNLOAD, 2: BACKWARD, 3: BACKWARD})
    assert found.evidence == ("rank 1 stands in train.py(88): stuck_in_download, the 3 others wait in backward",)
    assert (found.function, found.cause, found.root_cause) == ("train.py(88): stuck_in_download", "compute", "")
    assert found.tree == (
        "ranks 0-3: train.py(120): main",
        "  rank 1: train.py(88): stuck_in_download",
        "  ranks 0, 2-3: _tensor.py(648): backward > graph.py(829): _engine_run_backward",
    )


@pytest.mark.parametrize(
    ("frames", "cause", "function"),
    [
        (LOADER, "data", "data.py(12): fetch"),
        (DOWNLOAD, "compute", "train.py(88): stuck_in_download"),
        (collective("all_reduce"), "link", "train.py(120): main"),
        ((("/usr/lib/python3.11/selectors.py", 415, "select"),), "compute", "selectors.py(415): select"),
    ],
)
def test_the_cause_is_what_the_stack_of_the_late_rank_is_in(frames, cause, function):
    """Code that loads data, another collective, anything else."""
    found = explain({0: BACKWARD, 1: frames})
    assert (found.cause, found.function) == (cause, function)


def test_our_own_frames_are_never_the_culprit():
    """A hook of the agent stands innermost: the frame that it was called from is named, and no tree shows it."""
    own = (f"{SITE}/lockstep/agent/boundary.py", 60, "guarded")
    found = explain({0: BACKWARD, 1: (own, *DOWNLOAD)})
    assert found.function == "train.py(88): stuck_in_download"
    assert not any("boundary" in line for line in (*found.tree, *found.evidence))
    assert explain({0: BACKWARD, 1: (own,)}).function == ""


def test_different_collectives_of_one_group_are_a_mismatch():
    """All have issued as many: the stacks show that rank 1 is in another one. Alike, the link remains the cause."""
    alike = explain({0: collective("all_reduce"), 1: collective("all_reduce")}, (0, 1), "link", "group")
    assert (alike.cause, alike.root_cause) == ("", "")
    found = explain({0: collective("all_reduce"), 1: collective("broadcast")}, (0, 1), "link", "group")
    assert (found.cause, found.root_cause) == ("unknown", "mismatch")
    assert found.evidence[0] == "rank 0 waits in all_reduce, rank 1 waits in broadcast"


def test_ranks_that_wait_for_each_other_are_a_deadlock():
    """In a cycle, all of them in collectives; where one of them is elsewhere it is no deadlock."""
    cycle = {0: collective("all_reduce"), 1: collective("all_reduce")}
    assert explain(cycle, (0, 1), scope="group").root_cause == "deadlock"
    assert explain(cycle | {1: DOWNLOAD}, (0, 1), scope="group").root_cause == ""


def test_a_rank_without_a_stack_is_given_its_reason():
    """It is stopped, or its process cannot be reached: others' stacks are shown all the same."""
    late = stacks(1, reason="the process is stopped by a signal")
    found = explain_hang([stacks(0, BACKWARD), late], (1,), "unknown", "rank")
    assert found.evidence == (
        "rank 0 waits in backward",
        "rank 1 has no stack: the process is stopped by a signal",
    )
    assert (found.function, found.cause) == ("", "")
    assert explain_hang([late], (), "unknown", "job").tree == ()


def test_ranks_are_written_in_few_characters():
    """Spans, four of them at most."""
    assert ranks_text([1]) == "rank 1"
    assert ranks_text([0, *range(2, 1024)]) == "ranks 0, 2-1023"
    assert ranks_text(range(0, 20, 2)) == "ranks 0, 2, 4, 6 and 6 more"


class Counted(Sequence):
    """A stack that counts how often its frames are asked for."""

    looks = 0

    def __init__(self, frames):
        self.frames = frames

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        Counted.looks += 1
        return self.frames[index]


def test_ten_thousand_ranks_are_merged_by_one_look_at_each_frame():
    """The work grows with the frames, and the text does not: 10,240 ranks of 60 frames, each with a place of its own."""
    ranks, deep = 10_240, 59
    Counted.looks = 0
    outer = [("/srv/train.py", line, "call") for line in range(deep)]
    frames_of = {rank: Counted([("/srv/train.py", rank, "leaf"), *outer]) for rank in range(ranks)}
    root = merge(frames_of)
    assert Counted.looks == ranks * (deep + 1)
    lines = tree_text(root)
    assert len(lines) == TREE_LINES_MAX
    assert lines[0].startswith("ranks 0-10239: ... > ")
    assert lines[-1] == "..."


def test_a_stack_without_frames_has_no_place():
    """Nothing is named."""
    assert place_of(()) is None


def test_a_rank_in_a_collective_of_ddp_waits_there():
    """It broadcasts a module's buffers in C++; the forward that it calls is none of its collectives."""
    place = place_of(BUFFERS)
    assert (place.inside, place.is_collective) == ("distributed_broadcast_coalesced", True)
    assert place_of(FORWARD).is_collective is False
    found = explain({0: BUFFERS, 1: DOWNLOAD, 2: BACKWARD})
    assert "rank 0 waits in distributed_broadcast_coalesced" in found.evidence[0]


def test_a_line_that_is_too_long_keeps_its_innermost_frame():
    """What the ranks are in counts more than what led there."""
    deep = tuple((f"/srv/{'m' * 60}{number}.py", number, "f" * 30) for number in range(4))
    (line,) = tree_text(merge({0: deep}))
    assert line.startswith("rank 0: ... > ")
    assert line.endswith(f"m0.py(0): {'f' * 30}")
    (line,) = tree_text(merge({0: (("/srv/x.py", 1, "f" * 300),)}))
    assert len(line) == 160
