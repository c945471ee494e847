"""The communication cause: compares the suspect's collectives with those of its peers.

A collective's duration contains the wait for the last rank, so totals show which ranks wait, not whose link is slow.
The shortest duration is the best bound on the transfer without waiting, and a slow link lengthens it too.
"""

from dataclasses import dataclass
from statistics import median

from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.evidence import ms, who

SLOW_LINK_RATIO = 1.3
"""Ratio of the suspect's shortest collective to its peers' above which the link is slow; on two busy cores the shortest
of 10 healthy collectives differed by up to 1.3 between ranks of one job."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the suspect and the median of its peers; mean ns per call."""

    name: str
    own_mean_ns: float
    own_shortest_ns: float
    peers_mean_ns: float
    peers_shortest_ns: float
    own_step_ns: float

    @property
    def slow_link(self) -> bool:
        """Whether even the shortest call took clearly longer on the suspect."""
        return self.own_shortest_ns > SLOW_LINK_RATIO * self.peers_shortest_ns

    def sentence(self, suspect: TraceSummary, peers: list[TraceSummary]) -> str:
        """Return the comparison as a sentence."""
        return (
            f"{self.name} takes {ms(self.own_mean_ns)} on average and {ms(self.own_shortest_ns)} at best on rank "
            f"{suspect.rank}, {ms(self.peers_mean_ns)} and {ms(self.peers_shortest_ns)} on {who(peers)}"
        )


def compare_collectives(suspect: TraceSummary, peers: list[TraceSummary]) -> list[Collective]:
    """Return the collectives that the suspect shares with a peer, those with a slow link first, then by time."""
    found = []
    for name, (count, total_ns, shortest_ns) in suspect.collectives.items():
        theirs = [peer.collectives[name] for peer in peers if name in peer.collectives]
        if not theirs or count <= 0:
            continue
        found.append(
            Collective(
                name=name,
                own_mean_ns=total_ns / count,
                own_shortest_ns=shortest_ns,
                peers_mean_ns=median(each[1] / max(each[0], 1) for each in theirs),
                peers_shortest_ns=median(each[2] for each in theirs),
                own_step_ns=total_ns / max(suspect.steps, 1),
            )
        )
    return sorted(found, key=lambda each: (not each.slow_link, -each.own_step_ns))
