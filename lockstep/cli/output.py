"""Text that a command writes to the file of an option."""

from pathlib import Path

from lockstep.contracts.errors import ConfigError


def write_text(path: Path, text: str, option: str) -> None:
    """Write `text` to the file that `option` names.

    Raises
    ------
    ConfigError
        It cannot be written; the message names option and file.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror or error}") from error
