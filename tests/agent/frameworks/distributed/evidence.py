"""What the records of a rank show of a signal, against the script's ledger: a cell, or a contradiction as a text."""

from lockstep.contracts.domains import unpack_ranks
from lockstep.contracts.records import DOMAIN_KINDS, MISSING
from tests.agent.frameworks import evidence
from tests.agent.frameworks.evidence import Observation
from tests.agent.frameworks.jobs import Rank
from tests.agent.frameworks.matrix import SEEN

SETTLED = 3
"""Iteration from which all collectives of a step are those of the layout: DDP and DeepSpeed lay out in the first two."""


def observe(signal: str, rank: Rank) -> Observation:
    """Return what the records of a rank show of a signal."""
    own = {"domains": _domains, "collectives": _collectives}
    return own[signal](rank) if signal in own else evidence.observe(signal, rank)


def _domains(rank: Rank) -> Observation:
    """Compare the announced groups with those of the job; a group may be announced under several names."""
    announced = {(group["kind"], unpack_ranks(group["ranks"], where="ring")) for group in rank.ring.groups}
    expected = {(kind, tuple(ranks)) for kind, ranks in rank.ledger["groups"]}
    return SEEN if announced == expected else f"got groups {sorted(announced)}, expected {sorted(expected)}"


def _collectives(rank: Rank) -> Observation:
    expected = {kind: tuple(traffic) for kind, traffic in rank.ledger["traffic"].items()}
    for record, index in rank.steady:
        found = _traffic(record)
        if index >= SETTLED and found != expected:
            return f"got {found} in iteration {index}, expected {expected}"
    return SEEN


def _traffic(record: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return (count, bytes) of a record's collectives by kind, for the kinds in use."""
    used = [kind for kind in DOMAIN_KINDS if record[f"{kind}_count"] not in (MISSING, 0)]
    return {kind: (record[f"{kind}_count"], record[f"{kind}_bytes"]) for kind in used}
