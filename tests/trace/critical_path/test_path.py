import numpy as np

from lockstep.trace.columns import ABSENT
from lockstep.trace.critical_path.path import (
    CODE_OF,
    CriticalPath,
    DependencyKind,
    PathClass,
    PathShare,
    Segment,
    ranked,
)

SEGMENTS = [
    Segment("f", PathClass.HOST, 0, 10, ABSENT, DependencyKind.THREAD),
    Segment("gemm", PathClass.GAP, 10, 15, 3, DependencyKind.LAUNCH),
    Segment("gemm", PathClass.COMPUTE, 15, 55, 3, DependencyKind.STREAM),
    Segment("nccl", PathClass.COMMUNICATION, 55, 75, 4, DependencyKind.ALIGNMENT),
    Segment("f", PathClass.HOST, 75, 100, ABSENT, DependencyKind.END),
]
PATH = CriticalPath(
    window_ns=(0, 100),
    start_ns=np.array([each.start_ns for each in SEGMENTS]),
    end_ns=np.array([each.end_ns for each in SEGMENTS]),
    name=np.array([0, 1, 1, 2, 0]),
    names=["f", "gemm", "nccl"],
    path_class=np.array([CODE_OF[each.path_class] for each in SEGMENTS], np.int8),
    event=np.array([each.event for each in SEGMENTS]),
    why=np.array([CODE_OF[each.why] for each in SEGMENTS], np.int8),
)


def test_segments_are_what_the_columns_hold():
    """One by one, in order of time."""
    assert PATH.segments == SEGMENTS


def test_what_takes_most_comes_first_and_classes_are_apart():
    """A kernel's own time and the gap before it are two things; all of it sums to the window."""
    assert ranked(PATH) == [
        PathShare("gemm", PathClass.COMPUTE, 40, 1),
        PathShare("f", PathClass.HOST, 35, 2),
        PathShare("nccl", PathClass.COMMUNICATION, 20, 1),
        PathShare("gemm", PathClass.GAP, 5, 1),
    ]
    assert ranked(PATH)[0].as_json() == {"name": "gemm", "class": "compute", "ns": 40}


def test_time_by_class_has_every_class():
    """Also those that are not on the path."""
    by_class = PATH.by_class()
    assert set(by_class) == set(PathClass)
    assert sum(by_class.values()) == 100
    assert by_class[PathClass.MEMORY] == 0


def test_guesses_are_distinguished_from_records():
    """Only alignment and what ran last are guesses."""
    assert {why for why in DependencyKind if why.is_guess} == {DependencyKind.ALIGNMENT, DependencyKind.RAN_LAST}
    assert PATH.guessed_ns() == 20
