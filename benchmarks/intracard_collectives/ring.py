# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The ring: n - 1 rounds, in each of which a rank hands one block to the right and takes one from the left.

What CSC is measured against. A block travels through the slots of all ranks on its way, so a rank copies (n - 1)V/n to
its slot and as much from its left neighbour's, and synchronises n - 1 times.

Array names end in U where they are bytes, in E where they are elements.
"""

from benchmarks.intracard_collectives.mesh import GroupCall, SocketMesh
from benchmarks.intracard_collectives.plan import Gathering, Scattering
from benchmarks.intracard_collectives.shared import Bytes
from benchmarks.intracard_collectives.sums import Array, Kind, add_in_order

OPERATION_GATHER = "ring all-gather"
OPERATION_SCATTER = "ring reduce-scatter"


def all_gather(mesh: SocketMesh, part_U: Bytes, out_U: Bytes | None) -> list[Bytes]:
    """Return every rank's part, in one array in the order of ranks; see `Group.all_gather`."""
    call = GroupCall(OPERATION_GATHER, "bytes", len(part_U))
    left = (mesh.rank - 1) % mesh.ranks
    own_U = part_U[: mesh.slot_bytes]
    mesh.own_slot()[: len(own_U)] = own_U
    plan = Gathering.of(mesh.synchronise(call, same_size=False), mesh.slot_bytes, out_U)
    plan.parts[mesh.rank][:] = part_U
    for piece in range(plan.pieces):
        for step in range(mesh.ranks - 1):
            if piece + step > 0:
                passed_U = plan.piece((mesh.rank - step) % mesh.ranks, piece)
                mesh.own_slot()[: len(passed_U)] = passed_U
                mesh.synchronise(call, same_size=False)
            into_U = plan.piece((left - step) % mesh.ranks, piece)
            into_U[:] = mesh.peer_slot(left)[: len(into_U)]
    return plan.parts


def reduce_scatter(mesh: SocketMesh, values_E: Array, out_E: Array, kind: Kind) -> None:
    """Write this rank's part of the sum of all `values_E`; see `Group.reduce_scatter`.

    The sum that becomes rank r's part starts at rank r + 1 and ends at r; what travels is rounded to `kind` each time.
    """
    call = GroupCall(OPERATION_SCATTER, kind.name, values_E.nbytes)
    item = kind.dtype.itemsize
    left = (mesh.rank - 1) % mesh.ranks
    plan = Scattering(len(values_E), mesh.ranks, mesh.slot_bytes // item)
    for piece in range(plan.pieces):
        for step in range(mesh.ranks):
            mine_E = values_E[plan.span((left - step) % mesh.ranks, piece)]
            n_bytes = mine_E.nbytes
            terms = [mine_E] if step == 0 else [mesh.peer_slot(left)[:n_bytes].view(kind.dtype), mine_E]
            if step == mesh.ranks - 1:
                add_in_order(terms, out_E[piece * plan.piece_elements :][: len(mine_E)], kind)
            else:
                add_in_order(terms, mesh.own_slot()[:n_bytes].view(kind.dtype), kind)
                mesh.synchronise(call, same_size=True)
