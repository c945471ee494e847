"""Reports when the ranks of a run on this node were last known to be alive.

An agent gives signs of life while its training progresses; a rank that hangs gives none but is alive. If the lock on
its ring shows that its process exists, that counts: the coordinator would assign a dead rank to another node.
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

    Its times are from the clock that wrote the ring, so they never go back while a process lives.
    """
    return RunHeartbeat(
        run=run.name,
        revision=run.revision,
        alive_unix_ns=[_alive_unix_ns(rank_state, now_ns) for rank_state in run.announced()],
        memory=list(memory[:RANKS_PER_NODE_MAX]),
    )


def _alive_unix_ns(rank_state: RankState, now_ns: int) -> int:
    last_ns = now_ns if _is_held(rank_state) else rank_state.heartbeat_ns
    rank_state.alive_ns = max(rank_state.alive_ns, last_ns)
    return max(0, rank_state.alive_ns + rank_state.header.clock_offset_ns)


def _is_held(rank_state: RankState) -> bool:
    """Whether the rank's process holds its ring; false if unknown."""
    if rank_state.ring is None:
        return False
    try:
        holder = rank_state.ring.holder()
    except (MalformedError, OSError) as error:  # the reader of records counts it
        _log.debug("rank %d: %s", rank_state.rank, error)
        return False
    return holder.locks and not holder.is_gone
