"""HOT (budget 300 ns a collective): bytes that a ring algorithm moves over the slowest link for one collective.

Bus bandwidth is this over the time in flight: unlike payload over time it does not depend on the number of ranks, so it
compares with what a link can do. Factors are those of nccl-tests (doc/PERFORMANCE.md, github.com/NVIDIA/nccl-tests).

The payload of an operator is what `hooks/collectives.py` counts: the tensors of one argument on this rank.

    all-reduce, broadcast, reduce    the tensors
    all-gather                       the outputs: what was gathered from all
    reduce-scatter, all-to-all       the inputs: what is scattered to all
    gather, scatter                  this rank's part, which is all that any rank but the root has
    send, receive                    the tensors, on both sides
    barrier                          nothing

An all-to-all of uneven parts moves somewhat more or less: (n-1)/n takes a rank's own part for the mean one.
"""

_ALL_REDUCE = (2, -2, True)
_SHARED = (1, -1, True)
_WHOLE = (0, 1, False)
_ROOTED = (1, -1, False)

# Operator -> (a, b, divided): for n ranks, the payload times a*n + b, over n if divided.
_FACTORS: dict[str, tuple[int, int, bool]] = {
    "allreduce_": _ALL_REDUCE,
    "allreduce_coalesced_": _ALL_REDUCE,
    "_allgather_base_": _SHARED,
    "allgather_": _SHARED,
    "allgather_coalesced_": _SHARED,
    "allgather_into_tensor_coalesced_": _SHARED,
    "_reduce_scatter_base_": _SHARED,
    "reduce_scatter_": _SHARED,
    "reduce_scatter_tensor_coalesced_": _SHARED,
    "alltoall_base_": _SHARED,
    "alltoall_": _SHARED,
    "broadcast_": _WHOLE,
    "reduce_": _WHOLE,
    "send": _WHOLE,
    "recv_": _WHOLE,
    "recv_any_source_": _WHOLE,
    "gather_": _ROOTED,  # the root's link takes in the parts of all others
    "scatter_": _ROOTED,
    "barrier": _WHOLE,
}


def bus_bytes(operator: str, payload_bytes: int, group_size: int) -> int:
    """Return the bytes over the slowest link when `group_size` ranks run a c10d operator; 0 for a group of one.

    Rounded down. `payload_bytes` is as the table above says; an operator that is not in it raises KeyError.
    """
    if group_size < 2:
        return 0
    per_rank, constant, divided = _FACTORS[operator]
    moved = payload_bytes * (per_rank * group_size + constant)
    return moved // group_size if divided else moved
