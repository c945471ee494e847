"""Requests captures and shows their state."""

from typing import TYPE_CHECKING

from aiohttp import web

from coordinator.api.services import BAD, SERVICES, ApiError, authorise, json_object, known_run
from coordinator.decide import events as ev
from lockstep.contracts.limits import PROFILE_RANKS_MAX, PROFILE_STEPS_MAX

if TYPE_CHECKING:
    from coordinator.runs import Run

_CONFLICT = web.HTTPConflict.status_code


async def show_captures(request: web.Request) -> web.Response:
    """Show the capture of a run that is under way, by rank, and the most recent past ones."""
    captures = known_run(request).machine.captures
    current = None if captures.current is None else captures.current.progress()
    return web.json_response({"running": current, "past": [capture.progress() for capture in reversed(captures.past)]})


async def request_capture(request: web.Request) -> web.Response:
    """Request a capture of ranks of a run."""
    services = request.app[SERVICES]
    authorise(request)
    run = known_run(request)
    ranks, steps, shapes = await _body(request, run)
    event = ev.CaptureRequestedEvent(
        unix_s=services.now_s(), cause_id="api:profile", ranks=ranks, steps=steps, shapes=shapes
    )
    orders = services.runs.feed(run.name, event)
    services.perform(orders)
    for _, instructions in orders:
        for instruction in instructions:
            if isinstance(instruction, ev.RequestCapture):
                requested = instruction.request
                answer = {
                    "request_id": requested.request_id,
                    "first_step": requested.first_step,
                    "steps": requested.steps,
                }
                return web.json_response(answer, status=web.HTTPAccepted.status_code)
            if isinstance(instruction, ev.RefuseCapture):
                raise ApiError(_CONFLICT, f"run {run.name}: {instruction.reason}")
    raise ApiError(_CONFLICT, f"run {run.name}: the request had no effect")


async def _body(request: web.Request, run: "Run") -> tuple[tuple[int, ...], int, bool]:
    body = await json_object(request, '"ranks", "steps" and "shapes"')
    if not body.keys() <= {"ranks", "steps", "shapes"}:
        raise ApiError(BAD, 'body: expected an object with "ranks", "steps" and "shapes"')
    shapes = body.get("shapes", False)
    if type(shapes) is not bool:
        raise ApiError(BAD, f"shapes: got {shapes!r:.50}, expected true or false")
    ranks, steps = body.get("ranks"), body.get("steps", run.policy.profile.steps)
    if not isinstance(ranks, list) or not 0 < len(ranks) <= PROFILE_RANKS_MAX or len({*map(str, ranks)}) < len(ranks):
        raise ApiError(BAD, f"ranks: expected 1 to {PROFILE_RANKS_MAX} different ranks")
    for rank in ranks:
        if type(rank) is not int or rank not in run.membership.infos:
            raise ApiError(BAD, f"rank: got {rank!r:.50}, expected a rank of run {run.name}")
    if type(steps) is not int or not 1 <= steps <= PROFILE_STEPS_MAX:
        raise ApiError(BAD, f"steps: got {steps!r:.50}, expected 1 to {PROFILE_STEPS_MAX}")
    return tuple(ranks), steps, shapes
