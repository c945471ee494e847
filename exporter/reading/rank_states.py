"""Determines the state of each rank's process, from the agent's last report, the ring's holder, and the exit.

While it can, the agent reports that it finishes, or which exception ends the process. What it cannot report (a signal,
`os._exit`, the exit code) is observed from outside.
"""

from dataclasses import replace

from exporter.reading.endings import ProcessEndWatcher
from exporter.reading.ring_file import ReadResult, RingFile
from exporter.reading.run_state import ENDED, RankState
from lockstep.contracts import ring as layout
from lockstep.contracts.endings import RaisedEnding
from lockstep.contracts.messages import (
    EXCEPTION,
    EXIT_CODE,
    FAILED,
    FINISHED,
    GONE,
    RUNNING,
    UNWATCHED,
    RankEnding,
)

FINISHING_S = 30.0
"""Longest wait from the agent's report that it finishes to the end of its process; after that, the report counts.

`sys.exit(1)` makes the same report, and only the exit code shows the difference. Releasing devices and pinned memory,
or any teardown on a machine without processor time to spare, takes longer than a few seconds."""

State = tuple[str, RankEnding | None]
"""One of `messages.RANK_STATES`, and how the process ended unless it ended successfully."""


class RankStates:
    """Runs on the event loop. Rings are identified by keys of the caller."""

    def __init__(self) -> None:
        self._watch = ProcessEndWatcher()
        self._over: dict[str, State] = {}
        self._finishing_since_s: dict[str, float] = {}

    def read(self, key: str, rank_state: RankState, ring: RingFile, now_s: float) -> tuple[ReadResult, State]:
        """Read a ring; return what it holds, and the state of the rank's process.

        The process is looked at first: once it has ended, what is read afterwards is its last word.

        Raises
        ------
        MalformedError, OSError
            The file was truncated, or its lock cannot be queried.
        """
        known = self._over.get(key)
        if known is not None:
            return ring.read(), known
        holder = ring.holder()
        if holder.pid is not None:
            self._watch.watch(key, holder.pid)
        is_watched = self._watch.is_watched(key)
        # A process releases its ring shortly before its end can be observed.
        is_over = self._watch.has_ended(key) or (holder.is_gone and not is_watched)
        result = ring.read()
        if is_over:
            state = self._over_state(key, rank_state, result)
        else:
            state = self._running_state(key, rank_state, result, now_s, is_watched=is_watched)
        if state[0] in ENDED:
            self._over[key] = state
        return result, state

    def forget(self, key: str) -> None:
        """Forget a ring that is no longer read."""
        self._watch.forget(key)
        self._over.pop(key, None)
        self._finishing_since_s.pop(key, None)

    def close(self) -> None:
        """Give all descriptors back."""
        self._watch.close()

    def _running_state(
        self, key: str, rank_state: RankState, result: ReadResult, now_s: float, *, is_watched: bool
    ) -> State:
        if result.state == layout.STATE_FAILED:
            return UNWATCHED, None
        if result.state == layout.STATE_RAISED and result.ending is not None:
            return FAILED, _raised(rank_state, result.ending)
        if result.state == layout.STATE_FINISHED:
            since_s = self._finishing_since_s.setdefault(key, now_s)
            if not is_watched or now_s - since_s >= FINISHING_S:
                return FINISHED, None
        return RUNNING, None

    def _over_state(self, key: str, rank_state: RankState, result: ReadResult) -> State:
        if result.state == layout.STATE_RAISED and result.ending is not None:
            return FAILED, _raised(rank_state, result.ending)
        last_sign_ns = max(0, result.heartbeat_ns + rank_state.header.clock_offset_ns)
        ending = self._watch.ending(key, last_sign_ns)
        if ending is None:
            return FINISHED, None
        if ending.kind == EXIT_CODE and result.state == layout.STATE_FINISHED:  # noted before it was observed
            noted_ns = max(last_sign_ns, ending.alive_unix_ns)
            return FAILED, replace(ending, is_orderly=True, unix_ns=min(ending.unix_ns, noted_ns))
        if ending.kind == EXIT_CODE:
            return FAILED, ending
        return (FINISHED, None) if result.state == layout.STATE_FINISHED else (GONE, ending)


def _raised(rank_state: RankState, ending: RaisedEnding) -> RankEnding:
    unix_ns = max(0, ending.monotonic_ns + rank_state.header.clock_offset_ns)
    return RankEnding(unix_ns=unix_ns, kind=EXCEPTION, exception=ending.exception, frame=ending.frame)
