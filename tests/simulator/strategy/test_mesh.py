import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.domains import from_degrees
from lockstep.contracts.errors import ConfigError
from lockstep.simulator.strategy.mesh import Mesh

degree = st.sampled_from([1, 2, 3])


@given(degree, degree, degree, degree)
def test_groups_are_the_domains_of_the_contract(tp, cp, dp, pp):
    """A mesh in Megatron's order has the groups that `domains.from_degrees` announces."""
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    topology = from_degrees(sizes, tp * cp * dp * pp)
    mesh = Mesh.grid(sizes)
    for kind, size in sizes.items():
        announced = sorted(domain.ranks for domain in topology.domains if domain.kind == kind)
        mine = sorted(tuple(row) for row in mesh.groups(frozenset([kind])).tolist())
        assert mine == (announced if size > 1 else [(rank,) for rank in range(len(mesh))])


@given(degree, degree, degree)
def test_every_rank_is_in_one_group(tp, dp, pp):
    """Along any axes the groups part the ranks, each in ascending order."""
    mesh = Mesh.grid({"tp": tp, "dp": dp, "pp": pp}, first=5)
    for axes in (frozenset(), frozenset(["tp"]), frozenset(["tp", "pp"]), frozenset(["dp", "pp", "tp"])):
        groups = mesh.groups(axes)
        assert sorted(groups.ravel()) == sorted(mesh.ranks()) == list(range(5, 5 + len(mesh)))
        assert (np.diff(groups, axis=1) > 0).all()


def test_a_stage_is_a_position_along_pp():
    """Stages are consecutive runs of ranks where pp varies slowest."""
    mesh = Mesh.grid({"tp": 2, "dp": 3, "pp": 4})
    assert mesh.at("pp", 2).ranks().tolist() == list(range(12, 18))
    assert mesh.degree("cp") == 1


def test_an_axis_that_is_not_there_is_named():
    """Asking for an axis that the mesh lacks names those it has."""
    with pytest.raises(ConfigError, match=r"got 'ep', expected one of \['tp'\]"):
        Mesh.grid({"tp": 2}).axis("ep")
    with pytest.raises(ConfigError, match="expected at least 1"):
        Mesh.grid({"tp": 0})
