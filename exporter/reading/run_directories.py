"""Finds which directories under the root are runs, and their users: a run belongs to the owner of its directory."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from exporter.counts import ExporterCounters
from exporter.shared_directory import run_status
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.paths import is_name

_NAMES_MAX = 4096  # entries of the root whose owner is checked, 10 ms per scan
_DIRECTORIES_MAX = 256  # left-overs of old runs that are searched for live ones


class RunDirectories:
    """The runs of a root. An entry with a run's name that cannot be followed is counted once."""

    def __init__(self, root: Path, counts: ExporterCounters) -> None:
        self._root = root
        self._counts = counts
        self._refused: dict[str, int] = {}  # run names that are no runs -> inode

    def owners(self, followed: Collection[str]) -> dict[str, int]:
        """Return run -> uid of its owner: followed runs first, then each user's first run, and so on."""
        try:
            present = {path.name for path in self._root.iterdir() if is_name(path.name)}
        except FileNotFoundError:  # nothing has trained here yet
            return {}
        except OSError as error:
            self._counts.reject("run", error)
            return {}
        self._refused = {name: inode for name, inode in self._refused.items() if name in present}
        names = sorted(present, key=lambda name: (name not in followed, name))
        owners = {name: uid for name in names[:_NAMES_MAX] if (uid := self._owner(self._root / name)) is not None}
        turns = turns_of(owners)
        order = sorted(owners, key=lambda name: (name not in followed, turns[name]))
        return {name: owners[name] for name in order[:_DIRECTORIES_MAX]}

    def _owner(self, path: Path) -> int | None:
        """Return the uid of the user who owns the run, or None if it is not a run."""
        try:
            return run_status(path).st_uid
        except FileNotFoundError:
            return None
        except (MalformedError, OSError) as error:
            self.refuse(path, error)
            return None

    def refuse(self, path: Path, error: MalformedError | OSError) -> None:
        """Count an entry with a run's name that cannot be followed, once per entry."""
        try:
            inode = path.lstat().st_ino
        except OSError:  # gone
            return
        if self._refused.get(path.name) != inode:
            self._refused[path.name] = inode
            self._counts.reject("run", error)


def turns_of(owners: dict[str, int]) -> dict[str, int]:
    """Return, for each run, its place among the runs of its owner, in the given order."""
    taken: Counter[int] = Counter()
    turns = {}
    for name, uid in owners.items():
        turns[name] = taken[uid]
        taken[uid] += 1
    return turns
