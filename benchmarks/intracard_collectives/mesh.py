"""The one synchronisation: every rank reports to every other that its slot is written, and waits for all of theirs.

Order of memory. A slot is written before the token about it is sent, and read after the token was received. Both go
through one queue of the kernel that a lock guards: the sender's unlock releases all its earlier loads and stores, the
receiver's lock acquires them before its later ones. That holds on x86, which keeps stores in order anyway, and on Arm
and others, which do not; no word of shared memory is ever polled, so no order of plain stores is relied on.

Two slots suffice. Exchange k uses slot k mod 2. A rank writes for exchange k after it has the tokens of k - 1 from all
peers; a peer sends its token of k - 1 after it has read what it wants of k - 2, the last user of the slot. This needs
every rank to get a token of every other in every exchange, also where it reads one peer only, as the ring does.

A rank that waits looks a few times, giving way to others between, then sleeps in the kernel until a peer sends or ends.
"""

import os
import select
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.intracard_collectives.errors import MismatchError, PeerLostError, PeerSilentError
from benchmarks.intracard_collectives.rendezvous import Peer
from benchmarks.intracard_collectives.shared import SLOTS, Bytes
from lockstep.contracts.errors import MalformedError

LOOKS = 4
"""Before sleeping, a few us each: of 0, 4 and 20 none was faster on the 2 cores of docs/intracard.md, so few."""

_TOKEN = struct.Struct("<QQ32s8s")  # exchange, bytes, operation, dtype
_FAREWELL = struct.Struct("<Q")  # one bit for each rank that the sender leaves because of; at most 64 are on a node


@dataclass(frozen=True, slots=True)
class GroupCall:
    """What a rank does in an exchange; `n_bytes` is its own where parts may differ."""

    operation: str
    dtype: str
    n_bytes: int

    def __str__(self) -> str:
        return f"{self.operation} of {self.n_bytes} bytes of {self.dtype}"


