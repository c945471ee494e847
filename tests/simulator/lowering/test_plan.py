"""Plans are kept for what-ifs, and never mistaken for each other."""

from lockstep.simulator.hardware.clusters import dgx_a100, hc2
from lockstep.simulator.lowering import plan
from lockstep.simulator.lowering.plan import plan_of
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

SMALL = gpt(layers=4, hidden=1024, heads=16, sequence=512, vocabulary=1024)


def tree(**degrees):
    return preset(SMALL, Degrees(**{"tp": 4, "pp": 2, "dp": 2, **degrees}), Schedule(micro_batches=4))


def planned(of, cluster, samples=4.0, bucket_bytes=1e6, **algorithms):
    return plan_of(of, cluster, samples=samples, bucket_bytes=bucket_bytes, algorithms=algorithms)


def test_health_and_speed_leave_the_plan_as_it_is():
    """The same strategy, built again, on a sick cluster of the same shape has the same plan."""
    first = planned(tree(), hc2(2))
    assert planned(tree(), hc2(2).with_link(0, 3, 0.5).with_rank(1, 0.5)) is first


def test_whatever_a_plan_depends_on_makes_another():
    """Degrees, words of the tree, micro-batches, buckets, algorithms, device and cluster."""
    first = planned(tree(), hc2(2))
    recomputed = tree()
    recomputed.root.recompute("full")
    others = [
        planned(tree(tp=2, dp=4), hc2(2)),
        planned(tree(zero=1), hc2(2)),
        planned(recomputed, hc2(2)),
        planned(tree(), hc2(2), samples=8.0),
        planned(tree(), hc2(2), bucket_bytes=2e6),
        planned(tree(), hc2(2), all_reduce="tree"),
        planned(tree(), hc2(2).with_device(matrix_efficiency=0.5)),
        planned(tree(), dgx_a100(2)),
        planned(tree(), hc2(4)),
    ]
    assert all(other is not first for other in others)


def test_a_tree_that_changed_is_planned_again():
    """What is stated of a tree between two forecasts counts, and the kept plan gives what a fresh one gives."""
    cluster, recomputed = hc2(2).with_link(0, 3, 0.5), tree()
    before = simulate(recomputed, cluster, batch=64)
    recomputed["layer2"].recompute("full")
    after = simulate(recomputed, cluster, batch=64)
    assert after.step_seconds > before.step_seconds
    simulate(recomputed, hc2(2), batch=64, options=Options(bucket_bytes=None))
    kept = simulate(recomputed, cluster, batch=64)
    plan.clear_cache()
    assert simulate(recomputed, cluster, batch=64) == kept == after
