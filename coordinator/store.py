"""Stores incidents and the state of each run: SQLite in WAL mode, on disk or in memory.

Blocking: call it off the event loop. An internal lock admits one thread at a time. Every write is a transaction, so a
coordinator that is killed loses at most what it had not asked to store yet.
"""

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.decide.incidents import CLOSED, OPEN, Incident, from_json, to_json
from coordinator.decide.saved_run import (
    LEARNT_MAX_BYTES,
    DetectorState,
    SavedRun,
    learnt_from_bytes,
    saved_run_from_json,
)
from coordinator.expected.healthy import KeptWindow, kept_from_json, kept_to_json
from coordinator.fleet.history import Sighting, Subject
from coordinator.intake.streams import StreamOffset
from coordinator.record.step_series import SERIES_MAX_BYTES
from lockstep.contracts.errors import ConfigError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coordinator.intake.streams import Commit
    from coordinator.settings.thresholds import Value

_log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
FILE_NAME = "coordinator.sqlite3"
SIGHTINGS_MAX = 50_000  # read at startup; more than 100 incidents a day that name three machines each, for 90 days
NOTIFICATIONS_KEPT_S = 7 * 86400.0  # afterwards, late evidence of a closed incident sends no notification
LIST_MAX = 1000  # incidents per response of the API
_SCHEMA = """
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY, run TEXT NOT NULL, state TEXT NOT NULL, opened_unix_ns INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS incidents_by_run ON incidents (run, state, opened_unix_ns);
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS learnt (run TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS series (run TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS specifications (run TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS windows (run TEXT PRIMARY KEY, digest TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS policy (run TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS streams (node TEXT PRIMARY KEY, stream_id INTEGER NOT NULL, sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sightings (
    kind TEXT NOT NULL, name TEXT NOT NULL, incident TEXT NOT NULL, run TEXT NOT NULL, incident_kind TEXT NOT NULL,
    cause TEXT NOT NULL, opened_unix_s REAL NOT NULL, PRIMARY KEY (kind, name, incident)
);
CREATE TABLE IF NOT EXISTS notifications (
    target TEXT NOT NULL, incident TEXT NOT NULL, stage TEXT NOT NULL, unix_s REAL NOT NULL,
    PRIMARY KEY (target, incident, stage)
);
CREATE TABLE IF NOT EXISTS ledger (outcome TEXT PRIMARY KEY, records INTEGER NOT NULL);
"""
_LOCK_NAME = "lock"


