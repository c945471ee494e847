"""Ranks in a sentence."""

from collections.abc import Sequence

_SPANS_MAX = 4  # of ranks named in a text


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ascending ranks in few characters: "rank 1", "ranks 0, 2-1023"."""
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
