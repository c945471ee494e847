"""Which processes to read: those that hold an open ring."""

from collections.abc import Iterable

from exporter.host_watch.host_reading import Target
from exporter.reading.run_state import RunState
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import FINISHED


def find_targets(runs: Iterable[RunState]) -> list[Target]:
    """Return the ranks whose process may be alive, whatever its agent does. On the event loop, a few us per rank."""
    found = []
    for run in runs:
        for rank_state in run.ranks.values():
            if rank_state.ring is None:
                continue
            try:
                holder = rank_state.ring.holder()
            except (MalformedError, OSError):
                continue
            if holder.is_gone or (holder.pid is None and rank_state.state == FINISHED):
                continue
            found.append(
                Target(
                    run=run.name,
                    rank=rank_state.rank,
                    ring=str(rank_state.ring.path),
                    pid=holder.pid,
                    claimed_pid=None if holder.locks else rank_state.header.pid,
                )
            )
    return found
