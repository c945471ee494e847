"""How the ranks of a job on one node find each other: a socket name per rank, and after that no name at all.

Every rank but the last listens on `<directory>/<job>.<rank>.meet`, connects to all lower ranks, and gives each peer
its memory as a descriptor. When all have come the name is removed: what a crash can leave behind is the name of a rank
that died while it waited, which refuses connections and which the next rank of that name replaces.
"""

import errno
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.intracard_collectives import shared
from benchmarks.intracard_collectives.errors import PeerLostError, PeerSilentError
from benchmarks.intracard_collectives.shared import Bytes
from lockstep.contracts.errors import ConfigError, ContractVersionError, MalformedError
from lockstep.contracts.limits import RANKS_PER_NODE_MAX
from lockstep.contracts.paths import check_name

MAGIC = b"LKSTCARD"
VERSION = 1
_HELLO = struct.Struct("<8sIIIIQ")  # magic, version, rank, ranks, padding, bytes of a slot
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred
_SOCKET_PATH_MAX_BYTES = 107  # sun_path, without its end
_RETRY_S = 0.002  # of a name that is not there yet; a rank comes once, so this ends with the start of the job
_RETRY_MAX_S = 0.05


@dataclass(frozen=True, slots=True)
class Peer:
    """Another rank: the socket to it, which ends when it does, and its two slots."""

    rank: int
    socket: socket.socket
    slots: list[Bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Who a rank is: its job, itself among how many, the size of everybody's slots, and until when it waits."""

    directory: Path
    job: str
    rank: int
    ranks: int
    slot_bytes: int
    timeout_s: float
    deadline_s: float

    @property
    def where(self) -> str:
        """The place that errors name."""
        return f"meeting of job {self.job}"

    def path(self, rank: int) -> str:
        """Return the socket name of `rank`."""
        return str(self.directory / f"{self.job}.{rank}.meet")

    def left_s(self, missing: Sequence[int]) -> float:
        """Return the time left to wait for `missing`; raises PeerSilentError when it is over."""
        left = self.deadline_s - time.monotonic()
        if left <= 0:
            raise PeerSilentError(missing, where=self.where, timeout_s=self.timeout_s)
        return left


def seat(directory: Path, job: str, rank: int, ranks: int, *, slot_bytes: int, timeout_s: float) -> Seat:
    """Return the checked seat of a rank.

    Raises
    ------
    ConfigError
        A name, rank or size that cannot be.
    """
    check_name(job, "job name")
    if not 1 <= ranks <= RANKS_PER_NODE_MAX:
        raise ConfigError(f"ranks: got {ranks}, expected 1 to {RANKS_PER_NODE_MAX}")
    if not 0 <= rank < ranks:
        raise ConfigError(f"rank: got {rank}, expected 0 to {ranks - 1}")
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s: got {timeout_s}, expected more than 0")
    made = Seat(
        directory=directory,
        job=job,
        rank=rank,
        ranks=ranks,
        slot_bytes=slot_bytes,
        timeout_s=timeout_s,
        deadline_s=time.monotonic() + timeout_s,
    )
    longest = os.fsencode(made.path(ranks - 1))
    if len(longest) > _SOCKET_PATH_MAX_BYTES:
        raise ConfigError(f"socket name: got {len(longest)} bytes, expected at most {_SOCKET_PATH_MAX_BYTES}")
    return made


def meet(mine: Seat) -> tuple[list[Bytes], dict[int, Peer]]:
    """Return this rank's slots and its peers by rank, when all have come.

    Raises
    ------
    PeerSilentError, PeerLostError
        Some rank did not come in time, or ended meanwhile.
    MalformedError
        A peer of another version, another job size or another slot size, or memory of another kind than announced.
    ConfigError
        This rank of this job is there already, or there is no memory for its slots.
    OSError
        The directory cannot be used.
    """
    with ExitStack() as on_failure, ExitStack() as after:
        memory = shared.make(mine.slot_bytes)
        after.callback(os.close, memory)
        own = shared.map_own(memory, mine.slot_bytes)
        mine.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener = _listen(mine, after) if mine.rank < mine.ranks - 1 else None
        sockets = _call(mine, memory, on_failure)
        peers = {} if listener is None else _receive(mine, listener, memory, on_failure)
        peers |= _answers(mine, sockets)
        for peer in peers.values():
            peer.socket.setblocking(False)
        on_failure.pop_all()
        return own, dict(sorted(peers.items()))


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _listen(mine: Seat, after: ExitStack) -> socket.socket:
    path = mine.path(mine.rank)
    with _new_socket() as probe:
        probe.setblocking(False)
        answer = probe.connect_ex(path)
    if answer in (0, errno.EAGAIN):
        raise ConfigError(f"rank {mine.rank} of job {mine.job}: got one that waits already, expected none")
    if answer == errno.ECONNREFUSED:  # its owner died while it waited
        Path(path).unlink(missing_ok=True)
    listener = after.enter_context(_new_socket())
    listener.bind(path)
    after.callback(lambda: Path(path).unlink(missing_ok=True))
    listener.listen(mine.ranks)
    return listener


def _call(mine: Seat, memory: int, on_failure: ExitStack) -> dict[int, socket.socket]:
    """Connect to all lower ranks and introduce this one; their answers come later."""
    found: dict[int, socket.socket] = {}
    pause_s = _RETRY_S
    while missing := [rank for rank in range(mine.rank) if rank not in found]:
        left_s = mine.left_s(missing)
        for rank in missing:
            connection = _connect(mine.path(rank), left_s)
            if connection is not None:
                found[rank] = on_failure.enter_context(connection)
                _introduce(mine, connection, memory)
        if len(found) < mine.rank:
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _RETRY_MAX_S)
    return found


