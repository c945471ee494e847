# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""The ranks of a job on one node, and what they do together. The entry point of this package.

Array names end in U where they are bytes.
"""

from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from benchmarks.intracard_collectives import csc, ring
from benchmarks.intracard_collectives.errors import GroupClosedError, PeerLostError, PeerSilentError
from benchmarks.intracard_collectives.mesh import LOOKS, GroupCall, SocketMesh
from benchmarks.intracard_collectives.plan import Scattering
from benchmarks.intracard_collectives.rendezvous import meet, seat
from benchmarks.intracard_collectives.shared import Bytes
from benchmarks.intracard_collectives.sums import kind_of
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import DEFAULT_ROOT

CSC = "csc"
RING = "ring"
ALGORITHMS: dict[str, ModuleType] = {CSC: csc, RING: ring}

SLOT_BYTES = 1 << 20
TIMEOUT_S = 60.0
"""Longer than any step that is not a fault, shorter than what torch waits before it aborts (10 minutes or more)."""

_SYNCHRONISE = GroupCall("synchronise", "nothing", 0)


class Group:
    """Collectives between the processes of one node, through memory that all of them map.

    Every rank must make the same calls in the same order; one thread at a time. A call that fails closes the group, for
    ranks that no longer agree where they are cannot go on; the peers then get the names of those that left. Use it as a
    context manager, or call `close`.
    """

    def __init__(self, mesh: SocketMesh, job: str) -> None:
        self._mesh: SocketMesh | None = mesh
        self.job = job
        self.rank = mesh.rank
        self.ranks = mesh.ranks

    @classmethod
    def join(
        cls,
        job: str,
        rank: int,
        ranks: int,
        *,
        directory: Path = Path(DEFAULT_ROOT),
        slot_bytes: int = SLOT_BYTES,
        timeout_s: float = TIMEOUT_S,
        looks: int = LOOKS,
    ) -> Self:
        """Return the group when all `ranks` of `job` have come.

        `job` names one attempt: ranks of an earlier one that still wait would be taken for its own. The memory is
        2 `slot_bytes` a rank. `timeout_s` bounds the wait here and in every exchange; `looks` is how often a rank looks
        for its peers before it sleeps.

        Raises
        ------
        ConfigError
            An argument that cannot be; this rank of this job is there already; no memory.
        PeerSilentError, PeerLostError
            Ranks did not come in time, or ended meanwhile.
        MalformedError
            A peer of another version, number of ranks or slot size.
        """
        own, peers = meet(seat(directory, job, rank, ranks, slot_bytes=slot_bytes, timeout_s=timeout_s))
        return cls(SocketMesh(rank, own, peers, timeout_s=timeout_s, looks=looks), job)

    def all_gather(self, part: npt.NDArray[Any], *, out: Bytes | None = None, algorithm: str = CSC) -> list[Bytes]:
        """Return the bytes of every rank's `part`, by rank; parts may differ in size and type.

        `out`, one-dimensional uint8 of the size of all parts, saves an allocation; the result is views of it. It must
        not overlap `part`.

        Raises
        ------
        ConfigError
            `part` has no plain bytes, or `out` cannot take them.
        PeerLostError, PeerSilentError, MismatchError, GroupClosedError
            See `errors`.
        """
        if part.dtype.hasobject:
            raise ConfigError("part: got Python objects, expected numbers or bytes")
        if out is not None and (out.dtype != np.uint8 or out.ndim != 1 or not out.flags.c_contiguous):
            raise ConfigError(f"out: got {out.dtype} of shape {out.shape}, expected one-dimensional contiguous uint8")
        how = _algorithm(algorithm)
        part_U = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        with self._exchange() as mesh:
            gathered: list[Bytes] = how.all_gather(mesh, part_U, out)
            return gathered

    def reduce_scatter(
        self,
        values: npt.NDArray[Any],
        *,
        out: npt.NDArray[Any] | None = None,
        algorithm: str = CSC,
        bfloat16: bool = False,
    ) -> npt.NDArray[Any]:
        """Return this rank's part of the sum of all ranks' `values`, split as `numpy.array_split` splits.

        `values` is one-dimensional and of the same length and dtype on every rank; with `bfloat16`, uint16 that are raw
        bfloat16. CSC adds in the order of ranks, the same for every element. `out` saves an allocation; it must not
        overlap `values`.

        Raises
        ------
        ConfigError
            `values` cannot be added, or `out` cannot take the part.
        PeerLostError, PeerSilentError, MismatchError, GroupClosedError
            See `errors`.
        """
        kind = kind_of(values.dtype, bfloat16=bfloat16)
        if values.ndim != 1:
            raise ConfigError(f"values: got shape {values.shape}, expected one dimension")
        size = Scattering(len(values), self.ranks, 1).size(self.rank)
        if out is None:
            out = np.empty(size, values.dtype)
        elif out.dtype != values.dtype or out.shape != (size,):
            raise ConfigError(f"out: got {out.dtype} of shape {out.shape}, expected {values.dtype} of shape {(size,)}")
        how = _algorithm(algorithm)
        with self._exchange() as mesh:
            how.reduce_scatter(mesh, np.ascontiguousarray(values), out, kind)
            return out

    def synchronise(self) -> None:
        """Wait until every rank has called this; raises as the collectives do."""
        with self._exchange() as mesh:
            mesh.synchronise(_SYNCHRONISE, same_size=True)

    def close(self, error: BaseException | None = None) -> None:
        """Leave. Peers that still wait for this rank get PeerLostError; what they have already is theirs.

        With a PeerLostError or PeerSilentError, they get the ranks because of which this one leaves.
        """
        if self._mesh is not None:
            self._mesh.close(_ranks_behind(error))
            self._mesh = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self) -> "_Exchange":
        if self._mesh is None:
            raise GroupClosedError(
                f"group of job {self.job}, rank {self.rank}: got a call, expected none after its end"
            )
        return _Exchange(self, self._mesh)


class _Exchange:
    """Closes the group if what it stands around fails, whatever the failure."""

    def __init__(self, group: Group, mesh: SocketMesh) -> None:
        self._group = group
        self._mesh = mesh

    def __enter__(self) -> SocketMesh:
        return self._mesh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._group.close(error)


def _ranks_behind(error: BaseException | None) -> tuple[int, ...]:
    if isinstance(error, PeerLostError):
        return error.lost
    return error.silent if isinstance(error, PeerSilentError) else ()


def _algorithm(name: str) -> ModuleType:
    if name not in ALGORITHMS:
        raise ConfigError(f"algorithm: got {name!r}, expected one of {sorted(ALGORITHMS)}")
    return ALGORITHMS[name]
