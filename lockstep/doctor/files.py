"""Reads small files of /proc and /sys; an unreadable file is empty."""

from pathlib import Path

_READ_MAX = 64 << 10
_DIGITS_MAX = 20


def text_of(path: Path) -> str:
    """Return the beginning of a file, or an empty text if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_READ_MAX).decode(errors="replace")
    except OSError:
        return ""


def count_of(path: Path) -> int | None:
    """Return the integer in a file, or None if it holds none."""
    text = text_of(path).strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else None
