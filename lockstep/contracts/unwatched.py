"""The mark of a process that trains without being monitored: the reason on the first line, details on the second."""

from typing import Literal, get_args

from lockstep.contracts.errors import MalformedError

UnwatchedReason = Literal["identity", "refused", "ring", "hooks", "failure", "steps"]
UNWATCHED_REASONS: tuple[UnwatchedReason, ...] = get_args(UnwatchedReason)
"""No usable rank or run name, or only that of the rank that started the process; a directory refused for its owner; no
ring for lack of space or permission; hooks that do not fit this torch; a failure of the agent; backwards that no end of
a step follows."""
MARK_MAX_BYTES = 1024
MARKS_MAX = 256
"""Marks that an exporter reads: four times the ranks that it follows of one run."""


def pack_mark(reason: UnwatchedReason, text: str) -> bytes:
    """Return the content of a mark; `text` is truncated to fit."""
    return f"{reason}\n{' '.join(text.split())}".encode(errors="replace")[:MARK_MAX_BYTES]


def unpack_mark(content: bytes, *, where: str) -> tuple[UnwatchedReason, str]:
    """Return reason and text of a mark, printable characters only.

    Raises
    ------
    MalformedError
        It contains no known reason.
    """
    first, _, text = content[:MARK_MAX_BYTES].decode(errors="replace").partition("\n")
    for reason in UNWATCHED_REASONS:
        if reason == first:
            return reason, "".join(part if part.isprintable() else " " for part in text)
    raise MalformedError("reason", where=where, got=first, expected=" or ".join(UNWATCHED_REASONS))