class SocketMesh:
    """All ranks of a group, connected each with each. One thread at a time may use it."""

    def __init__(self, rank: int, own: list[Bytes], peers: dict[int, Peer], *, timeout_s: float, looks: int) -> None:
        self.rank = rank
        self.ranks = len(peers) + 1
        self.slot_bytes = len(own[0])
        self._own = own
        self._slots = {rank: peer.slots for rank, peer in peers.items()}
        self._sockets = {rank: peer.socket for rank, peer in peers.items()}
        self._timeout_s = timeout_s
        self._looks = looks
        self._exchange = 0
        # Tokens of the next exchange that came before this one was over; at most one of a rank, by the proof above.
        self._early: dict[int, bytes] = {}
        self._gone: set[int] = set()
        self._blamed: dict[int, set[int]] = {}  # by rank that sent a farewell
        self._poll = select.poll()
        self._rank_of = {connection.fileno(): rank for rank, connection in self._sockets.items()}
        for descriptor in self._rank_of:
            self._poll.register(descriptor, select.POLLIN)

    def own_slot(self) -> Bytes:
        """Return where this rank writes for the coming `synchronise`; no one reads it any more."""
        return self._own[self._exchange % SLOTS]

    def peer_slot(self, rank: int) -> Bytes:
        """Return what `rank` wrote before the last `synchronise`; valid until the next one begins."""
        return self._slots[rank][(self._exchange - 1) % SLOTS]

    def synchronise(self, call: GroupCall, *, same_size: bool) -> list[int]:
        """Wait until every rank has written its slot; return the bytes of each rank's call.

        Raises
        ------
        PeerLostError, PeerSilentError
            A rank ended before it came, or did not come in time.
        MismatchError
            A rank does something else.
        MalformedError
            A token of another size or exchange: the memory of a peer is damaged.
        """
        where = f"exchange {self._exchange} ({call})"
        token = _TOKEN.pack(self._exchange, call.n_bytes, call.operation.encode(), call.dtype.encode())
        for connection in self._sockets.values():
            with suppress(BrokenPipeError, ConnectionResetError):  # its end is read below, after what it sent before
                connection.send(token)
        received = self._receive_all(where)
        calls = {self.rank: call} | {rank: self._decode(rank, received[rank], where) for rank in received}
        self._check_same(calls, same_size=same_size)
        self._exchange += 1
        return [calls[rank].n_bytes for rank in range(self.ranks)]

    def close(self, because_of: Iterable[int] = ()) -> None:
        """End the connections: peers that wait for this rank learn at once that it left, and because of whom."""
        blamed = sum(1 << rank for rank in set(because_of))
        for connection in self._sockets.values():
            with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                if blamed:
                    connection.send(_FAREWELL.pack(blamed))
            connection.close()
        self._own, self._slots, self._sockets = [], {}, {}

    def _receive_all(self, where: str) -> dict[int, bytes]:
        received, self._early = self._early, {}
        deadline_s = 0.0
        looks = self._looks
        while missing := self._sockets.keys() - received.keys():
            ready = self._poll.poll(0)
            if not ready and looks > 0:
                looks -= 1
                os.sched_yield()
                continue
            now_s = time.monotonic()
            deadline_s = deadline_s or now_s + self._timeout_s
            if not ready and now_s < deadline_s and not missing & self._gone:
                ready = self._poll.poll((deadline_s - now_s) * 1e3)
            for descriptor, _ in ready:
                self._receive(self._rank_of[descriptor], received)
            missing = self._sockets.keys() - received.keys()
            if missing & self._gone:
                raise self._loss(missing, where)
            if missing and not ready:
                raise PeerSilentError(missing, where=where, timeout_s=self._timeout_s)
        return received

    def _loss(self, missing: set[int], where: str) -> PeerLostError:
        ended = missing & self._gone
        blamed = set[int]().union(*(self._blamed.get(rank, {rank}) for rank in ended))
        return PeerLostError(blamed - {self.rank} or ended, silent=missing - self._gone, where=where)

    def _receive(self, rank: int, received: dict[int, bytes]) -> None:
        try:
            token = self._sockets[rank].recv(_TOKEN.size + 1)
        except (BlockingIOError, ConnectionResetError):
            return  # a reset comes before what was sent before it, once; the end itself comes after that
        if not token:
            self._gone.add(rank)
            self._poll.unregister(self._sockets[rank])
        elif len(token) == _FAREWELL.size:
            (bits,) = _FAREWELL.unpack(token)
            self._blamed[rank] = {blamed for blamed in range(self.ranks) if bits >> blamed & 1}
        elif rank not in received:
            received[rank] = token
        elif rank not in self._early:
            self._early[rank] = token
        else:
            raise MalformedError("token", where=f"exchange {self._exchange}, rank {rank}", got="three", expected="two")

    def _decode(self, rank: int, token: bytes, where: str) -> GroupCall:
        where = f"{where}, rank {rank}"
        if len(token) != _TOKEN.size:
            raise MalformedError("token", where=where, got=f"{len(token)} bytes", expected=_TOKEN.size)
        exchange, n_bytes, operation, dtype = _TOKEN.unpack(token)
        if exchange != self._exchange:
            raise MalformedError("exchange", where=where, got=exchange, expected=self._exchange)
        return GroupCall(operation.rstrip(b"\0").decode("latin-1"), dtype.rstrip(b"\0").decode("latin-1"), n_bytes)

    def _check_same(self, calls: dict[int, GroupCall], *, same_size: bool) -> None:
        own = calls[self.rank]
        for rank, call in calls.items():
            if (call.operation, call.dtype) != (own.operation, own.dtype) or (same_size and call != own):
                place = f"call of rank {rank} in exchange {self._exchange}"
                raise MismatchError(f"{place}: got {call}, expected {own} as rank {self.rank}")
