"""The coordinator's application over real runs, asked by a client."""

import asyncio
import threading

from aiohttp.test_utils import TestClient, TestServer

from coordinator.api.services import Services
from coordinator.app import make_app
from coordinator.intake.streams import Streams
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.control import Control
from coordinator.settings.reload import Reloader, read_settings
from coordinator.store import Store
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_collector import snapshot
from tests.coordinator.test_runs import NOW, play, two_nodes

FAULTY = generate(Scenario(degrees="dp=4", steps=80).with_fault("data", 2, seconds=0.2, begin=40))
TOKEN = "secret"


class Site:
    """An application over real runs; `performed` is what handlers asked for, `reread` what a reload reads."""

    def __init__(self, *, token_file="", store=None, **values):
        config = CoordinatorConfig(api_token_file=token_file, **values)
        self.store = store or Store("")
        self.control = Control(read_settings(config), self.store.load_policy(), NOW)
        self.runs = Runs(config, self.control.policy(), {}, lambda: 0.0)
        self.runs.set_policies(self.control.policy, NOW)
        self.performed = []
        self.reread = lambda: config
        changing = asyncio.Lock()
        self.reloader = Reloader(
            lambda: self.reread(),  # noqa: PLW0108  (tests replace it)
            self.control,
            apply=self._apply,
            now_s=lambda: NOW + 2000,
            changing=changing,
        )
        self.app = make_app(
            Services(
                control=self.control,
                runs=self.runs,
                store=self.store,
                streams=Streams("site", 1),
                snapshot=lambda: snapshot(*(self.runs.snapshot_of(run) for run in self.runs.by_name.values())),
                perform=self.performed.extend,
                now_s=lambda: NOW + 1000,
                is_ready=lambda: True,
                reload=self.reloader.reload,
                changing=changing,
            )
        )
        two_nodes(self.runs)

    def _apply(self):
        self.runs.configure(self.control.config)
        self.performed += self.runs.set_policies(self.control.policy, NOW)

    async def __aenter__(self):
        self.client = await TestClient(TestServer(self.app)).__aenter__()
        return self

    async def __aexit__(self, *what):
        await self.client.__aexit__(*what)
        self.store.close()


class Server:
    """A site in a thread of its own; `do` runs a function there, where its runs live."""

    def __init__(self, token_file):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.site = self._wait(self._start(token_file))
        self.url = str(self.site.client.make_url("/")).rstrip("/")

    async def _start(self, token_file):
        site = await Site(token_file=token_file).__aenter__()
        play(site.runs, FAULTY, 0, 50)
        site.runs.by_name["job"].machine.captures.current = None
        return site

    def _wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def do(self, function, *given):
        async def call():
            return function(*given)

        return self._wait(call())

    def close(self):
        self._wait(self.site.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def get(site, path, status=200):
    """Return what is there."""
    async with site.client.get(path) as response:
        assert response.status == status, await response.text()
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return await (response.json() if "json" in response.content_type else response.text())


async def ask(site, method, path, body=None, *, token=TOKEN, raw=None):
    """Return status and answer of a request that changes something."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    values = {"data": raw} if raw is not None else {"json": body}
    async with site.client.request(method, path, headers=headers, **values) as response:
        return response.status, await response.json()
