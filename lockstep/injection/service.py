"""`lockstep injector`: the admission webhook's HTTP server.

It keeps no state and depends on no other service, so its replicas are interchangeable. A failure only costs a pod its
agent: the chart configures the API server to ignore failures, and to wait for at most three seconds.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lockstep.contracts.yaml_text import read_yaml_file
from lockstep.injection.addition import PodAddition, read_addition
from lockstep.injection.review import OUTCOMES, ReviewError, answer_review
from lockstep.serving.exposition import CONTENT_TYPES, choose_form, render
from lockstep.serving.fault_isolation import FAILED, REFUSED, outcomes_of
from lockstep.serving.web import Web, naming_port

_log = logging.getLogger(__name__)

REVIEW_MAX_BYTES = 8 << 20
"""etcd accepts objects of 1.5 MiB, and a review of an update holds two of them."""
_CLOSE_S = 3.0


class InjectorCollector:
    """Reviewed pods by outcome, and the state of the web configuration, as a prometheus_client collector."""

    def __init__(self, guard: Web) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._guard = guard

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        pods = CounterMetricFamily("lockstep_injector_pods", "Pods that were reviewed, by outcome.", labels=["outcome"])
        for outcome, count in self.counts.items():
            pods.add_metric([outcome.replace(" ", "_")], count)
        yield pods
        yield GaugeMetricFamily(
            "lockstep_injector_web_config_last_reload_successful",
            "Whether the web configuration and its certificate, as their files are now, are in force.",
            value=float(self._guard.is_current),
        )
        reloads = CounterMetricFamily(
            "lockstep_injector_web_config_reloads_failed",
            "Changes of the web configuration or its certificate that were not put in force: refused, or failed by a "
            "bug.",
            labels=["outcome"],
        )
        for outcome, count in outcomes_of(self._guard.isolation).items():
            if outcome in (REFUSED, FAILED):
                reloads.add_metric([outcome], count)
        yield reloads


def make_app(addition: PodAddition, guard: Web) -> web.Application:
    """Return the application: `/inject` for the API server, metrics and health for the cluster, behind `guard`."""
    collector = InjectorCollector(guard)

    async def inject(request: web.Request) -> web.Response:
        try:
            review = json.loads(await request.read())
            return web.json_response(answer_review(review, addition, collector.counts))
        except (ValueError, RecursionError) as error:
            reason = error if isinstance(error, ReviewError) else "body: expected an AdmissionReview in JSON"
            return web.Response(status=web.HTTPBadRequest.status_code, text=f"{reason}\n")

    async def metrics(request: web.Request) -> web.Response:
        form = choose_form(",".join(request.headers.getall("Accept", [])))
        return web.Response(body=render(collector, form), headers={"Content-Type": CONTENT_TYPES[form]})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    app = web.Application(client_max_size=REVIEW_MAX_BYTES)
    app.add_routes([web.post("/inject", inject), web.get("/metrics", metrics), web.get("/-/healthy", healthy)])
    guard.protect(app)
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
    if guard.context is None:
        _log.warning(
            "--web.config.file %s: got no tls_server_config, expected a certificate: the API server asks over HTTPS "
            "only, so no pod gets the agent unless a proxy in front of this port has one",
            web_config_file or "(not set)",
        )
    app = make_app(addition, guard)
    runner = guard.runner(app, shutdown_s=_CLOSE_S)
    await runner.setup()
    try:
        with naming_port(host, port, "--port"):
            await guard.site(runner, host, port).start()
        await stop.wait()
    finally:
        await runner.cleanup()
