"""Writes text to the file of a command's option."""

from pathlib import Path

from lockstep.contracts.errors import FileAccessError


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
        raise FileAccessError(f"{option} {path}", error, expected="a file that can be written") from error
