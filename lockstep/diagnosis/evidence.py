"""Evidence as sentences for operators, with numbers and units."""

from collections.abc import Sequence
from statistics import median

from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.excess import ExcessTree
from lockstep.diagnosis.frames import is_frame_name, is_own, is_user_name, readable, short_name
from lockstep.trace.names import GC_KIND
from lockstep.trace.tree import ROOT
from lockstep.trace.waiting import WAIT_NAME

COLLECT = "<built-in function collect>"
_NAMED_RANKS = 4  # more peers than this are counted instead of listed
_CALLERS_MAX = 4
_LONGER_RATIO = 1.5  # captures of a few steps differ less than this from the measurement
_WAIT_RATIO = 0.8  # if the suspect waits less than this share of its peers' waiting, they wait for it


def ms(ns: float) -> str:
    """Format a time in ms."""
    return f"{ns / 1e6:.1f} ms"


def who(peers: list[TraceSummary]) -> str:
    """Format the peers as one phrase."""
    ranks = sorted(peer.rank for peer in peers)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= _NAMED_RANKS:
        return f"ranks {', '.join(map(str, ranks))} (median)"
    return f"{len(ranks)} peers (median)"


def compared(tree: ExcessTree, index: int, suspect: TraceSummary, peers: list[TraceSummary]) -> str:
    """Describe how long a node takes on the suspect and on its peers."""
    text = f"{short_name(tree.nodes[index].name)} takes {ms(tree.own_ns[index])} a step on rank {suspect.rank}"
    return f"{text}, {ms(tree.peers_ns[index])} on {who(peers)}" if peers else f"{text}; no healthy peer was captured"


def share(held_ns: float, excess_ns: float, suspect: TraceSummary) -> str:
    """Describe a node's share of the excess; the capture and the measurement cover different steps."""
    if held_ns > _LONGER_RATIO * excess_ns > 0:  # a stall in the captured steps, or what recording costs
        return f"this accounts for all of the {ms(excess_ns)} a step by which rank {suspect.rank} was measured slower"
    text = f"the capture has {ms(held_ns)} a step more there than on its peers"
    return f"{text}; rank {suspect.rank} was measured {ms(excess_ns)} a step slower" if excess_ns > 0 else text


def spread(tree: ExcessTree, index: int) -> str:
    """Describe which callees of a node take most, if no single one has the excess."""
    callees = sorted(tree.children.get(index, []), key=lambda child: -tree.held_ns[child])[:3]
    parts = [f"{short_name(tree.nodes[child].name)} {ms(tree.held_ns[child])}" for child in callees]
    parts = [part for part, child in zip(parts, callees, strict=True) if tree.held_ns[child] > 0]
    where = short_name(tree.nodes[index].name) if index != ROOT else "the step"
    return f"no single callee of {where} accounts for the excess; the largest: {', '.join(parts) or 'none'}"


def called_from(path: Sequence[str]) -> list[str]:
    """Return the callers of a path's last function, outermost first: user code and annotations only."""
    callers = [name for name in path[:-1] if not is_own(name)]
    callers = [each for each in callers if is_user_name(each) or not (is_frame_name(each) or each.startswith("<"))]
    shown = [readable(name) for name in callers[-_CALLERS_MAX:]]
    more = "... > " if len(callers) > len(shown) else ""
    return [f"called from {more}{' > '.join(shown)}"] if shown else []


def collections(suspect: TraceSummary, peers: list[TraceSummary]) -> str:
    """Describe number and duration of the collections on the suspect and on its peers."""

    def counted(summary: TraceSummary) -> tuple[float, float]:
        recorded = [node for node in summary.tree if node.kind == GC_KIND]
        found = recorded or [node for node in summary.tree if node.name == COLLECT]
        steps = max(summary.steps, 1)
        return sum(node.count for node in found) / steps, sum(node.total_ns for node in found) / steps

    count, spent_ns = counted(suspect)
    text = f"{count:.1f} collections a step take {ms(spent_ns)} on rank {suspect.rank}"
    if not peers:
        return text
    counts, times_ns = zip(*map(counted, peers), strict=True)
    return f"{text}; {median(counts):.1f} and {ms(median(times_ns))} on {who(peers)}"


def waited_for(suspect: TraceSummary, peers: list[TraceSummary]) -> list[str]:
    """Describe that the peers wait for the suspect, if they do: it spends less time in collectives than they do."""
    if not peers:
        return []
    own_ns, theirs_ns = _waiting_ns(suspect), median(map(_waiting_ns, peers))
    if own_ns >= _WAIT_RATIO * theirs_ns:
        return []
    text = f"rank {suspect.rank} waits {ms(own_ns)} a step for collectives, {who(peers)} {ms(theirs_ns)}"
    return [f"{text}: the others wait for it"]


def _waiting_ns(summary: TraceSummary) -> float:
    """Return a rank's waiting per step; without stacks, the time in which its collectives are in flight."""
    waits_ns = sum(node.total_ns for node in summary.tree if node.name == WAIT_NAME)
    under_way_ns = sum(total_ns for _, total_ns, _ in summary.collectives.values())
    return (waits_ns or under_way_ns) / max(summary.steps, 1)