class Store:
    """The open database; with an empty `directory` it is in memory only.

    Raises
    ------
    ConfigError
        The directory cannot be used, another coordinator uses it, or its file is of another version.
    """

    def __init__(self, directory: str) -> None:
        self._lock = threading.Lock()
        self._directory_lock = -1
        self._where = str(Path(directory) / FILE_NAME) if directory else ":memory:"
        try:
            if directory:
                Path(directory).mkdir(parents=True, exist_ok=True, mode=0o770)
                self._directory_lock = _hold(Path(directory))
            self._database = sqlite3.connect(self._where, check_same_thread=False, isolation_level=None)
            version = int(self._database.execute("PRAGMA user_version").fetchone()[0])
            if version not in (0, SCHEMA_VERSION):
                self._database.close()
                self._release()
                raise ConfigError(f"state file {self._where}: got version {version}, expected {SCHEMA_VERSION}")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.executescript(_SCHEMA)
            self._database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        except (OSError, sqlite3.Error) as error:
            self._release()
            raise ConfigError(
                f"state_directory: got {directory!r}, expected a directory to write in: {error}"
            ) from None

    def close(self) -> None:
        """Close the database, which must not be used afterwards."""
        with self._lock:
            self._database.close()
            self._release()

    def _release(self) -> None:
        if self._directory_lock >= 0:
            os.close(self._directory_lock)
            self._directory_lock = -1

    def keep(
        self, incidents: "Iterable[Incident]", memories: "Mapping[str, SavedRun]", commit: "Commit | None" = None
    ) -> None:
        """Write incidents, the state of runs and the offsets of streams in one transaction.

        They must be of the same moment. If a run's state has no learnt arrays or no series, the stored ones stay.
        """
        learnt = {run: memory.learnt.to_bytes() for run, memory in memories.items() if memory.learnt is not None}
        series = [(run, zlib.compress(memory.series, 1)) for run, memory in memories.items() if memory.series]
        with self._lock, self._transaction():
            for incident in incidents:
                row = (incident.id, incident.run, incident.state, incident.opened_unix_ns)
                body = json.dumps(to_json(incident))
                self._database.execute("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)", (*row, body))
            for run, memory in memories.items():
                self._database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (run, json.dumps(memory.to_json())))
            for run, form in learnt.items():
                if len(form) > LEARNT_MAX_BYTES:
                    _log.warning("learnt state of run %s: %d bytes are too many to store", run, len(form))
                    continue
                self._database.execute("INSERT OR REPLACE INTO learnt VALUES (?, ?)", (run, form))
            self._database.executemany("INSERT OR REPLACE INTO series VALUES (?, ?)", series)
            if commit is not None:
                self._keep_streams(commit)

    def _keep_streams(self, commit: "Commit") -> None:
        rows = [(node, place.stream_id, place.sequence) for node, place in commit.offsets.items()]
        self._database.executemany("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", rows)
        self._database.executemany("INSERT OR REPLACE INTO ledger VALUES (?, ?)", list(commit.ledger.items()))

    def load_streams(self) -> "tuple[dict[str, StreamOffset], dict[str, int]]":
        """Return the stored offsets of streams by node, and the records by outcome."""
        with self._lock:
            rows = self._database.execute("SELECT node, stream_id, sequence FROM streams").fetchall()
            ledger = dict(self._database.execute("SELECT outcome, records FROM ledger").fetchall())
        return {node: StreamOffset(stream_id, sequence) for node, stream_id, sequence in rows}, ledger

    def keep_sightings(self, sightings: "Iterable[Sighting]", since_unix_s: float) -> None:
        """Write which machines incidents named; delete sightings older than `since_unix_s`."""
        rows = [(*s.subject, s.incident_id, s.run, s.incident_kind, s.cause, s.opened_unix_s) for s in sightings]
        with self._lock, self._transaction():
            self._database.executemany("INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._database.execute("DELETE FROM sightings WHERE opened_unix_s < ?", (since_unix_s,))

    def load_sightings(self) -> "list[Sighting]":
        """Return the newest sightings, at most `SIGHTINGS_MAX`, the oldest first."""
        with self._lock:
            rows = self._database.execute(
                "SELECT kind, name, incident, run, incident_kind, cause, opened_unix_s FROM sightings "
                "ORDER BY opened_unix_s DESC LIMIT ?",
                (SIGHTINGS_MAX,),
            ).fetchall()
        return [
            Sighting(
                subject=Subject(kind, name),
                incident_id=incident,
                run=run,
                incident_kind=incident_kind,
                cause=cause,
                opened_unix_s=opened_unix_s,
            )
            for kind, name, incident, run, incident_kind, cause, opened_unix_s in reversed(rows)
        ]

    def keep_notifications(self, settled: "Iterable[tuple[str, str, str]]", now_s: float) -> None:
        """Write (target, incident, stage) of notifications that must not be sent again.

        Those of closed incidents are deleted after `NOTIFICATIONS_KEPT_S`.
        """
        rows = [(*each, now_s) for each in settled]
        with self._lock, self._transaction():
            self._database.executemany("INSERT OR REPLACE INTO notifications VALUES (?, ?, ?, ?)", rows)
            self._database.execute(
                "DELETE FROM notifications WHERE unix_s < ? AND incident NOT IN "
                "(SELECT id FROM incidents WHERE state = ?)",
                (now_s - NOTIFICATIONS_KEPT_S, OPEN),
            )

    def load_notifications(self) -> list[tuple[str, str, str]]:
        """Return the stored (target, incident, stage) of notifications, the oldest first."""
        with self._lock:
            return self._database.execute(
                "SELECT target, incident, stage FROM notifications ORDER BY unix_s"
            ).fetchall()

    def keep_incident(self, incident: Incident) -> None:
        """Write one incident."""
        self.keep([incident], {})

    def forget_learnt(self, runs: "Iterable[str]") -> None:
        """Delete the learnt state, series and healthy windows of these runs, which have ended."""
        with self._lock, self._transaction():
            for run in runs:
                self._database.execute("DELETE FROM learnt WHERE run = ?", (run,))
                self._database.execute("DELETE FROM windows WHERE run = ?", (run,))
                self._database.execute("DELETE FROM series WHERE run = ?", (run,))

    def forget_runs(self, runs: "Iterable[str]") -> None:
        """Delete the state of these runs except incidents and learnt state (see `forget_learnt`)."""
        with self._lock, self._transaction():
            self._database.executemany("DELETE FROM runs WHERE run = ?", [(run,) for run in runs])

    @contextlib.contextmanager
    def _transaction(self) -> "Iterator[None]":
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def load_runs(self) -> dict[str, SavedRun]:
        """Return the stored state of each run, including its open incidents; damaged learnt state is skipped.

        Raises
        ------
        MalformedError
            The file has content that this version did not write.
        """
        with self._lock:
            rows = self._database.execute("SELECT run, body FROM runs").fetchall()
            forms = dict(self._database.execute("SELECT run, body FROM learnt").fetchall())
            series = dict(self._database.execute("SELECT run, body FROM series").fetchall())
        memories = {}
        for run, body in rows:
            incidents = tuple(reversed(self.incidents(run=run, state=OPEN)))
            learnt = self._parse_learnt(run, forms[run]) if run in forms else None
            try:
                memories[run] = saved_run_from_json(json.loads(body), incidents, learnt, _unpacked(series.get(run)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise MalformedError(
                    f"memory of run {run}", where=self._where, got=repr(error), expected="the stored format"
                ) from error
        return memories

    def _parse_learnt(self, run: str, form: Any) -> DetectorState | None:
        try:
            return learnt_from_bytes(bytes(form), where=f"{self._where}, run {run}")
        except (MalformedError, TypeError) as error:
            _log.warning("%s; discarded, the run's detectors start over", error)
            return None

    def keep_policy(self, run: str, values: "Mapping[str, Value]") -> None:
        """Write the settings changed over HTTP for a run (empty name: for all runs); no values delete the entry."""
        with self._lock:
            if values:
                self._database.execute("INSERT OR REPLACE INTO policy VALUES (?, ?)", (run, json.dumps(values)))
            else:
                self._database.execute("DELETE FROM policy WHERE run = ?", (run,))

    def load_policy(self) -> dict[str, dict[str, Any]]:
        """Return the settings changed over HTTP, by run. The values are unchecked JSON values.

        Raises
        ------
        MalformedError
            The file has content that this version did not write.
        """
        with self._lock:
            rows = self._database.execute("SELECT run, body FROM policy").fetchall()
        try:
            return {run: dict(json.loads(body)) for run, body in rows}
        except (ValueError, TypeError) as error:
            raise MalformedError("policy", where=self._where, got=repr(error), expected="the stored format") from error

    def keep_specification(self, run: str, text: str | None) -> None:
        """Write the specification of a run's job that was set over HTTP; None deletes it."""
        with self._lock:
            if text is None:
                self._database.execute("DELETE FROM specifications WHERE run = ?", (run,))
            else:
                self._database.execute("INSERT OR REPLACE INTO specifications VALUES (?, ?)", (run, text))

    def load_specifications(self) -> dict[str, str]:
        """Return the specifications set over HTTP, by run."""
        with self._lock:
            return dict(self._database.execute("SELECT run, body FROM specifications").fetchall())

    def keep_window(self, run: str, kept: KeptWindow) -> None:
        """Write the healthy window to which a run's model was fitted, with the operators from captures."""
        with self._lock:
            row = (run, kept.digest, json.dumps(kept_to_json(kept)))
            self._database.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?)", row)

    def load_windows(self) -> dict[str, KeptWindow]:
        """Return the stored healthy windows by run.

        Damaged ones are skipped, because the run will provide another one.
        """
        with self._lock:
            rows = self._database.execute("SELECT run, digest, body FROM windows").fetchall()
        windows = {}
        for run, digest, body in rows:
            try:
                windows[run] = kept_from_json(json.loads(body), digest=digest, where=f"{self._where}, run {run}")
            except (MalformedError, ValueError) as error:
                _log.warning("%s; discarded, the run's model waits for another window", error)
        return windows

    def incidents(self, *, run: str = "", state: str = "", limit: int = LIST_MAX) -> list[Incident]:
        """Return incidents, the newest first, at most `limit`.

        Raises
        ------
        MalformedError
            The file has content that this version did not write.
        """
        assert state in ("", OPEN, CLOSED)
        with self._lock:
            rows = self._database.execute(
                "SELECT body FROM incidents WHERE (?1 = '' OR run = ?1) AND (?2 = '' OR state = ?2) "
                "ORDER BY opened_unix_ns DESC, id DESC LIMIT ?3",
                (run, state, limit),
            ).fetchall()
        return [self._parse(row[0]) for row in rows]

    def incident(self, incident_id: str) -> Incident | None:
        """Return one incident; None if it is not stored.

        Raises
        ------
        MalformedError
            The file has content that this version did not write.
        """
        with self._lock:
            row = self._database.execute("SELECT body FROM incidents WHERE id = ?", (incident_id,)).fetchone()
        return self._parse(row[0]) if row else None

    def _parse(self, body: str) -> Incident:
        try:
            value = json.loads(body)
        except ValueError as error:
            raise MalformedError("incident", where=self._where, got=str(error), expected="JSON") from error
        return from_json(value, where=self._where)


def _unpacked(body: bytes | None) -> bytes | None:
    """Return the decompressed series of a run; b"" if it is damaged."""
    unpacker = zlib.decompressobj()
    try:
        return None if body is None else unpacker.decompress(body, SERIES_MAX_BYTES)
    except (zlib.error, TypeError):
        return b""  # no series: the run begins one, and logs it


def _hold(directory: Path) -> int:
    """Lock the state directory; return the descriptor that holds it until it is closed or the process ends.

    Raises
    ------
    ConfigError
        Another process holds it.
    """
    lock = os.open(directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"state_directory: got {str(directory)!r}, expected one that no other coordinator uses"
        ) from None
    return lock
