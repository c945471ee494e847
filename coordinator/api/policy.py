"""Thresholds, scope and detectors while runs go on, and reading the configuration again.

A change is planned (all of it is checked), kept on disk, and put into force, in this order: what was answered with 200
is there after a restart, and what could not be kept changes nothing.
"""

import asyncio
import sqlite3
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.api.services import BAD, SERVICES, ApiError, asker, authorise, json_object, known_run
from coordinator.settings.control import ALL_RUNS
from lockstep.contracts.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.settings.control import PolicyChange


async def show_policy(request: web.Request) -> web.Response:
    """Show every threshold of all runs, and which runs have some of their own."""
    control = request.app[SERVICES].control
    own = {run: control.overrides(run) for run in control.runs_changed}
    return web.json_response({"thresholds": control.describe(), "runs": own})


async def show_run_policy(request: web.Request) -> web.Response:
    """Show every threshold of one run."""
    run = known_run(request).name
    return web.json_response({"run": run, "thresholds": request.app[SERVICES].control.describe(run)})


async def change_policy(request: web.Request) -> web.Response:
    """Set thresholds by name, for all runs or for the one that the path names; null takes a change back."""
    authorise(request)
    run = _run_of(request)
    values = await json_object(request, 'thresholds by name, as {"excess.floor_ratio": 0.03}')
    return await _put(request, run, values)


async def reset_policy(request: web.Request) -> web.Response:
    """Take back every change over HTTP, for all runs or for the one that the path names."""
    authorise(request)
    run = _run_of(request)
    return await _put(request, run, dict.fromkeys(request.app[SERVICES].control.overrides(run)))


async def reload(request: web.Request) -> web.Response:
    """Read the configuration again and apply what can be applied while runs go on."""
    authorise(request)
    try:
        done = await request.app[SERVICES].reload(asker(request))
    except ConfigError as error:
        raise ApiError(web.HTTPInternalServerError.status_code, f"nothing was changed: {error}") from None
    answer = {"applied": done.applied, "needs_restart": done.needs_restart, "changed": _listed(done.changes)}
    return web.json_response(answer)


async def _put(request: web.Request, run: str, values: dict[str, Any]) -> web.Response:
    services = request.app[SERVICES]
    control = services.control
    async with services.changing:
        try:
            plan = control.plan(values, run=run, where="policy")
        except ConfigError as error:
            raise ApiError(BAD, str(error)) from None
        try:
            await asyncio.to_thread(services.store.keep_policy, plan.run, plan.overrides)
        except sqlite3.Error as error:
            raise ApiError(
                web.HTTPServiceUnavailable.status_code, f"policy: could not be kept, nothing was changed: {error}"
            ) from None
        changes = control.commit(plan, who=asker(request))
        services.perform(services.runs.adopt(control.policy, services.now_s()))
    return web.json_response({"changed": _listed(changes)})


def _run_of(request: web.Request) -> str:
    return known_run(request).name if "run" in request.match_info else ALL_RUNS


def _listed(changes: "Sequence[PolicyChange]") -> list[dict[str, Any]]:
    return [asdict(change) for change in changes]
