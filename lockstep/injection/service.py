"""`lockstep injector`: the admission webhook's HTTP server.

It keeps no state and asks no one, so its replicas are alike. A failure costs a pod its agent and nothing else: the
chart has the API server ignore failures, and wait for three seconds at most.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web
from prometheus_client.core import CounterMetricFamily

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.yaml_text import read_yaml_file
from lockstep.injection.addition import Addition, read_addition
from lockstep.injection.review import OUTCOMES, ReviewError, answer_review
from lockstep.serving.exposition import CONTENT_TYPES, choose_form, render
from lockstep.serving.web import Web

REVIEW_MAX_BYTES = 8 << 20
"""etcd takes objects of 1.5 MiB, and a review of an update holds two of them."""
_CLOSE_S = 3.0


class ReviewOutcomes:
    """Reviewed pods by outcome, as a collector of Prometheus."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the one family."""
        family = CounterMetricFamily(
            "lockstep_injector_pods", "Pods that were reviewed, by outcome.", labels=["outcome"]
        )
        for outcome, count in self.counts.items():
            family.add_metric([outcome.replace(" ", "_")], count)
        yield family


def make_app(addition: Addition) -> web.Application:
    """Return the application: `/inject` for the API server, metrics and health for the cluster."""
    outcomes = ReviewOutcomes()

    async def inject(request: web.Request) -> web.Response:
        try:
            review = json.loads(await request.read())
            return web.json_response(answer_review(review, addition, outcomes.counts))
        except (ValueError, RecursionError) as error:
            reason = error if isinstance(error, ReviewError) else "body: expected an AdmissionReview in JSON"
            return web.Response(status=web.HTTPBadRequest.status_code, text=f"{reason}\n")

    async def metrics(request: web.Request) -> web.Response:
        form = choose_form(",".join(request.headers.getall("Accept", [])))
        return web.Response(body=render(outcomes, form), headers={"Content-Type": CONTENT_TYPES[form]})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    app = web.Application(client_max_size=REVIEW_MAX_BYTES)
    app.add_routes([web.post("/inject", inject), web.get("/metrics", metrics), web.get("/-/healthy", healthy)])
    return app


async def run_injector(stop: asyncio.Event, *, addition_file: Path, web_config_file: str, host: str, port: int) -> None:
    """Serve until `stop` is set.

    Raises
    ------
    ConfigError
        A file cannot be used, or the address cannot be bound.
    """
    addition = read_addition(read_yaml_file(addition_file, "addition"), f"addition {addition_file}")
    guard = Web(web_config_file)
    app = make_app(addition)
    guard.protect(app)
    runner = guard.runner(app, shutdown_s=_CLOSE_S)
    await runner.setup()
    try:
        try:
            await guard.site(runner, host, port).start()
        except OSError as error:
            raise ConfigError(f"--host {host} --port {port}: {error}") from error
        await stop.wait()
    finally:
        await runner.cleanup()
