"""Attention on a context parallel rank: the order of its work and the exchange of keys and values.

Both ways are counted kernel by kernel. A ring is Transformer Engine's (AttnFuncWithCPAndKVP2P) with Megatron-LM's order
of tokens before samples, in which the halves of a part are contiguous already:

- keys and values are put into one buffer, which is sent on while the rank computes with it;
- what each part gives is scaled by its share of the sum of exponentials and added to the output at the activations'
  width, in one compiled kernel a part, when all parts are there;
- in backward keys and values are copied into the first buffer to send and go round again, one step ahead of their
  gradients, so that there is a part of attention next to every step. What a part gives is added to the gradients of
  queries, keys and values at the activations' width.

PyTorch's `context_parallel` (torch.distributed.tensor, `_templated_ring_attention`, with its default of gathering):

- keys and values have as many heads as queries, for which torchtitan repeats them (`repeat_kv`);
- they are put into one buffer, which is gathered while the rank computes with its own part;
- what each further part gives is merged in single precision, in eager mode;
- in backward they are gathered again. Their gradients go round in single precision, one step with each part, and each
  part is added to what comes; the last step has nothing to hide behind.

Counted is the rank whose parts are all whole: the last. The others cut half of a part off and put it back.
"""

from dataclasses import dataclass

from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.hardware.collectives import ALL_GATHER, REDUCE_SCATTER
from lockstep.simulator.lowering.context import MERGE, RING, ContextParallelism
from lockstep.simulator.lowering.operators import PlacedOperator
from lockstep.simulator.lowering.segments import Feature, Segment, Work
from lockstep.simulator.models.model import Operator
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import Transfer, shards

_AXES = frozenset(("cp",))
_SINGLE_BYTES = 4.0
_MERGE_BYTES = 8 * _SINGLE_BYTES
"""Of an element that attention returns: `out - sigmoid(lse_part - lse) * (out - part)` is a difference, a product and a
difference, which read 2, 1 and 2 elements and write one each. The sums of exponentials, one of a head, do not count."""
_ADD_BYTES = 2 * _SINGLE_BYTES
"""A sum in place reads and writes it, and reads what is added."""
_COUNTED_KEYS_RATIO = 0.5  # of another part, for a rank with both halves of a causal sequence
_COPIED, _ADDED = 2.0, 3.0
"""Elements that a copy and a sum in place move; the scale of a compiled correction of the output moves none."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Elements on a rank of what attention returns, and of keys and values as repeated and before; bytes of each."""

    output: float
    keys: float
    keys_before: float
    width: float


def exchanged(
    op: Operator, placed: PlacedOperator, mesh: Mesh, device: Device, context: ContextParallelism, *, width: float
) -> tuple[list[Segment], list[Segment]] | None:
    """Return forward and backward pass of attention `op`, elements of `width` bytes; None where its parts are one.

    That is without context parallelism, and with a `gather` of keys and values, which is waited for.
    """
    gather = next((each for each in placed.before if each.kind == ALL_GATHER and each.axes == _AXES), None)
    if gather is None or context.exchange not in (RING, MERGE):
        return None
    local_bytes = gather.volume_bytes / mesh.degree("cp")
    sizes = _Sizes(
        output=placed.output.total_bytes / shards(placed.output.placement, mesh) / width,
        keys=local_bytes * op.key_sharers / width,
        keys_before=local_bytes / width,
        width=width,
    )
    passes = _round if context.exchange == RING else _merged
    forward, backward = passes(placed, sizes, mesh.degree("cp"), device)
    others: list[Segment] = [Feature(transfer) for transfer in placed.before if transfer != gather]
    left: list[Segment] = [Feature(transfer) for transfer in placed.after if transfer.axes != _AXES]
    return [*others, *forward], [*backward, *left]


