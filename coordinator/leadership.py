"""Which coordinator of a pair orders captures. No clock and no I/O.

All coordinators judge, export and keep incidents; only one may order a capture, so that a fault costs one. They know of
each other by retained heartbeats, and by the broker's last will when one is gone. The one that was started first leads.
Each leader takes a *term* above all that it knows of, and every order carries it: nodes refuse an order of a term below
the highest they have seen (a fencing number), whatever a former leader believes. Terms grow with unix time, so that a
broker that forgot all heartbeats cannot make them fall, and one far ahead of the clock is no leader's: none can lock
all leaders out with it. Nodes report the highest term that an order had, and the leader steps above it.
"""

from dataclasses import dataclass

from lockstep.contracts.limits import TERM_AHEAD_SECONDS_MAX
from lockstep.contracts.messages import CoordinatorAlive

HEARTBEAT_S = 5.0
SILENT_S = 4 * HEARTBEAT_S
"""A coordinator without a sign of life for so long is gone, should the broker fail to publish its last will."""
SETTLE_S = 2.0
"""After a connection the retained heartbeats of the others come first."""


@dataclass(slots=True)
class _Peer:
    message: CoordinatorAlive
    seen_s: float


class Leadership:
    """`term` is that of the present leader, as far as it is known here."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.term = 0
        self.leads = False
        self._peers: dict[str, _Peer] = {}
        self._connected_s: float | None = None

    def connected(self, now_s: float) -> None:
        """Note that heartbeats of others will come now."""
        self._connected_s = now_s

    def disconnected(self) -> None:
        """Lead no more: another one may, and nothing can be ordered from here."""
        self._connected_s, self.leads = None, False

    def take(self, message: CoordinatorAlive, now_s: float) -> bool:
        """Take a heartbeat or a last will, also our own, which come back to us; return as `note_term`."""
        if message.coordinator != self.name:
            self._peers[message.coordinator] = _Peer(message, now_s)
        return self.note_term(message.term, now_s)

    def note_term(self, term: int, now_s: float) -> bool:
        """Note a term that a coordinator has or a node has seen; return false for one that no leader can have."""
        if term > now_s + TERM_AHEAD_SECONDS_MAX:
            return False
        if term > self.term:
            # Another one has led since: a leader that was suspended, for example, begins again with a term of its own.
            self.term, self.leads = term, False
        return True

    def update(self, now_s: float) -> bool:
        """Let time pass; return whether this coordinator leads from now on and did not before."""
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
        """Return how many other coordinators are alive."""
        return sum(peer.message.alive and now_s - peer.seen_s < SILENT_S for peer in self._peers.values())

    def heartbeat(self, now_s: float, *, alive: bool = True) -> CoordinatorAlive:
        """Return what is published of this coordinator."""
        return CoordinatorAlive(
            coordinator=self.name,
            alive=alive,
            incarnation=self.incarnation,
            unix_ns=int(now_s * 1e9),
            term=self.term,
        )
