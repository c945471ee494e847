"""Formats ranks for a sentence."""

from collections.abc import Sequence

_SPANS_MAX = 4  # spans of ranks listed


def ranks_text(ranks: Sequence[int]) -> str:
    """Format ascending ranks compactly, e.g. "rank 1" or "ranks 0, 2-1023"."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in spans[:_SPANS_MAX]]
    left = sum(high - low + 1 for low, high in spans[_SPANS_MAX:])
    more = f" and {left} more" if left else ""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(parts)}{more}"
