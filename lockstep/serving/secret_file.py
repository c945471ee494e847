"""Reads a secret from a file; no message contains any part of it."""

from pathlib import Path

from lockstep.contracts.errors import ConfigError

_SECRET_MAX_BYTES = 64 << 10


def read_secret(file: str, key: str) -> str:
    """Return the one line of text in a setting's file, without surrounding space; blocking.

    Raises
    ------
    ConfigError
        The file cannot be read, is empty, or contains characters that no header can carry.
    """
    try:
        with Path(file).open("rb") as stream:
            text = stream.read(_SECRET_MAX_BYTES + 1).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{key}: got {file!r}, expected a readable file of text") from None
    if not text or len(text) > _SECRET_MAX_BYTES or not text.isprintable():
        raise ConfigError(f"{key}: got an empty, unprintable or too long text in {file!r}")
    return text
