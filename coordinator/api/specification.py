"""Shows, sets and removes the specification of a run's job, from which its model is built.

A specification is checked completely before it is stored, and stored before it takes effect. It comes from the network,
so it must not name files.
"""

import asyncio
import sqlite3

from aiohttp import web

from coordinator.api.services import BAD, SERVICES, ApiError, authorise, known_run
from coordinator.expected.model_fit import read_setup
from coordinator.settings.specs import API, SpecText
from lockstep.contracts.errors import ConfigError, LockstepError


async def show(request: web.Request) -> web.Response:
    """Show the specification of a run, and the step time that its model expects."""
    run = known_run(request)
    step_result, spec = run.machine.step_result, run.expectation.spec
    measured = step_result.recent_step_seconds if step_result else None
    return web.json_response(
        {
            "run": run.name,
            "source": spec.source if spec else None,
            "name": spec.name if spec else None,
            "text": spec.text if spec else None,
            "expected": run.expectation.to_json(measured),
        }
    )


async def put(request: web.Request) -> web.Response:
    """Set the specification of a run's job; the body is YAML."""
    authorise(request)
    run = known_run(request).name
    try:
        text = await request.text()
    except (UnicodeDecodeError, LookupError) as error:  # not UTF-8, or an unknown charset
        raise ApiError(BAD, f"body: expected a specification in UTF-8: {error}") from None
    await _check(run, text)
    return await _keep(request, run, text)


async def reset(request: web.Request) -> web.Response:
    """Remove the specification set over HTTP; one from a file takes effect again."""
    authorise(request)
    return await _keep(request, known_run(request).name, None)


async def _check(run: str, text: str) -> None:
    try:
        await asyncio.to_thread(read_setup, SpecText(text=text, name=f"specification of run {run}", source=API))
    except LockstepError as error:
        raise ApiError(BAD, str(error)) from None


async def _keep(request: web.Request, run: str, text: str | None) -> web.Response:
    services = request.app[SERVICES]
    async with services.changing:
        try:
            if text is not None:
                services.specs.check_capacity(run)
            await asyncio.to_thread(services.store.keep_specification, run, text)
        except ConfigError as error:
            raise ApiError(BAD, str(error)) from None
        except sqlite3.Error as error:
            raise ApiError(
                web.HTTPServiceUnavailable.status_code,
                f"specification: could not be stored, nothing was changed: {error}",
            ) from None
        services.specs.put(run, text)
        services.runs.expect(services.specs.of)
    now = services.specs.of(run)
    return web.json_response({"run": run, "source": now.source if now else None})
