"""What the host issues for each expert by itself (Transformer Engine's GroupedLinear)."""

from dataclasses import replace

import pytest

from lockstep.simulator.hardware.clusters import H100
from lockstep.simulator.lowering.operators import PlacedTensor, place_operator
from lockstep.simulator.models.model import MIXED
from lockstep.simulator.models.transformers import moe
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.tree import ResolvedStrategy

SIZES = {"layers": 1, "hidden": 2048, "heads": 16, "sequence": 2048, "ffn": 1024, "chosen": 4}
FP8 = replace(MIXED, product=1)
KERNEL_S = 21e-6


def host_s(*, experts, ranks, precision=MIXED, **flags):
    """Return the host's seconds for both products of the experts on a rank, in forward and in backward."""
    mesh = Mesh.grid({"ep": ranks})
    arriving = PlacedTensor(total_bytes=2.0**28, placement={"ep": 0})
    stated = ResolvedStrategy({"ep": "e"}, {}, "none")
    placed = [
        place_operator(op, stated, arriving, mesh, H100, samples=ranks, precision=precision)
        for op in moe(**SIZES, experts=experts, precision=precision, **flags).operators()
        if op.products and op.routing
    ]
    return sum(each.host_forward_s for each in placed), sum(each.host_backward_s for each in placed)


@pytest.mark.parametrize(
    ("precision", "casts"),
    [
        (MIXED, 0),
        (FP8, 0),
        (replace(FP8, current_scaling=True), 3),
        (replace(FP8, block_scaling=True), 1),
    ],
    ids=["bf16", "delayed", "current", "block"],
)
@pytest.mark.parametrize(("experts", "ranks"), [(32, 2), (32, 8), (8, 8)])
def test_each_expert_of_a_rank_has_products_casts_and_gradients_of_its_own(experts, ranks, precision, casts):
    """Forward has a product, backward two and the hook of the weights' gradient; each pass casts a tensor."""
    sizes = {"experts": experts, "ranks": ranks, "precision": precision}
    (forward, backward), alike = host_s(**sizes, separate_experts=True), host_s(**sizes)
    own = 2 * experts / ranks * KERNEL_S
    assert forward - alike[0] == pytest.approx(own * (1 + casts))
    assert backward - alike[1] == pytest.approx(own * (3 + casts))


def test_one_kernel_of_all_experts_costs_the_host_the_same_for_any_number():
    assert host_s(experts=32, ranks=2) == host_s(experts=8, ranks=8)
