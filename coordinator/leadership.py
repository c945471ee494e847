"""Elects the coordinator of a pair that requests captures. No clock and no I/O.

All coordinators evaluate, export and store incidents, but only one may request captures, so that a fault costs one
capture. They discover each other by retained heartbeats, and notice a failure by the broker's last will. The one that
started first leads. Each leader takes a *term* above all terms known to it, and every request carries the term. Nodes
refuse a request whose term is below the highest they have seen (a fencing token), whatever a former leader believes.
Terms grow with unix time, so they do not fall when a broker loses its retained heartbeats. A term far ahead of the
clock is rejected, so that it cannot lock out all leaders. Nodes report the highest term that a request had, and the
leader steps above it.
"""

from dataclasses import dataclass

from lockstep.contracts.limits import TERM_AHEAD_SECONDS_MAX
from lockstep.contracts.messages import CoordinatorAlive

HEARTBEAT_S = 5.0
SILENT_S = 4 * HEARTBEAT_S
"""A coordinator that is silent for this long is gone, even if the broker fails to publish its last will."""
SETTLE_S = 2.0
"""Time to receive the retained heartbeats of the other coordinators after connecting."""


@dataclass(slots=True)
class _Peer:
    message: CoordinatorAlive
    seen_s: float


class Leadership:
    """The election state of this coordinator. `term` is that of the current leader, as far as it is known here."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.term = 0
        self.leads = False
        self._peers: dict[str, _Peer] = {}
        self._connected_s: float | None = None

    def connected(self, now_s: float) -> None:
        """Note that this coordinator is connected, so that the heartbeats of others will arrive."""
        self._connected_s = now_s

    def disconnected(self) -> None:
        """Give up leadership: another coordinator may lead, and no request can be sent from here."""
        self._connected_s, self.leads = None, False

    def take(self, message: CoordinatorAlive, now_s: float) -> bool:
        """Apply a heartbeat or a last will, including our own, which the broker sends back; return as `note_term`."""
        if message.coordinator != self.name:
            self._peers[message.coordinator] = _Peer(message, now_s)
        return self.note_term(message.term, now_s)

    def note_term(self, term: int, now_s: float) -> bool:
        """Note a term that a coordinator has or a node has seen; return false if no leader can have it."""
        if term > now_s + TERM_AHEAD_SECONDS_MAX:
            return False
        if term > self.term:
            # Another coordinator has led since: a leader that was suspended, for example, must take a new term.
            self.term, self.leads = term, False
        return True

    def update(self, now_s: float) -> bool:
        """Update the election for the current time; return whether this coordinator has just become the leader."""
        if self._connected_s is None or now_s - self._connected_s < SETTLE_S:
            return False
        if self.term > now_s + TERM_AHEAD_SECONDS_MAX:  # our own clock was set back
            self.term, self.leads = 0, False
        self._peers = {name: peer for name, peer in self._peers.items() if now_s - peer.seen_s < SILENT_S}
        alive = [(peer.message.incarnation, name) for name, peer in self._peers.items() if peer.message.alive]
        did_lead, self.leads = self.leads, (self.incarnation, self.name) < min(alive, default=(1 << 63, ""))
        if not self.leads or did_lead:
            return False
        self.term = max(self.term + 1, int(now_s))
        return True

    def peers(self, now_s: float) -> int:
        """Return the number of other coordinators that are alive."""
        return sum(peer.message.alive and now_s - peer.seen_s < SILENT_S for peer in self._peers.values())

    def heartbeat(self, now_s: float, *, alive: bool = True) -> CoordinatorAlive:
        """Return the heartbeat of this coordinator."""
        return CoordinatorAlive(
            coordinator=self.name,
            alive=alive,
            incarnation=self.incarnation,
            unix_ns=int(now_s * 1e9),
            term=self.term,
        )
