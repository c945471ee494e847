"""Where the shared files of a run lie: `<root>/<run>/<rank>.ring`, `control`, `traces/<request>-<rank>.json`.

Names come from environments and networks, so a name is checked before it becomes part of a path. Every file has
exactly one writer: the rank writes its ring and its traces, the node's exporter writes the control block.
"""

import re
from pathlib import Path

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import NAME_MAX_BYTES

ROOT_VARIABLE = "LOCKSTEP_DIR"
RUN_VARIABLE = "LOCKSTEP_RUN"
DEFAULT_ROOT = "/dev/shm/lockstep"  # noqa: S108  (memory shared by trainer and exporter is the point)

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_MAX_BYTES - 1}}}\Z")
_RING = re.compile(r"(0|[1-9][0-9]{0,6})\.ring\Z")


def check_name(name: str, what: str) -> str:
    """Return `name` if it may stand in a path, a topic and a label.

    Raises
    ------
    ConfigError
        It may not.
    """
    if not _NAME.match(name):
        raise ConfigError(
            f"{what}: got {name!r:.200}, expected 1 to {NAME_MAX_BYTES} of letters, digits, '.', '_', '-', "
            "beginning with a letter or digit"
        )
    return name


def is_name(name: str) -> bool:
    """Whether `check_name` would accept `name`."""
    return _NAME.match(name) is not None


def run_directory(root: Path, run: str) -> Path:
    """Return the directory that trainer and exporter share for `run`."""
    return root / check_name(run, "run name")


def ring_path(directory: Path, rank: int) -> Path:
    """Return the file of the ring that `rank` writes."""
    return directory / f"{rank}.ring"


def rank_of_ring(file_name: str) -> int | None:
    """Return the rank that a directory entry names as a ring, or None if it is no ring."""
    match = _RING.match(file_name)
    return int(match[1]) if match else None


def control_path(directory: Path) -> Path:
    """Return the file of the control block that the node's exporter writes."""
    return directory / "control"


def trace_path(directory: Path, request_id: int, rank: int) -> Path:
    """Return the file that `rank` writes the trace of a request to; built from two integers only."""
    return directory / "traces" / f"{request_id:d}-{rank:d}.json"
