"""What detectors learnt as bytes: it comes back whole, and nothing else is taken for it."""

import json
import zlib

import numpy as np
import pytest

from coordinator.decide.saved_run import LEARNT_VERSION, DetectorState, fingerprint_of, learnt_from_bytes
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.errors import MalformedError

LEARNT = DetectorState(
    fingerprint="abc",
    step=70,
    end_unix_s=1.79e9 + 0.125,
    arrays={
        "ranks.baseline": np.array([0.5, np.nan, -np.inf], dtype=np.float32),
        "ranks.alarm": np.array([[True, False]]),
        "evaluated": np.array(7, dtype=np.int64),
        "none": np.zeros((0, 3), dtype=np.uint16),
    },
)


def form(**changed):
    """Return bytes with another header before two float32."""
    header = {
        "version": LEARNT_VERSION,
        "fingerprint": "f",
        "step": 1,
        "end_unix_s": 1.0,
        "arrays": [["a", "<f4", [2]]],
    }
    body = changed.pop("body", zlib.compress(bytes(8)))
    return b"lockstep-learnt\n" + json.dumps(header | changed).encode() + b"\n" + body


def test_what_is_kept_comes_back():
    """Names, types, shapes and values, and writable."""
    back = learnt_from_bytes(LEARNT.to_bytes(), where="test")
    assert (back.fingerprint, back.step, back.end_unix_s) == ("abc", 70, LEARNT.end_unix_s)
    assert back.arrays.keys() == LEARNT.arrays.keys()
    for name, array in LEARNT.arrays.items():
        assert (back.arrays[name].dtype, back.arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back.arrays[name], array)
        assert back.arrays[name].flags.writeable
    assert learnt_from_bytes(form(), where="test").arrays["a"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "got None, expected 1"),
        (b"something else", "got None, expected 1"),
        (form(version=LEARNT_VERSION + 1), "got 2, expected 1"),
        (form(arrays=[["a", "|O", [1]]]), "expected arrays of numbers"),
        (form(arrays=[["a", "<U4", [1]]]), "expected arrays of numbers"),
        (form(arrays=[["a", "<f4", [-2]]]), "expected arrays of numbers"),
        (form(arrays=[["a", "<f4", [1 << 40]]]), "expected up to"),
        (form(arrays=[["a", "<f4", [3]]]), "got 8 bytes, expected 12"),
        (form(arrays=[["a", "<f4", [1]]]), "got 5 bytes, expected 4"),
        (form(arrays="x"), "expected the stored format"),
        (form(step=None), "expected the stored format"),
        (form(body=b"no zlib"), "expected the stored format"),
        (LEARNT.to_bytes()[:-3], "learnt state in test"),
    ],
)
def test_what_was_not_kept_by_this_version_is_refused(data, words):
    """Another version, objects, wrong sizes, damage: named, never half taken; sizes are checked before unpacking."""
    with pytest.raises(MalformedError, match=words):
        learnt_from_bytes(data, where="test")


def test_a_fingerprint_changes_with_all_that_arrays_are_about():
    """Ranks, groups, nodes and attempts each make another one; the same gives the same."""
    topology, other = from_degrees({"dp": 4}, 4), from_degrees({"tp": 2, "dp": 2}, 4)
    whole = (topology, [0, 1, 2, 3], ["a", "a", "b", "b"], [1, 1, 1, 1])
    made = {
        fingerprint_of(*whole),
        fingerprint_of(other, *whole[1:]),
        fingerprint_of(topology, [0, 1, 2], *whole[2:]),
        fingerprint_of(*whole[:2], ["a", "a", "a", "b"], whole[3]),
        fingerprint_of(*whole[:3], [1, 1, 1, 2]),
    }
    assert len(made) == 5
    assert fingerprint_of(*whole) == fingerprint_of(from_degrees({"dp": 4}, 4), *whole[1:])
