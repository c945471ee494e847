"""How far a run was forwarded to a tracker: a small JSON file, replaced atomically, so that a restart continues."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from lockstep.contracts.errors import ConfigError, MalformedError

_VERSION = 1


@dataclass(slots=True, kw_only=True)
class ForwardState:
    """How far a run was forwarded.

    `until_unix_s` is the end of the last step, `last_step` its number, -1 before the first.

    `revisions` and `hosts` cover the incidents that the coordinator still lists, by id.
    """

    run: str
    tracker: str
    tracker_run: str = ""
    until_unix_s: float = 0.0
    last_step: int = -1
    revisions: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)


@contextmanager
def hold_state(path: Path) -> Iterator[None]:
    """Hold the file's lock, because two processes would send everything twice.

    Raises
    ------
    ConfigError
        Another process holds it, or the folder is not writable.
    """
    with _opened_lock(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            got = "a file with which another process forwards"
            raise ConfigError(f"--state {path}: got {got}, expected one of its own") from None
        except OSError as error:
            raise ConfigError(f"--state {path}: {error.strerror}, expected a file system with locks") from error
        yield


def _opened_lock(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(path.name + ".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--state {path}: {error.strerror}, expected a file to write to") from error


def load_state(path: Path, run: str, tracker: str) -> ForwardState:
    """Return the state in a file, or an initial one if there is no file.

    Raises
    ------
    ConfigError
        The file cannot be read, or belongs to another run or tracker.
    MalformedError
        It is not such a state.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        version = body.pop("version")
        if version != _VERSION:
            raise MalformedError("version", where=str(path), got=version, expected=_VERSION)
        numbers = {"until_unix_s": float(body["until_unix_s"]), "last_step": int(body["last_step"])}
        state = ForwardState(**body | numbers)
        state.revisions, state.hosts = dict(state.revisions), dict(state.hosts)
    except FileNotFoundError:
        return ForwardState(run=run, tracker=tracker)
    except OSError as error:
        raise ConfigError(f"--state {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MalformedError("state", where=str(path), got=repr(error), expected="what forward wrote") from error
    if (state.run, state.tracker) != (run, tracker):
        got = f"run {state.run} to {state.tracker}"
        raise ConfigError(f"--state {path}: got the state of {got}, expected of {run} to {tracker}")
    return state


def save_state(path: Path, state: ForwardState) -> None:
    """Replace the file atomically.

    Raises
    ------
    ConfigError
        It cannot be written.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, **asdict(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"--state {path}: {error.strerror}, expected a file to write to") from error
