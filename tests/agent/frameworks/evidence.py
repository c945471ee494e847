"""What the records of a rank show of a signal, against the script's ledger: a cell of the matrix, or a contradiction.

A contradiction is a text: the records claim something else than what happened, and no matrix declares that.
"""

from collections.abc import Callable

from lockstep.accounting.iteration import REPEATS
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from tests.agent.frameworks.jobs import Rank
from tests.agent.frameworks.matrix import ABSENT, LEARNT, NOT_SEEN, SEEN, Cell

Observation = Cell | str
"""A cell, or a text that shows how records and ledger contradict each other."""


def observe(signal: str, rank: Rank) -> Observation:
    """Return what the records of a rank show of a signal."""
    return _OBSERVERS[signal](rank)


def _steps(rank: Rank) -> Observation:
    """Only what belongs to no whole iteration is a warm-up: the first record, and what came before learning."""
    records, steps = rank.ring.records, rank.ledger["steps"]
    numbers = [record["step"] for record in records]
    warm = [index for index, record in enumerate(records) if record["flags"] & Flag.WARM_UP]
    if numbers == list(range(len(records))) and warm == list(range(len(warm))):
        if (len(records), len(warm)) == (steps, 1):
            return SEEN
        if len(records) > steps and len(records) - len(warm) == steps - REPEATS:
            return LEARNT
    return f"records {numbers} for {steps} iterations, flagged as warm-up {warm}"


def _phase(name: str) -> Callable[[Rank], Observation]:
    def observe_phase(rank: Rank) -> Observation:
        """Look whether the phase holds at least the pauses that the script made in it."""
        found = [record[f"{name}_ns"] for record, _ in rank.steady]
        paused = [rank.ledger["counts"][index].get(name, 0) * rank.ledger["pause_ns"] for _, index in rank.steady]
        if all(spent >= pause for spent, pause in zip(found, paused, strict=True)):
            return SEEN
        return _contradiction(found, paused) if any(found) else NOT_SEEN

    return observe_phase


def _collectives(rank: Rank) -> Observation:
    """Leave out steps with a checkpoint, which hold its collectives too, and DDP's second one, which lays buckets out."""
    expected = rank.ledger["traffic"]
    if expected is None:
        counts = {record[f"{kind}_count"] for record in rank.ring.records for kind in DOMAIN_KINDS}
        return ABSENT if counts == {MISSING} else _contradiction(counts, "no collective")
    found = [_traffic(record) for record, _ in rank.steady[1:] if not record["flags"]]
    return SEEN if set(found) == {tuple(expected)} else _contradiction(found, expected)


def _traffic(record: dict[str, int]) -> tuple[int, int]:
    """Return (count, bytes) of a record's collectives over all kinds."""
    used = [kind for kind in DOMAIN_KINDS if record[f"{kind}_count"] != MISSING]
    return sum(record[f"{kind}_count"] for kind in used), sum(record[f"{kind}_bytes"] for kind in used)


def _gc(rank: Rank) -> Observation:
    counts = [rank.ledger["counts"][index] for _, index in rank.steady]
    expected = [(count.get("gc", 0), count.get("gc_full", 0), count.get("gc", 0) > 0) for count in counts]
    found = [(record["gc_count"], record["gc_full_count"], record["gc_ns"] > 0) for record, _ in rank.steady]
    return SEEN if found == expected else _contradiction(found, expected)


def _amount(name: str) -> Callable[[Rank], Observation]:
    def observe_amount(rank: Rank) -> Observation:
        """Look at all steps but the last, which has less, or none, where batches are fetched ahead."""
        total, steps = rank.ledger[name], rank.ledger["steps"]
        found = [record[name] for record, _ in rank.steady]
        if set(found) == {MISSING}:
            return ABSENT if total is None else NOT_SEEN
        if (
            total is not None
            and set(found[:-1]) == {total // steps}
            and (found[-1] == MISSING or 0 < found[-1] <= total // steps)
        ):
            return SEEN
        return _contradiction(found, total)

    return observe_amount


def _flagged(event: str, flag: Flag) -> Callable[[Rank], Observation]:
    def observe_flag(rank: Rank) -> Observation:
        """Leave out what happened before the first backward and after the last step: it is in no record."""
        steps = range(1, rank.ledger["steps"])
        happened = sorted({index for index in rank.ledger["events"].get(event, []) if index in steps})
        flagged = [index - rank.offset for index, record in enumerate(rank.ring.records) if record["flags"] & flag]
        if flagged == happened:
            return SEEN if happened else ABSENT
        return _contradiction(flagged, happened) if flagged else NOT_SEEN

    return observe_flag


def _recompilations(rank: Rank) -> Observation:
    graphs = rank.ledger["graphs"]
    expected = [after - before for before, after in zip([0, *graphs[:-1]], graphs, strict=True)]
    found = [record["recompilations"] for record in rank.ring.records]
    if found[rank.offset :] == expected:
        return SEEN if any(expected) else ABSENT
    return NOT_SEEN if set(found) == {MISSING} else _contradiction(found, expected)


def _contradiction(found: object, expected: object) -> str:
    return f"got {found}, expected {expected}"


_OBSERVERS: dict[str, Callable[[Rank], Observation]] = {
    "steps": _steps,
    **{name: _phase(name) for name in ("data", "forward", "backward", "optimizer")},
    "collectives": _collectives,
    "gc": _gc,
    "samples": _amount("samples"),
    "tokens": _amount("tokens"),
    "evaluation": _flagged("evaluation", Flag.EVALUATION),
    "checkpoint": _flagged("checkpoint", Flag.CHECKPOINT),
    "skipped": _flagged("skipped", Flag.SKIPPED_OPTIMIZER),
    "recompilations": _recompilations,
}
