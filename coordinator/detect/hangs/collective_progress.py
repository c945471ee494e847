"""Finds collectives of a hang that ranks have not entered or that do not match, from Flight Recorder dumps.

Pure. Ranks of one process group issue the same collectives in the same order, so entries with the same group and
sequence number belong to one collective. They do not match if their operations differ, or, for operations whose inputs
are equal on all ranks, if sizes or dtypes differ.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.detect.hangs.ranks_text import ranks_text
from lockstep.contracts.messages import RankStacks, RecordedCollective

_ALIKE = frozenset(("all_reduce", "allreduce_coalesced", "_all_gather_base", "_reduce_scatter_base", "reduce_scatter"))
_SENTENCES_MAX = 3
Signature = tuple[str, str]
"""Operation, and its inputs if they have to be equal on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedComparison:
    """Result of comparing dumps. `mismatched_ranks` issued another collective than most of their group."""

    evidence: tuple[str, ...]
    mismatched_ranks: tuple[int, ...]


def compare_issued(stacks: Sequence[RankStacks]) -> IssuedComparison:
    """Compare the collectives of all ranks, starting in the group whose ranks differ first."""
    by_group: dict[str, dict[int, dict[int, RecordedCollective]]] = {}
    for each in stacks:
        for entry in each.collectives:
            by_group.setdefault(entry.group, {}).setdefault(each.rank, {})[entry.sequence] = entry
    mismatches = [found for of_rank in by_group.values() if (found := _mismatch(of_rank)) is not None]
    late = [sentence for of_rank in by_group.values() for sentence in _not_entered(of_rank)]
    sentences = [sentence for sentence, _ in mismatches] + late
    return IssuedComparison(
        evidence=tuple(sentences[:_SENTENCES_MAX]), mismatched_ranks=mismatches[0][1] if mismatches else ()
    )


def _mismatch(of_rank: Mapping[int, Mapping[int, RecordedCollective]]) -> tuple[str, tuple[int, ...]] | None:
    """Return the first collective that differs between the ranks of its group, and the ranks in the minority."""
    for sequence in sorted({number for entries in of_rank.values() for number in entries}):
        entries = {rank: own[sequence] for rank, own in sorted(of_rank.items()) if sequence in own}
        counts = Counter(_signature(entry) for entry in entries.values())
        if len(counts) < 2:  # noqa: PLR2004
            continue
        parts = []
        for signature, _ in counts.most_common():
            ranks = [rank for rank, entry in entries.items() if _signature(entry) == signature]
            parts.append(f"{_named(entries[ranks[0]])} on {ranks_text(ranks)}")
        most = counts.most_common(1)[0][0]
        odd = tuple(rank for rank, entry in entries.items() if _signature(entry) != most)
        group = _group(next(iter(entries.values())))
        return f"collective {sequence} of {group} does not match: {', '.join(parts)}", odd
    return None


def _not_entered(of_rank: Mapping[int, Mapping[int, RecordedCollective]]) -> list[str]:
    """Return a sentence per set of ranks that have not entered the last collective of their group, by progress."""
    last = {rank: max(own) for rank, own in sorted(of_rank.items())}
    most = max(last.values())
    newest = next(own[most] for own in of_rank.values() if most in own)
    sentences = []
    for number in sorted(set(last.values()) - {most}):
        ranks = [rank for rank, own in last.items() if own == number]
        have = "has" if len(ranks) == 1 else "have"
        sentences.append(
            f"{ranks_text(ranks)} {have} not entered collective {number + 1} of {_group(newest)}; "
            f"others are in collective {most}, {_named(newest)}"
        )
    return sentences


def _signature(entry: RecordedCollective) -> Signature:
    return entry.operation, entry.tensors if entry.operation in _ALIKE else ""


def _named(entry: RecordedCollective) -> str:
    return f"{entry.operation} of {entry.tensors}" if entry.tensors else entry.operation


def _group(entry: RecordedCollective) -> str:
    return f"group {entry.description or entry.group}"
