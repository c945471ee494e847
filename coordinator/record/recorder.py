"""Records the input of a coordinator on disk, in parts within a quota: the recording of `--record`, for replay.

`receive` runs on the event loop and only queues. A thread encodes and writes the parts. If the disk is too slow, full
or gone, records are dropped and counted; training and detection continue.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.record.journal import CoordinatorStart, Entry, JournalWriter, is_kept, time_ns_of
from coordinator.record.recording import PART_PATTERN, begin_ns, part_name, write_part
from lockstep.contracts.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.contracts.codec import Message
    from lockstep.contracts.messages import StepBatch

_log = logging.getLogger(__name__)

PART_ROWS = 1 << 19  # 300 MB of memory while it is written, 40 MB on disk; 50 s of 10,240 ranks at a step a second
PART_SECONDS = 30.0  # lost if the process is killed; below a minute including the time to write
PENDING_MAX_BYTES = 512 << 20  # two parts: one being written, one filling
_ENTRIES_MAX = 100_000  # besides batches; an hour of a large cluster's announcements
_TICKS_MAX = 1000  # ticks alone are written as a part only once there are so many
_RETRY_S = 5.0


class Recorder:
    """Records into `directory`: a part after `part_rows` or `part_seconds`; the quota deletes the oldest parts first.

    `written` and `dropped` count step records. A part is written while the next one fills; one write at a time.

    Raises
    ------
    ConfigError
        The directory cannot be created or is not writable.
    """

    def __init__(
        self,
        directory: Path,
        start: CoordinatorStart,
        now_s: float,
        *,
        quota_bytes: int,
        part_rows: int = PART_ROWS,
        part_seconds: float = PART_SECONDS,
        pending_max_bytes: int = PENDING_MAX_BYTES,
    ) -> None:
        self.written = 0
        self.dropped = 0
        self._directory = directory
        self._quota_bytes = quota_bytes
        self._part_rows = part_rows
        self._part_seconds = part_seconds
        self._pending_max_bytes = pending_max_bytes
        self._journal = JournalWriter()
        self._pending: list[Entry] = []
        self._rows = 0
        self._bytes = 0
        self._serial = 0
        self._is_worth_a_part = False
        self._due = asyncio.Event()
        self._stopped = asyncio.Event()
        self._part_bytes = 0
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o770)
            for left in directory.glob(PART_PATTERN + ".partial"):  # left by a recorder that was killed
                left.unlink()
            self._last_ns = max((begin_ns(file) for file in directory.glob(PART_PATTERN)), default=0)
        except OSError as error:
            raise ConfigError(
                f"record_directory: got {str(directory)!r}, expected a directory to write in: {error}"
            ) from None
        self._keep(start, now_s, "")

    def receive(self, what: "Sequence[StepBatch] | Message | ev.Event", now_s: float, run: str = "") -> None:
        """Queue an input; if the queue is full, batches are dropped and counted."""
        if isinstance(what, Sequence):
            rows = sum(batch.count for batch in what)
            size = sum(len(batch.records) for batch in what)
            # Drop the newest: the queued ones are more likely to form a complete part.
            if self._bytes + size > self._pending_max_bytes:
                self.dropped += rows
                return
            self._rows += rows
            self._bytes += size
            self._keep(tuple(what), now_s, run)
        elif is_kept(what) and len(self._pending) < _ENTRIES_MAX:
            self._keep(what, now_s, run)
        if self._rows >= self._part_rows:
            self._due.set()

    def _keep(
        self, what: "CoordinatorStart | tuple[StepBatch, ...] | Message | ev.Event", now_s: float, run: str
    ) -> None:
        self._is_worth_a_part |= not isinstance(what, ev.TickEvent)
        self._pending.append(Entry(self._serial, time_ns_of(now_s), what, run))  # type: ignore[arg-type]
        self._serial += 1

    def counts(self) -> dict[str, int]:
        """Return the numbers of step records written and dropped (`metrics.RECORDING_STATES`)."""
        return {"written": self.written, "dropped": self.dropped}

    async def keep_writing(self) -> None:
        """Write parts as they become due until `stop` is called, then write the rest."""
        while not self._stopped.is_set():
            await _wait(self._due, self._part_seconds)
            self._due.clear()
            if not await self.flush():
                await _wait(self._stopped, _RETRY_S)  # poll: no event signals that the disk is back
                self._due.set()
        await self.flush()

    def stop(self) -> None:
        """Make `keep_writing` write the rest and return."""
        self._stopped.set()
        self._due.set()

    async def flush(self) -> bool:
        """Write the queued input as one part; return False if it must be retried. Must not run concurrently."""
        if not self._is_worth_a_part and len(self._pending) < _TICKS_MAX:
            return True
        taken, rows, size = self._pending, self._rows, self._bytes
        self._pending, self._rows, self._is_worth_a_part = [], 0, False
        work = asyncio.ensure_future(asyncio.to_thread(self._write, taken))
        await asyncio.wait((work,))
        error = work.exception()
        if isinstance(error, OSError):
            _log.warning("recording: %s; %d step records wait", error, rows)
            self._pending, self._rows, self._is_worth_a_part = taken + self._pending, rows + self._rows, True
            return False
        self._bytes -= size
        if error is not None:  # a bug of ours may cost a part, but not the monitoring of the cluster
            _log.error("recording: a part of %d step records is lost", rows, exc_info=error)
            self.dropped += rows
        else:
            self.written += rows
        return True

    def _write(self, entries: list[Entry]) -> None:
        """Write a part; if that fails, the state of the recorder is unchanged."""
        journal = self._journal.copy()
        known = journal.known()
        rows = [journal.write(entry) for entry in entries if not isinstance(entry.what, tuple)]
        self._drop_oldest()
        first_ns = max(entries[0].time_ns, self._last_ns + 1)  # a clock set back must not reorder parts
        file = self._directory / part_name(first_ns)
        write_part(file, entries, rows, known)
        self._journal, self._last_ns = journal, first_ns
        self._part_bytes = file.stat().st_size
        self._drop_oldest(0)

    def _drop_oldest(self, spare_bytes: int | None = None) -> None:
        """Delete the oldest parts until `spare_bytes` more fit in the quota; by default, the size of the last part."""
        spare_bytes = self._part_bytes if spare_bytes is None else spare_bytes
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o770)
        parts = sorted(self._directory.glob(PART_PATTERN))  # names begin with the time
        sizes = [part.stat().st_size for part in parts]
        while len(parts) > 1 and sum(sizes) + spare_bytes > self._quota_bytes:
            parts.pop(0).unlink(missing_ok=True)
            sizes.pop(0)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
