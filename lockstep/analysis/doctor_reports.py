"""Reads what `lockstep doctor` wrote next to the traces: a node's facts (`--facts`), or its verdicts (`--json`)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.contracts.errors import ContractVersionError, MalformedError

FACTS_VERSION = 1
REPORT_MAX_BYTES = 1 << 20
"""A node's facts are 5 KB; larger files, e.g. verdicts of very many nodes, are refused."""
_TEXT_CHARS = 512
_VARIABLES_MAX = 1024
_HEAD_BYTES = 64
_HEAD = re.compile(rb'\s*\{\s*"(?:facts_version|nodes)"\s*:')
_PROBLEMS = ("warn", "fail")
_NETWORK = re.compile(r"collective library|variable (?:(?:TORCH_)?NCCL|RCCL|HCCL|UCX|GLOO)_|version of .*(?:nccl|hccl)")
_LIBRARIES = re.compile(r"nvidia-nccl-cu\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCheck:
    """A verdict of the doctor on the network; `host` is empty for a difference between nodes."""

    host: str
    name: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """One file. `environment` is None for verdicts, which do not contain it; `host` is that of the facts."""

    path: Path
    host: str = ""
    environment: Mapping[str, str] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    checks: Sequence[NetworkCheck] = ()


def is_doctor_report(path: Path) -> bool:
    """Whether a file begins like one of the doctor's; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _HEAD.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def read_report(path: Path) -> DoctorReport:
    """Return the content of a file of the doctor.

    Raises
    ------
    MalformedError
        It cannot be read, is larger than REPORT_MAX_BYTES, or holds neither facts nor verdicts.
    """
    report = _object(path)
    if "facts_version" not in report:
        return DoctorReport(path=path, checks=_checks(report))
    if report["facts_version"] != FACTS_VERSION:
        got = repr(report["facts_version"])[:_TEXT_CHARS]
        raise ContractVersionError("facts_version", where=str(path), got=got, expected=FACTS_VERSION)
    host, environment = report.get("host"), report.get("environment")
    if not isinstance(host, str) or not isinstance(environment, dict):
        got = f"{type(host).__name__}, {type(environment).__name__}"
        raise MalformedError("host, environment", where=str(path), got=got, expected="a text, an object")
    versions = {name: each for name, each in _texts(report.get("versions")).items() if _LIBRARIES.fullmatch(name)}
    return DoctorReport(
        path=path,
        host=host[:_TEXT_CHARS],
        environment=_texts(environment),
        versions=versions,
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(REPORT_MAX_BYTES + 1)
    except OSError as error:
        got = error.strerror or error
        raise MalformedError("doctor's report", where=str(path), got=got, expected="a readable file") from error
    if len(text) > REPORT_MAX_BYTES:
        expected = f"at most {REPORT_MAX_BYTES} bytes"
        raise MalformedError("doctor's report", where=str(path), got="a larger file", expected=expected)
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError("doctor's report", where=str(path), got=error, expected="JSON") from error
    if not isinstance(report, dict):
        raise MalformedError("doctor's report", where=str(path), got=type(report).__name__, expected="an object")
    return report


def _texts(report: object) -> dict[str, str]:
    pairs = report.items() if isinstance(report, dict) else ()
    found = {name: value[:_TEXT_CHARS] for name, value in pairs if isinstance(value, str)}
    return dict(list(found.items())[:_VARIABLES_MAX])


def _checks(report: dict[str, Any]) -> tuple[NetworkCheck, ...]:
    """Return the negative verdicts on the network; none if the report has another form."""
    nodes = report.get("nodes")
    listed = [("", report.get("between_nodes")), *(nodes.items() if isinstance(nodes, dict) else ())]
    return tuple(
        NetworkCheck(host=host, name=check["name"][:_TEXT_CHARS], found=str(check.get("found", ""))[:_TEXT_CHARS])
        for host, checks in listed
        for check in (checks if isinstance(checks, list) else ())
        if isinstance(check, dict)
        and check.get("verdict") in _PROBLEMS
        and isinstance(check.get("name"), str)
        and _NETWORK.match(check["name"])
    )
