"""Reads numbers from environment variables."""

from lockstep.contracts.errors import ConfigError


def whole_number(text: str | None, variable: str, *, most: int) -> int:
    """Return the whole number from 0 to `most` that a variable holds; None is one that is not set.

    Raises
    ------
    ConfigError
        It holds none.
    """
    is_number = text is not None and text.isdecimal() and len(text.lstrip("0")) <= len(str(most))
    if text is None or not is_number or int(text) > most:
        raise ConfigError(f"{variable}: got {text!r:.200}, expected a number from 0 to {most}")
    return int(text)
