"""The state of a run that outlives a restart of the coordinator, as values and in their stored forms.

Pure. There are two parts: the state of the run's machine (`SavedRun`, JSON, without incidents) and what its detectors
have learnt (`DetectorState`, arrays). Without the second part, a restarted coordinator would learn the current
behaviour, faults included, as normal. Arrays are restored only by a detector of exactly the same ranks, groups, nodes
and attempts.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.decide.incidents import Incident
from lockstep.contracts.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lockstep.contracts.domains import Topology

LEARNT_VERSION = 1
"""Version of the format and of the meaning of the arrays: raise it when a detector changes the meaning of a name."""
LEARNT_MAX_BYTES = 256 << 20  # of all arrays; a million ranks at 64 bytes take a quarter of it
_MAGIC = b"lockstep-learnt\n"
_HEADER_MAX_BYTES = 1 << 20
_DTYPE_KINDS = "biuf"  # numbers only: loading objects would execute code


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorState:
    """What the detectors of one run have learnt after a step; `fingerprint` identifies the run (`fingerprint_of`)."""

    fingerprint: str
    step: int
    end_unix_s: float
    arrays: "Mapping[str, NDArray[np.generic]]"

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        arrays = {name: np.asarray(array) for name, array in self.arrays.items()}
        header = {
            "version": LEARNT_VERSION,
            "fingerprint": self.fingerprint,
            "step": self.step,
            "end_unix_s": self.end_unix_s,
            "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()],
        }
        body = zlib.compress(b"".join(array.tobytes() for array in arrays.values()), 1)
        return _MAGIC + json.dumps(header).encode() + b"\n" + body


def learnt_from_bytes(data: bytes, *, where: str) -> DetectorState:
    """Return the value of a stored form (`DetectorState.to_bytes`).

    Raises
    ------
    MalformedError
        It is of another version, larger than `LEARNT_MAX_BYTES`, or damaged.
    """
    line, _, body = data[:_HEADER_MAX_BYTES].removeprefix(_MAGIC).partition(b"\n")
    body = data[len(_MAGIC) + len(line) + 1 :]
    try:
        header = json.loads(line) if data.startswith(_MAGIC) else {}
        if header.get("version") != LEARNT_VERSION:
            raise MalformedError("learnt state", where=where, got=header.get("version"), expected=f"{LEARNT_VERSION}")
        forms = [(str(name), np.dtype(kind), tuple(map(int, shape))) for name, kind, shape in header["arrays"]]
        sizes = [dtype.itemsize * prod(shape) for _, dtype, shape in forms]
        if any(dtype.kind not in _DTYPE_KINDS or min(shape, default=0) < 0 for _, dtype, shape in forms):
            raise MalformedError("learnt state", where=where, got="other arrays", expected="arrays of numbers")
        if sum(sizes) > LEARNT_MAX_BYTES:
            raise MalformedError(
                "learnt state", where=where, got=sum(sizes), expected=f"up to {LEARNT_MAX_BYTES} bytes"
            )
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(body, sum(sizes) + 1)
        if len(plain) != sum(sizes) or not unpacker.eof:
            raise MalformedError("learnt state", where=where, got=f"{len(plain)} bytes", expected=f"{sum(sizes)}")
        begins = np.cumsum([0, *sizes]).tolist()
        arrays = {
            name: np.frombuffer(plain, dtype=dtype, count=prod(shape), offset=begin).reshape(shape).copy()
            for (name, dtype, shape), begin in zip(forms, begins[:-1], strict=True)
        }
        return DetectorState(
            fingerprint=str(header["fingerprint"]),
            step=int(header["step"]),
            end_unix_s=float(header["end_unix_s"]),
            arrays=arrays,
        )
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise MalformedError("learnt state", where=where, got=repr(error), expected="the stored format") from None


def fingerprint_of(
    topology: "Topology", ranks: "Sequence[int]", hosts: "Sequence[str]", attempts: "Sequence[int]"
) -> str:
    """Return a digest of the run that learnt arrays belong to: ranks, groups, nodes and attempts."""
    digest = hashlib.sha256()
    for part in (LEARNT_VERSION, topology, tuple(ranks), tuple(hosts), tuple(attempts)):
        digest.update(repr(part).encode(errors="replace"))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionProgress:
    """How far a run has been evaluated: its last step, latest end of a record (unix seconds) and count of records.

    After a restart, nodes deliver uncommitted records again. Records up to here were evaluated before. Those of another
    attempt of the run, whose steps have lower numbers, end later. `until_unix_s` is -1e18 before the first step.
    """

    step: int = -1
    until_unix_s: float = -1e18
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """The state of a run's machine, and what its detectors have learnt.

    `incident_tracker` is the state of the incident tracker (`IncidentTracker.state_dict`), `capture` the capture under
    way, both as JSON; empty if there is none. `capture_excess_seconds` is what the incident of the last capture cost
    per step. `evaluated` describes the same moment as all other fields. `last_sign_s` is when the run last made a step,
    or began, by the coordinator's clock (unix seconds). `series` is its step time over time (`record/step_series.py`),
    `attempts` what outlives the series (`record/attempt_history.py`, JSON), `attempt_counts` those of `AttemptLength`.
    """

    incidents: tuple[Incident, ...] = ()
    incidents_total: int = 0
    lost_device_seconds: float = 0.0
    capture_times_s: tuple[float, ...] = ()
    capture_excess_seconds: float = 0.0
    capture_counts: Mapping[str, int] = field(default_factory=dict)
    incident_tracker: Mapping[str, Any] = field(default_factory=dict)
    capture: Mapping[str, Any] = field(default_factory=dict)
    learnt: DetectorState | None = None
    evaluated: DetectionProgress = field(default_factory=DetectionProgress)
    last_sign_s: float = 0.0
    attempt_counts: tuple[int, int, int] = (0, 0, 0)
    series: bytes | None = None
    attempts: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_blank(self) -> bool:
        """Whether it equals the state of a new run: no step, no incident, no capture."""
        return not (
            self.evaluated.records or self.incidents_total or self.incidents or self.capture_times_s or self.learnt
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form without incidents, series and learnt arrays, which are stored separately."""
        return {
            "incidents_total": self.incidents_total,
            "lost_device_seconds": self.lost_device_seconds,
            "capture_times_s": list(self.capture_times_s),
            "capture_excess_seconds": self.capture_excess_seconds,
            "capture_counts": dict(self.capture_counts),
            "incident_tracker": dict(self.incident_tracker),
            "capture": dict(self.capture),
            "evaluated": asdict(self.evaluated),
            "last_sign_s": self.last_sign_s,
            "attempt_counts": list(self.attempt_counts),
            "attempts": list(self.attempts),
        }


