"""The kernels with real ranks: the same marks in Python, C and C++, whatever calls, and an end that is clean."""

import json
import subprocess
import sys
from functools import cache
from tempfile import TemporaryDirectory

import pytest

from tests.agent.hooks import native_builds

pytestmark = pytest.mark.torch
SCENES = (
    *("plain", "pairs", "coalesced", "sparse", "functional_collectives", "compiled", "data_parallel", "fully_sharded"),
    *("new_groups", "other_threads", "failing"),
)
LIMIT_S = 150


@cache
def noted():
    """Return what each of two ranks noted, and what it wrote to stderr."""
    with TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.agent.hooks.kernels_job"]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), f"{directory}/store", str(native_builds.library())],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        ended = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ended
    return [json.loads(out) for out, _ in ended], [errors for _, errors in ended]


@pytest.mark.parametrize("scene", SCENES)
def test_all_kernels_note_the_same(scene):
    """Issues with their call sites and bytes, and how their ends became known, on both ranks; no failure of ours."""
    for found in noted()[0]:
        in_python, in_c, in_cpp = (found[scene][name] for name in ("Python", "C", "C++"))
        assert in_python == in_c == in_cpp
        marks, elsewhere, failures = in_cpp
        assert failures == 0
        assert elsewhere == (scene == "other_threads")
        assert {"ISSUE"} < {kind for kind, *_ in marks}


def test_an_exception_of_a_collective_passes_unchanged():
    """The training gets the same one behind all kernels, and goes on with its next collective."""
    for errors in noted()[1]:
        in_python, in_c, in_cpp = [line for line in errors.splitlines() if "Error:" in line]
        assert in_python == in_c == in_cpp