def _round(placed: PlacedOperator, sizes: _Sizes, n: int, device: Device) -> tuple[list[Segment], list[Segment]]:
    """Let keys and values go round a ring while attention computes with those that are there, one of `n` parts."""
    e, k, width = sizes.output, sizes.keys_before, sizes.width
    added = _COPIED + _ADDED * (n - 1)  # the first part is written, the others are added
    # Of the keys of another part half count; the rank's own are the last in backward.
    keys_added = _COUNTED_KEYS_RATIO * (_COPIED + _ADDED * (n - 2)) + _ADDED
    backward_s = placed.again_s + placed.backward_s
    gathered, returned = (Transfer(kind, _AXES, n * width * k) for kind in (ALL_GATHER, REDUCE_SCATTER))
    return (
        [
            Work(device.memory_seconds(_COPIED * width * k)),
            Feature(gathered, placed.forward_s * (n - 1) / n),
            Work(
                placed.forward_s / n + device.memory_seconds(added * width * e),
                host_s=placed.host_forward_s * (2 * n - 1),
            ),
        ],
        [
            Work(device.memory_seconds(_COPIED * width * k)),
            *(Feature(transfer, backward_s / 2) for transfer in (gathered, returned)),
            Work(
                device.memory_seconds(width * (added * e + keys_added * k)),
                host_s=placed.host_backward_s * (2 * n - 1),
            ),
        ],
    )


def _merged(placed: PlacedOperator, sizes: _Sizes, n: int, device: Device) -> tuple[list[Segment], list[Segment]]:
    """Gather keys and values during a rank's own part of attention, then merge what each of `n` - 1 others gives."""
    e, k, width = sizes.output, sizes.keys, sizes.width
    cast = width + _SINGLE_BYTES
    repeated = width * (sizes.keys_before + k)  # read once, written for all heads; in backward summed over them
    lined_up = 2 * width * k  # a copy: made contiguous, later put into one buffer
    own_bytes = repeated + 2 * lined_up
    others_bytes = (n - 1) * (cast + _MERGE_BYTES) * e + (n - 2) * lined_up
    ends_bytes = 2 * cast * e  # the first part to single precision, the result from it
    gathered = Transfer(ALL_GATHER, _AXES, n * width * k)
    forward: list[Segment] = [
        Work(device.memory_seconds(own_bytes)),
        Feature(gathered, placed.forward_s / n),
        Work(
            placed.forward_s * (n - 1) / n + device.memory_seconds(others_bytes + ends_bytes),
            host_s=placed.host_forward_s * (2 * n - 1),
        ),
    ]
    backward_s = placed.again_s + placed.backward_s
    add = width + _ADD_BYTES
    sent = 2 * _SINGLE_BYTES * k  # gradients of keys and values put into one buffer
    first_bytes = (_SINGLE_BYTES + add) * (e + k) + sent  # filled with zeros, added to
    # Half of the keys of another part count: that half is added to, then put next to the other.
    other_bytes = add * e + (_COUNTED_KEYS_RATIO * add + 2 * _SINGLE_BYTES) * k + sent
    backward: list[Segment] = [
        Work(device.memory_seconds(2 * lined_up)),
        Feature(gathered, backward_s / n),
        Work(device.memory_seconds(first_bytes)),
        Feature(_steps(n - 1, n, _SINGLE_BYTES * k), backward_s * (n - 1) / n),
        Work(
            device.memory_seconds((n - 1) * other_bytes + (n - 2) * lined_up),
            host_s=placed.host_backward_s * (2 * n - 1),
        ),
        Feature(_steps(1, n, _SINGLE_BYTES * k)),
        Work(device.memory_seconds(cast * (e + k) + repeated)),
    ]
    return forward, backward


def _steps(count: int, n: int, step_bytes: float) -> Transfer:
    """Return `count` steps of `step_bytes` each from a rank to its neighbour in a ring of `n`, as a collective."""
    return Transfer(REDUCE_SCATTER, _AXES, count * step_bytes * n / (n - 1))