def saved_run_from_json(
    value: Mapping[str, Any],
    incidents: tuple[Incident, ...],
    learnt: DetectorState | None = None,
    series: bytes | None = None,
) -> SavedRun:
    """Return the saved run of a JSON form (`SavedRun.to_json`) and its separately stored parts."""
    ended, ended_steps, steps = value.get("attempt_counts", (0, 0, 0))
    return SavedRun(
        incidents=incidents,
        incidents_total=int(value["incidents_total"]),
        lost_device_seconds=float(value["lost_device_seconds"]),
        capture_times_s=tuple(float(time) for time in value["capture_times_s"]),
        capture_excess_seconds=float(value.get("capture_excess_seconds", 0.0)),
        capture_counts={str(state): int(count) for state, count in value["capture_counts"].items()},
        incident_tracker=dict(value.get("incident_tracker", {})),
        capture=dict(value.get("capture", {})),
        learnt=learnt,
        evaluated=DetectionProgress(
            step=int(value["evaluated"]["step"]),
            until_unix_s=float(value["evaluated"]["until_unix_s"]),
            records=int(value["evaluated"]["records"]),
        ),
        last_sign_s=float(value.get("last_sign_s", value["evaluated"]["until_unix_s"])),
        attempt_counts=(int(ended), int(ended_steps), int(steps)),
        series=series,
        attempts=tuple(value.get("attempts", ())),
    )
