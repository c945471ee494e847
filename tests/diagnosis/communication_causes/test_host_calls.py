"""When collectives of host backends were called."""

import numpy as np

from lockstep.diagnosis.communication_causes.collectives import collectives_of
from lockstep.trace.columns import ABSENT, ANNOTATION, KERNEL, OPERATOR, WorkKind
from tests.trace.made import columns_of, made


def backend(name, start_ns, duration_ns=10):
    """Return a collective on gloo's own thread."""
    return made(name, ANNOTATION, 9, start_ns, duration_ns, work=WorkKind.COMMUNICATION)


def call(name, start_ns):
    return made(name, OPERATOR, 1, start_ns, 2)


def called(events):
    """Return when each collective was called, in order of start."""
    return collectives_of(columns_of(events), rank=0).called_ns.tolist()


BUCKETS = [backend("gloo:all_reduce", at) for at in (5, 40, 80)]


def test_collectives_of_a_kind_start_in_the_order_of_their_calls():
    """Three buckets are called one after the other, and run when the backend's thread gets to them."""
    calls = [call("c10d::allreduce_", at) for at in (3, 6, 9)]
    other = [call("c10d::broadcast_", 20), backend("gloo:broadcast", 30)]
    assert called([*BUCKETS, *calls, *other]) == [3, 20, 6, 9]


def test_functional_collectives_count_where_no_plain_one_is_called():
    """Newer versions of torch call the group without the dispatcher; where they call both, one of them counts."""
    functional = [call("_c10d_functional::all_reduce", at) for at in (2, 5, 8)]
    assert called([*BUCKETS, *functional]) == [2, 5, 8]
    assert called([*BUCKETS, *functional, *[call("c10d::allreduce_", at) for at in (3, 6, 9)]]) == [3, 6, 9]


def test_gloo_runs_a_reduce_scatter_as_an_all_reduce():
    """FSDP scatters the gradients of two blocks, and averages the loss: three all-reduces of the backend."""
    calls = [call("c10d::_reduce_scatter_base_", at) for at in (3, 6)]
    assert called([*BUCKETS, *calls, call("c10d::allreduce_", 9)]) == [3, 6, 9]
    own = [backend("mpi:reduce_scatter", 41), backend("mpi:all_reduce", 80)]
    assert called([*own, calls[0], call("c10d::allreduce_", 9)]) == [3, 9]


def test_what_does_not_fit_is_unknown():
    """A call whose collective was not recorded, a collective before its call, and one on a device."""
    calls = [call("c10d::allreduce_", at) for at in (3, 6, 9, 90)]
    assert called([*BUCKETS, *calls]) == [ABSENT] * 3
    assert called([*BUCKETS, *[call("c10d::allreduce_", at) for at in (3, 45, 60)]]) == [ABSENT] * 3
    kernel = made("ncclDevKernel_AllReduce_Sum_f32", KERNEL, (0, 20), 50, 9, work=WorkKind.COMMUNICATION, stream=20)
    assert called([kernel, call("c10d::allreduce_", 3)]) == [ABSENT]
    assert np.array(called([])).shape == (0,)
