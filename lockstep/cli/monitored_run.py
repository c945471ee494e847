"""The job of a run that a coordinator monitors: its specification, with the model fitted to its own healthy steps."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lockstep.cli.profile_command import OTHER_FORM, check_url, request_json, unanswered
from lockstep.contracts.errors import ConfigError
from lockstep.html.units import format_ns

if TYPE_CHECKING:
    from lockstep.simulator.spec import JobSpec

_TIMEOUT_S = 10.0
_NS = 1e9
_KNOWN, _REFUSED = "known", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredRun:
    """A run's job, calibrated if its model is fitted, and notes on how far to trust it."""

    spec: "JobSpec"
    notes: tuple[str, ...]


def read_monitored_run(url: str, run: str, token: str = "") -> MonitoredRun:
    """Return the job of `run` as known to the coordinator at `url`.

    Raises
    ------
    LockstepError
        The coordinator cannot be reached, has no such run or no specification of it, or refused the specification.
    """
    url = url.rstrip("/")
    check_url(url)
    reply = asyncio.run(_fetch(url, f"/api/v1/runs/{quote(run, safe='')}/spec", token))
    try:
        return monitored_run(reply, run)
    except OTHER_FORM as error:
        raise unanswered(url, error) from error


def monitored_run(reply: Mapping[str, Any], run: str) -> MonitoredRun:
    """Return the job in a reply to GET /api/v1/runs/<run>/spec.

    Raises
    ------
    LockstepError
        There is no specification, the fit refused it, or it names files, which only the coordinator has.
    """
    from lockstep.simulator.spec.job import load_fitted_spec  # noqa: PLC0415  (services only)

    text, expected = reply["text"], reply["expected"]
    if text is None:
        wanted = f"one: PUT /api/v1/runs/{run}/spec, or simulation_file of the coordinator"
        raise ConfigError(f"specification of run {run}: got none, expected {wanted}")
    if expected["state"] == _REFUSED:
        raise ConfigError(f"specification of run {run}: refused by its fit: {expected['reason']}")
    is_fitted = expected["state"] == _KNOWN
    name = f"specification of run {run}"
    spec = load_fitted_spec(text, name, expected["calibration"] if is_fitted else None)
    return MonitoredRun(spec=spec, notes=tuple(_notes(run, expected, is_fitted=is_fitted)))


def read_run_document(url: str, run: str, token: str = "") -> tuple[dict[str, Any], list[str]]:
    """Return what is known of the job of `run` at the coordinator at `url` as a specification's document, and its gaps.

    That is its specification with the fitted calibration, or without one what the run itself shows.

    Raises
    ------
    LockstepError
        The coordinator cannot be reached, has no such run, or its reply has another form.
    """
    from lockstep.contracts.yaml_text import read_yaml  # noqa: PLC0415  (services only)
    from lockstep.simulator.imports.run import RunFacts, document_of_run  # noqa: PLC0415

    url = url.rstrip("/")
    check_url(url)
    path = f"/api/v1/runs/{quote(run, safe='')}"
    reply = asyncio.run(_fetch(url, f"{path}/spec", token))
    try:
        if reply["text"] is not None:
            monitored_run(reply, run)  # refuses what the fit has refused, and files, which only the coordinator has
            document: dict[str, Any] = read_yaml(reply["text"], f"specification of run {run}")[0]
            expected = reply["expected"]
            fitted = {"calibration": expected["calibration"]} if expected["state"] == _KNOWN else {}
            return document | fitted, [] if fitted else [f"calibration: {expected['reason']}"]
        detail = asyncio.run(_fetch(url, path, token))
        devices = detail["devices"]
        facts = RunFacts(
            ranks=detail["world_size"],
            groups=[(each["kind"], each["ranks"]) for each in detail["domains"]],
            hosts={each["rank"]: each["hostname"] for each in detail["ranks"]},
            device=devices[0] if len(devices) == 1 else "",
        )
        return document_of_run(facts)
    except OTHER_FORM as error:
        raise unanswered(url, error) from error


def _notes(run: str, expected: Mapping[str, Any], *, is_fitted: bool) -> list[str]:
    if not is_fitted:
        return [f"run {run} has no fitted model: {expected['reason']}; times are the specification's alone"]
    notes = [f"fitted to {expected['fitted_steps']} healthy steps of run {run}"]
    if expected["unexplained_ratio"]:
        notes.append(f"{expected['unexplained_ratio']:.0%} of a step is unexplained and assumed constant")
    measured_s = expected["measured_step_seconds"]
    if measured_s is not None:
        notes.append(f"recent steps took {format_ns(measured_s * _NS)}; gains are relative to healthy steps")
    return notes


async def _fetch(url: str, path: str, token: str) -> dict[str, Any]:
    import aiohttp  # noqa: PLC0415  (services only)

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with aiohttp.ClientSession(
            url, headers=headers, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)
        ) as client:
            return await request_json(client, "GET", path)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise unanswered(url, error) from error
