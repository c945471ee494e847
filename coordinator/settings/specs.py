"""The specification of each run's job: from files, by run name or pattern, and over HTTP, by run.

Pure but for `read_specs`. A specification over HTTP goes before the files; of the files' patterns a run's own name goes
before any other, then the longest that fits. Nothing is checked here but sizes: a specification is read where it is
fitted, and what is wrong with it is the reason why nothing is expected of its run.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.yaml_text import read_yaml_file

API, FILE = "api", "file"
TEXT_MAX_BYTES = 64 << 10  # a job with a page of overrides is 4 KiB
RUNS_MAX = 1000  # with a specification over HTTP: it outlives its run
_PATTERNS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecText:
    """A specification as it was given. `folder` is where it may name files, None for one over HTTP: nowhere."""

    text: str
    name: str
    source: str
    folder: Path | None = None

    @property
    def digest(self) -> str:
        """What distinguishes it from another one."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Specs:
    """`configured` by run name or pattern, `given` by run (over HTTP)."""

    def __init__(
        self, configured: Mapping[str, SpecText] | None = None, given: Mapping[str, str] | None = None
    ) -> None:
        self._configured = dict(configured or {})
        self._given = {run: _given(run, text) for run, text in (given or {}).items()}

    def of(self, run: str) -> SpecText | None:
        """Return the specification of `run`, None where there is none."""
        if run in self._given:
            return self._given[run]
        if run in self._configured:
            return self._configured[run]
        fitting = [pattern for pattern in self._configured if fnmatchcase(run, pattern)]
        return self._configured[max(fitting, key=lambda pattern: (len(pattern), pattern))] if fitting else None

    def configure(self, configured: Mapping[str, SpecText]) -> None:
        """Take other files."""
        self._configured = dict(configured)

    def check_capacity(self, run: str) -> None:
        """Check that another run may have one over HTTP.

        Raises
        ------
        ConfigError
            There are too many.
        """
        if run not in self._given and len(self._given) >= RUNS_MAX:
            raise ConfigError(f"specification: got another run, expected at most {RUNS_MAX} with one over HTTP")

    def put(self, run: str, text: str | None) -> None:
        """Set the specification of `run` from HTTP; None removes it."""
        if text is None:
            self._given.pop(run, None)
        else:
            self._given[run] = _given(run, text)


def read_specs(file_name: str) -> dict[str, SpecText]:
    """Return the specifications that a YAML file of names or patterns and paths leads to; blocking.

    Paths are from the file's own folder on. An empty `file_name` leads to none.

    Raises
    ------
    ConfigError
        The file, or one that it names, cannot be used; the message names both.
    """
    if not file_name:
        return {}
    where = f"simulation_file {file_name}"
    value = read_yaml_file(Path(file_name), "simulation_file")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _PATTERNS_MAX:
        raise ConfigError(f"{where}: got {type(value).__name__}, expected up to {_PATTERNS_MAX} run names and files")
    found = {}
    for pattern, path in value.items():
        if not isinstance(pattern, str) or not isinstance(path, str):
            raise ConfigError(f"{where}: got {pattern!r:.100}: {path!r:.100}, expected a run name and a file name")
        found[pattern] = _read(Path(file_name).parent / path, where=f"{where}: {pattern:.100}")
    return found


def _read(file: Path, *, where: str) -> SpecText:
    try:
        with file.open("rb") as opened:
            data = opened.read(TEXT_MAX_BYTES + 1)
        text = data.decode()
    except (OSError, ValueError) as error:  # no such file, no UTF-8, or a NUL in its name
        raise ConfigError(f"{where}: got {str(file)!r}, expected a specification: {error}") from None
    if len(data) > TEXT_MAX_BYTES:
        raise ConfigError(f"{where}: got more than {TEXT_MAX_BYTES} bytes in {str(file)!r}, expected a specification")
    return SpecText(text=text, name=file.name, source=FILE, folder=file.parent)


def _given(run: str, text: str) -> SpecText:
    return SpecText(text=text, name=f"specification of run {run}", source=API)
