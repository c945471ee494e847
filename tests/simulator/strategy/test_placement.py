import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import PARTIAL, Transfer, shards, transfers

MESH = Mesh.grid({"tp": 4, "dp": 2})
TP = frozenset(["tp"])
BOTH = frozenset(["tp", "dp"])


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        ({"tp": PARTIAL}, {}, [Transfer("all_reduce", TP, 800.0)]),
        ({"tp": PARTIAL}, {"tp": 1}, [Transfer("reduce_scatter", TP, 800.0)]),
        ({"tp": 1}, {}, [Transfer("all_gather", TP, 800.0)]),
        ({"tp": 0}, {"tp": 3}, [Transfer("all_to_all", TP, 200.0)]),
        ({}, {"tp": 1}, []),
        ({"tp": 2}, {"tp": 2}, []),
        ({"dp": 0, "tp": PARTIAL}, {"dp": 0}, [Transfer("all_reduce", TP, 400.0)]),
        ({"tp": PARTIAL, "dp": PARTIAL}, {}, [Transfer("all_reduce", BOTH, 800.0)]),
        (
            {"tp": PARTIAL, "dp": 0},
            {"tp": 1},
            [Transfer("reduce_scatter", TP, 400.0), Transfer("all_gather", frozenset(["dp"]), 200.0)],
        ),
        ({"cp": PARTIAL}, {}, []),
    ],
)
def test_a_mismatch_names_its_collective(have, want, expected):
    """Sums are reduced, parts gathered, other parts exchanged, and cutting is free."""
    assert list(transfers(800.0, have, want, MESH)) == expected


placements = st.dictionaries(st.sampled_from(["tp", "dp"]), st.sampled_from([PARTIAL, 0, 1, 2]))


@given(placements, placements)
def test_what_agrees_needs_nothing_and_nothing_comes_from_nothing(have, want):
    """Equal placements and empty tensors are free; the parts of a tensor are counted along its split axes."""
    assert transfers(800.0, have, have, MESH) == ()
    assert transfers(0.0, have, want, MESH) == ()
    assert shards(have, MESH) == (4 if have.get("tp", PARTIAL) >= 0 else 1) * (2 if have.get("dp", PARTIAL) >= 0 else 1)
