"""The two families of errors: our own (`LocalError`), and unusable input from outside (`PeerError`).

A message states what, where, got and expected, in that order; the exception carries the same values. An error of a peer
is counted and its input dropped: it never propagates past the reader that found it.
"""

from collections.abc import Sequence

_REASONS_SHOWN = 3


class LockstepError(Exception):
    """Base class of every error that Lockstep raises on purpose; never raised itself."""


class LocalError(LockstepError):
    """An error on our side: a configuration, an argument, a call out of order."""


class ConfigError(LocalError):
    """A configuration key or value that cannot be used; the message names it and what is valid."""


class FileAccessError(ConfigError):
    """A file or folder that an option names cannot be read or written; `what` is the option with its path."""

    def __init__(self, what: str, error: OSError | UnicodeError, *, expected: str = "a readable file") -> None:
        super().__init__(f"{what}: got {getattr(error, 'strerror', None) or error}, expected {expected}")


class PeerError(LockstepError):
    """Input from a file, a socket or another process cannot be used."""


class MalformedError(PeerError):
    """Input that does not have the required form.

    Attributes hold the same values as the message: `what` is the field or thing, `where` the file, topic or offset.
    """

    def __init__(self, what: str, *, where: str, got: object, expected: object) -> None:
        super().__init__(f"{what} in {where}: got {got!s:.200}, expected {expected!s:.200}")
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected


class NoTraceError(PeerError):
    """None of several traces can be used; `reasons` are their errors."""

    def __init__(self, reasons: Sequence[str]) -> None:
        more = f"; and {len(reasons) - _REASONS_SHOWN} more" if len(reasons) > _REASONS_SHOWN else ""
        super().__init__(f"no usable trace: {'; '.join(reasons[:_REASONS_SHOWN]) or 'no path was given'}{more}")
        self.reasons = tuple(reasons)


class ContractVersionError(MalformedError):
    """Data of another contract version: rejected with both versions, never partly read."""
