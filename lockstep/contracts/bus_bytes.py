"""Bytes that a ring algorithm moves over the slowest link for one collective, by operator.

Bus bandwidth is this amount over the time in flight. Unlike payload over time, it does not depend on the number of
ranks, so it can be compared with the capacity of a link. Factors are those of nccl-tests (doc/PERFORMANCE.md,
github.com/NVIDIA/nccl-tests).

The payload of an operator is what the agent counts: the tensors of one argument on this rank.

    all-reduce, broadcast, reduce    the tensors
    all-gather                       the outputs: what was gathered from all
    reduce-scatter, all-to-all       the inputs: what is scattered to all
    gather, scatter                  this rank's part, which is all that any rank but the root has
    send, receive                    the tensors, on both sides
    barrier                          nothing

An uneven all-to-all moves somewhat more or less: (n-1)/n assumes that a rank's own part has the mean size.
"""

from lockstep.contracts.marks import OPERATORS

_ALL_REDUCE = (2, -2, True)
_SHARED = (1, -1, True)
_WHOLE = (0, 1, False)
_ROOTED = (1, -1, False)  # the root's link receives the parts of all others

_OTHER_FACTORS = {
    "allreduce_": _ALL_REDUCE,
    "allreduce_coalesced_": _ALL_REDUCE,
    "broadcast_": _WHOLE,
    "reduce_": _WHOLE,
    "send": _WHOLE,
    "recv_": _WHOLE,
    "recv_any_source_": _WHOLE,
    "barrier": _WHOLE,
    "gather_": _ROOTED,
    "scatter_": _ROOTED,
}
_FACTORS = tuple(_OTHER_FACTORS.get(name, _SHARED) for name in OPERATORS)
"""By index in OPERATORS (a, b, divided): for n ranks, the payload times a*n + b, over n if divided."""


def bus_bytes(operator: int, payload_bytes: int, group_size: int) -> int:
    """Return the bytes over the slowest link when `group_size` ranks run an operator, an index in OPERATORS.

    Rounded down. A group of one has no link: 0.
    """
    if group_size < 2:  # noqa: PLR2004  (one rank has no link)
        return 0
    per_rank, constant, divided = _FACTORS[operator]
    moved = payload_bytes * (per_rank * group_size + constant)
    return moved // group_size if divided else moved
