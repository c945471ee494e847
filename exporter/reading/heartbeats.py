"""When the ranks of a run on this node were last known to live.

An agent gives signs of life while its training goes on; a rank that hangs gives none, and lives. Where the lock on its
ring shows that its process exists, that counts: the coordinator gives a rank that does not live to another node.
"""

import logging
from collections.abc import Sequence

from exporter.reading.run_state import RankState, RunState
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import RANKS_PER_NODE_MAX
from lockstep.contracts.memory_report import RankMemory
from lockstep.contracts.messages import RunHeartbeat

_log = logging.getLogger(__name__)


def run_heartbeat(run: RunState, now_ns: int, memory: Sequence[RankMemory] = ()) -> RunHeartbeat:
    """Return the heartbeat of a run's announced ranks (`now_ns` CLOCK_MONOTONIC), with what is known of their memory.

    Its times are of the clock that wrote the ring: they never go back while a process lives.
    """
    return RunHeartbeat(
        run=run.name,
        revision=run.revision,
        alive_unix_ns=[_alive_unix_ns(track, now_ns) for track in run.announced()],
        memory=list(memory[:RANKS_PER_NODE_MAX]),
    )


def _alive_unix_ns(track: RankState, now_ns: int) -> int:
    last_ns = now_ns if _is_held(track) else track.heartbeat_ns
    track.alive_ns = max(track.alive_ns, last_ns)
    return max(0, track.alive_ns + track.header.clock_offset_ns)


def _is_held(track: RankState) -> bool:
    """Whether the rank's process holds its ring; false where that is unknown."""
    if track.ring is None:
        return False
    try:
        holder = track.ring.holder()
    except (MalformedError, OSError) as error:  # counted where the ring is read for its records
        _log.debug("rank %d: %s", track.rank, error)
        return False
    return holder.locks and not holder.is_gone
