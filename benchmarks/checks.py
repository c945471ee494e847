"""Lines of a benchmark's table: a figure and what it must be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """A figure; `is_met` is None for one that is only shown."""

    what: str
    value: str
    expected: str = ""
    is_met: bool | None = None

    def text(self) -> str:
        """Return the line."""
        verdict = {None: "", True: "met", False: "MISSED"}[self.is_met]
        return f"{self.what:<58} {self.value:>30}  {self.expected:<24} {verdict}".rstrip()


def equal(what: str, value: object, expected: object) -> Check:
    """Return the check that a figure is what it must be."""
    return Check(what, _shown(value), _shown(expected), value == expected)


def has_missed(checks: "list[Check]") -> bool:
    """Whether one of them is not met."""
    return any(check.is_met is False for check in checks)


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
