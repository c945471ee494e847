"""What a metrics page costs without any work behind it: aiohttp and prometheus_client, as many series, nothing read.

benchmarks/exporter_cost.py runs and scrapes it next to the real exporter: machines differ by a factor of two from day
to day, the ratio of the two processes does not.

    python -m benchmarks.plain_exporter PORT SERIES
"""

import asyncio
import random
import sys

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

TICK_S = 0.2
"""Time between two wake-ups, that of the real exporter."""
RANKS = 8


def make_registry(series: int) -> CollectorRegistry:
    """Return gauges with so many series, of eight ranks each; fewer than eight are left over."""
    registry = CollectorRegistry()
    source = random.Random(1)  # noqa: S311  (values for a page)
    for number in range(series // RANKS):
        gauge = Gauge(f"plain_quantity_{number}_seconds", "A quantity of a rank.", ("run", "rank"), registry=registry)
        for rank in range(RANKS):
            gauge.labels("run", str(rank)).set(source.random() * 1e6)
    return registry


async def serve(port: int, series: int) -> None:
    """Serve /metrics until the process is ended."""
    registry = make_registry(series)

    async def metrics(_: web.Request) -> web.Response:
        response = web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
        response.enable_compression()
        return response

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    while True:  # noqa: ASYNC110  (waking up is what is measured)
        await asyncio.sleep(TICK_S)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
