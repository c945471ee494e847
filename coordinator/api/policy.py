"""Changes thresholds, scope and detectors of running jobs, and reloads the configuration.

A change is checked completely, stored, and applied, in this order: a change answered with 200 survives a restart, and
one that could not be stored has no effect.
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
    """Show all thresholds, and the thresholds that are set for single runs."""
    control = request.app[SERVICES].control
    own = {run: control.overrides(run) for run in control.runs_changed}
    return web.json_response({"thresholds": control.describe(), "runs": own})


async def show_run_policy(request: web.Request) -> web.Response:
    """Show all thresholds of one run."""
    run = known_run(request).name
    return web.json_response({"run": run, "thresholds": request.app[SERVICES].control.describe(run)})


async def change_policy(request: web.Request) -> web.Response:
    """Set thresholds by name, for all runs or for the run in the path; null reverts a change."""
    authorise(request)
    run = _run_of(request)
    values = await json_object(request, 'thresholds by name, as {"excess.floor_ratio": 0.03}')
    return await _put(request, run, values)


async def reset_policy(request: web.Request) -> web.Response:
    """Revert all changes made over HTTP, for all runs or for the run in the path."""
    authorise(request)
    run = _run_of(request)
    return await _put(request, run, dict.fromkeys(request.app[SERVICES].control.overrides(run)))


async def reload(request: web.Request) -> web.Response:
    """Reload the configuration and apply the settings that do not need a restart."""
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
                web.HTTPServiceUnavailable.status_code, f"policy: could not be stored, nothing was changed: {error}"
            ) from None
        changes = control.commit(plan, who=asker(request))
        services.perform(services.runs.set_policies(control.policy, services.now_s()))
    return web.json_response({"changed": _listed(changes)})


def _run_of(request: web.Request) -> str:
    return known_run(request).name if "run" in request.match_info else ALL_RUNS


def _listed(changes: "Sequence[PolicyChange]") -> list[dict[str, Any]]:
    return [asdict(change) for change in changes]