def _connect(path: str, timeout_s: float) -> socket.socket | None:
    """Return a connection to who listens at `path`; None if no one does yet, or too many call at once."""
    connection = _new_socket()
    with ExitStack() as on_failure:
        on_failure.enter_context(connection)
        connection.settimeout(timeout_s)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError):
            return None
        on_failure.pop_all()
        return connection


def _receive(mine: Seat, listener: socket.socket, memory: int, on_failure: ExitStack) -> dict[int, Peer]:
    """Accept all higher ranks and answer each."""
    peers: dict[int, Peer] = {}
    while missing := [rank for rank in range(mine.rank + 1, mine.ranks) if rank not in peers]:
        try:
            listener.settimeout(mine.left_s(missing))
            connection = on_failure.enter_context(listener.accept()[0])
            connection.settimeout(mine.left_s(missing))
            peer = _identify(mine, connection)
        except TimeoutError:
            continue  # `left_s` raises
        if peer is None:
            connection.close()
            continue
        if peer.rank not in missing:
            raise MalformedError("rank", where=mine.where, got=peer.rank, expected=f"one of {missing}")
        _introduce(mine, connection, memory)
        peers[peer.rank] = peer
    return peers


def _answers(mine: Seat, sockets: dict[int, socket.socket]) -> dict[int, Peer]:
    """Read the lower ranks, each of which answers when it comes to accept this one."""
    peers = {}
    for rank, connection in sockets.items():
        missing = [other for other in sockets if other not in peers]
        try:
            connection.settimeout(mine.left_s(missing))
            peer = _identify(mine, connection)
        except TimeoutError as error:
            raise PeerSilentError(missing, where=mine.where, timeout_s=mine.timeout_s) from error
        if peer is None:
            raise PeerLostError([rank], silent=[], where=mine.where)
        if peer.rank != rank:
            raise MalformedError("rank", where=mine.where, got=peer.rank, expected=rank)
        peers[rank] = peer
    return peers


def _introduce(mine: Seat, connection: socket.socket, memory: int) -> None:
    hello = _HELLO.pack(MAGIC, VERSION, mine.rank, mine.ranks, 0, mine.slot_bytes)
    with suppress(BrokenPipeError, ConnectionResetError):  # it is gone: the wait for it reports that
        socket.send_fds(connection, [hello], [memory])


def _identify(mine: Seat, connection: socket.socket) -> Peer | None:
    """Return who is at the other end, or None for one that left before that was known, or is another user's."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
        return None
    with ExitStack() as stack:
        try:
            message, descriptors, *_ = socket.recv_fds(connection, _HELLO.size + 1, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        if not message:
            return None
        rank = _check_hello(mine, message)
        if len(descriptors) != 1:
            raise MalformedError("hello", where=mine.where, got="no memory", expected=f"memory of rank {rank}")
        slots = shared.map_peer(descriptors[0], mine.slot_bytes, f"{mine.where}, rank {rank}")
        return Peer(rank, connection, slots)


def _check_hello(mine: Seat, message: bytes) -> int:
    if len(message) != _HELLO.size:
        raise MalformedError("hello", where=mine.where, got=f"{len(message)} bytes", expected=_HELLO.size)
    magic, version, rank, ranks, _, slot_bytes = _HELLO.unpack(message)
    if (magic, version) != (MAGIC, VERSION):
        raise ContractVersionError("hello", where=mine.where, got=(magic, version), expected=(MAGIC, VERSION))
    if (ranks, slot_bytes) != (mine.ranks, mine.slot_bytes):
        raise MalformedError(
            f"ranks and slot_bytes of rank {rank}",
            where=mine.where,
            got=(ranks, slot_bytes),
            expected=(mine.ranks, mine.slot_bytes),
        )
    return int(rank)
