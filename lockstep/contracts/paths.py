"""The paths of a run's shared files.

    <root>/<run>/<rank>.ring                                 ring of a rank
    <root>/.exporter/<run>/control                           control block
    <root>/.exporter/<run>/stacks                            pipe: a byte requests the stacks of the run's processes
    <root>/.exporter/<run>/incoming/<request>-<rank>.json    trace as its rank delivers it
    <root>/.exporter/<run>/traces/<request>-<rank>.json      trace that the exporter has moved out of there
    <root>/.exporter/.unwatched/<pid>-<time>                 mark of a process that trains without being monitored
    <root>/.exporter/.inspector/<host>-pid<pid>.log          what the NCCL Inspector of a process writes

Names come from environments and networks, so a name is checked before it becomes part of a path. A run's name begins
with a letter or digit, so none is `.exporter`. Every file and every directory has one writer: the training user in the
run's directory, the node's exporter in its own. There are three exceptions, all sticky: `incoming` is open to a run's
ranks, `.unwatched` and `.inspector` to all who train.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import NAME_MAX_BYTES

ROOT_VARIABLE = "LOCKSTEP_DIR"
RUN_VARIABLE = "LOCKSTEP_RUN"
DEFAULT_ROOT = "/dev/shm/lockstep"  # noqa: S108  (memory shared by trainer and exporter is the point)
EXPORTER_NAME = ".exporter"
UNWATCHED_NAME = ".unwatched"
INSPECTOR_NAME = ".inspector"

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_MAX_BYTES - 1}}}\Z")
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")
_RING = re.compile(r"(0|[1-9][0-9]{0,6})\.ring\Z")


def check_name(name: str, what: str) -> str:
    """Return `name` if it is valid in a path, a topic and a label.

    Raises
    ------
    ConfigError
        It is not.
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


def derived_name(text: str) -> str:
    """Return the name that stands for `text`, which others chose: itself if it is one, empty if nothing of it can be.

    What is no part of a name becomes `-`; what cannot begin one, and what is too long, is left out.
    """
    return _FOREIGN.sub("-", text).lstrip("._-")[:NAME_MAX_BYTES]


def root_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory that the trainers and the exporter of a node share, by ROOT_VARIABLE.

    Raises
    ------
    ConfigError
        It is not an absolute path: a process would look for it in its own working directory.
    """
    root = Path(environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)
    if not root.is_absolute():
        raise ConfigError(f"{ROOT_VARIABLE}: got {str(root)!r:.200}, expected an absolute path")
    return root


def run_directory(root: Path, run: str) -> Path:
    """Return the directory that trainer and exporter share for `run`."""
    return root / check_name(run, "run name")


def ring_path(directory: Path, rank: int) -> Path:
    """Return the file of the ring that `rank` writes."""
    return directory / f"{rank}.ring"


def rank_of_ring(file_name: str) -> int | None:
    """Return the rank of a ring's file name, or None if it is not a ring."""
    match = _RING.match(file_name)
    return int(match[1]) if match else None


def exporter_directory(directory: Path) -> Path:
    """Return the directory where the node's exporter stores its files for the run of `directory`."""
    return directory.parent / EXPORTER_NAME / directory.name


def unwatched_directory(root: Path) -> Path:
    """Return the directory where processes that train without being monitored leave a mark."""
    return root / EXPORTER_NAME / UNWATCHED_NAME


def inspector_directory(root: Path) -> Path:
    """Return the directory where the NCCL Inspector of each training process writes a file."""
    return root / EXPORTER_NAME / INSPECTOR_NAME


def control_path(directory: Path) -> Path:
    """Return the file of the control block that the node's exporter writes."""
    return exporter_directory(directory) / "control"


def stack_request_path(directory: Path) -> Path:
    """Return the pipe that the node's exporter writes to, to make a run's processes dump their stacks."""
    return exporter_directory(directory) / "stacks"


def incoming_directory(directory: Path) -> Path:
    """Return the directory into which ranks move a complete trace."""
    return exporter_directory(directory) / "incoming"


def traces_directory(directory: Path) -> Path:
    """Return the directory into which the exporter moves the delivered traces."""
    return exporter_directory(directory) / "traces"


def trace_name(request_id: int, rank: int) -> str:
    """Return the file name of a trace, built from two integers only."""
    return f"{request_id:d}-{rank:d}.json"
