# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Cross shared communication: publish once, synchronise once, then read every peer's part where it lies.

Algorithms 1 and 2 of SW-IntraCC, between processes. Parts larger than a slot go in pieces, each with its own
synchronisation. Of V bytes among n ranks a rank copies, gathering, V/n to its slot and (n - 1)V/n from its peers';
reducing, (n - 1)V/n each way.

Array names end in U where they are bytes, in E where they are elements.
"""

from benchmarks.intracard_collectives.mesh import GroupCall, SocketMesh
from benchmarks.intracard_collectives.plan import Gathering, Scattering
from benchmarks.intracard_collectives.shared import Bytes
from benchmarks.intracard_collectives.sums import Array, Kind, add_in_order

OPERATION_GATHER = "csc all-gather"
OPERATION_SCATTER = "csc reduce-scatter"


def all_gather(mesh: SocketMesh, part_U: Bytes, out_U: Bytes | None) -> list[Bytes]:
    """Return every rank's part, in one array in the order of ranks; see `Group.all_gather`."""
    call = GroupCall(OPERATION_GATHER, "bytes", len(part_U))
    own_U = part_U[: mesh.slot_bytes]
    mesh.own_slot()[: len(own_U)] = own_U
    plan = Gathering.of(mesh.synchronise(call, same_size=False), mesh.slot_bytes, out_U)
    plan.parts[mesh.rank][:] = part_U
    for piece in range(plan.pieces):
        if piece > 0:
            own_U = plan.piece(mesh.rank, piece)
            mesh.own_slot()[: len(own_U)] = own_U
            mesh.synchronise(call, same_size=False)
        for step in range(1, mesh.ranks):  # each rank begins with another peer, as in algorithm 1
            peer = (mesh.rank + step) % mesh.ranks
            into_U = plan.piece(peer, piece)
            into_U[:] = mesh.peer_slot(peer)[: len(into_U)]
    return plan.parts


def reduce_scatter(mesh: SocketMesh, values_E: Array, out_E: Array, kind: Kind) -> None:
    """Write this rank's part of the sum of all `values_E`, added in the order of ranks; see `Group.reduce_scatter`."""
    call = GroupCall(OPERATION_SCATTER, kind.name, values_E.nbytes)
    plan = Scattering(len(values_E), mesh.ranks, mesh.slot_bytes // mesh.ranks // kind.dtype.itemsize)
    region = plan.piece_elements
    for piece in range(plan.pieces):
        slot_E = mesh.own_slot()[: mesh.ranks * region * kind.dtype.itemsize].view(kind.dtype)
        for owner in range(mesh.ranks):
            if owner != mesh.rank:
                theirs_E = values_E[plan.span(owner, piece)]
                slot_E[owner * region : owner * region + len(theirs_E)] = theirs_E
        mesh.synchronise(call, same_size=True)
        mine_E = values_E[plan.span(mesh.rank, piece)]
        begin = mesh.rank * region
        terms = [
            mesh.peer_slot(rank)[: mesh.ranks * region * kind.dtype.itemsize].view(kind.dtype)[begin:][: len(mine_E)]
            if rank != mesh.rank
            else mine_E
            for rank in range(mesh.ranks)
        ]
        add_in_order(terms, out_E[piece * region :][: len(mine_E)], kind)
