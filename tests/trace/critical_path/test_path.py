from lockstep.trace.columns import ABSENT
from lockstep.trace.critical_path.path import CriticalPath, PathClass, PathShare, Segment, Why, ranked


def _segment(name, path_class, start_ns, end_ns, why=Why.THREAD):
    return Segment(name, path_class, start_ns, end_ns, ABSENT, why)


PATH = CriticalPath(
    (0, 100),
    [
        _segment("f", PathClass.HOST, 0, 10),
        _segment("gemm", PathClass.GAP, 10, 15, Why.LAUNCH),
        _segment("gemm", PathClass.COMPUTE, 15, 55, Why.STREAM),
        _segment("nccl", PathClass.COMMUNICATION, 55, 75, Why.ALIGNMENT),
        _segment("f", PathClass.HOST, 75, 100, Why.END),
    ],
)


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
    assert {why for why in Why if why.is_guess} == {Why.ALIGNMENT, Why.RAN_LAST}
    assert PATH.guessed_ns() == 20
