"""A receiver on loopback: real HTTP, answers that the test chooses, and everything that came."""

import contextlib

from aiohttp import web
from aiohttp.test_utils import TestServer

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""That of the reference vector of Standard Webhooks."""


class Receiver:
    """Answers with `statuses`, one after the other, then with 200; `gate`, if set, is waited for first."""

    def __init__(self, *statuses, headers=None, gate=None):
        self.statuses, self.headers, self.gate = list(statuses), headers or {}, gate
        self.requests = []

    async def handle(self, request):
        self.requests.append((request.path, dict(request.headers), await request.read()))
        if self.gate is not None:
            await self.gate.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, headers=self.headers, text="x" * 100_000)


@contextlib.asynccontextmanager
async def receiving(receiver, port=None):
    """Serve a receiver; hand out its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    server = TestServer(app, port=port)
    await server.start_server(access_log=None)  # it has the address, as a receiver's may
    try:
        yield str(server.make_url("/hook"))
    finally:
        await server.close()


def webhook_settings(tmp_path, url):
    """Return the settings of a signed webhook."""
    file = tmp_path / "webhook-secret"
    file.write_text(f"{SECRET}\n")
    return {"notify_webhook_url": url, "notify_webhook_secret_file": str(file)}
