"""Names that become parts of paths, topics and labels."""

from pathlib import Path

import pytest

from lockstep.contracts import paths
from lockstep.contracts.errors import ConfigError


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a b", "a\n", "ä", "x" * 129, "a\0"])
def test_names_that_could_leave_their_place_are_refused(name):
    """Nothing that could escape a directory, a topic or a label is a name."""
    assert not paths.is_name(name)
    with pytest.raises(ConfigError, match="run name"):
        paths.run_directory(Path("/r"), name)


@pytest.mark.parametrize(
    ("text", "name"),
    [("run-1.a_b", "run-1.a_b"), ("a b", "a-b"), ("a: b", "a-b"), ("../a", "a"), ("x" * 129, "x" * 128), ("ä/", "")],
)
def test_what_others_call_a_thing_becomes_a_name(text, name):
    """It stays what it is where it is a name, two texts with different letters stay apart, and nothing may be left."""
    assert paths.derived_name(text) == name
    assert name == "" or paths.is_name(name)


@pytest.mark.parametrize(
    ("entry", "rank"),
    [
        ("0.ring", 0),
        ("12.ring", 12),
        ("01.ring", None),
        ("1.ring.tmp", None),
        ("x.ring", None),
        ("-1.ring", None),
        ("control", None),
    ],
)
def test_only_rings_name_a_rank(entry, rank):
    """A directory entry names a rank only in the one form that agents write."""
    assert paths.rank_of_ring(entry) == rank
