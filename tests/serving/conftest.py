"""Both brokers behind one face, a clock that can be moved, and a check that nothing is left behind."""

import asyncio
import contextlib
import gc
import os
import signal
from pathlib import Path

import pytest

from lockstep.serving.broker import BrokerConfig
from lockstep.serving.local_broker import LocalBroker
from lockstep.serving.mqtt import MqttBroker
from tests.serving.sessions import open_files
from tests.support.servers import Mosquitto

CERTIFICATES = Path(__file__).parent / "certificates"


class Local:
    """The broker of this process."""

    def __init__(self, _directory):
        self.broker = LocalBroker()

    @contextlib.contextmanager
    def stalled(self):
        """Let nothing be taken: it takes nothing until the event loop runs."""
        yield

    def stop(self):
        """Nothing to do."""


class Mqtt:
    """A real mosquitto."""

    def __init__(self, directory, lines="", **settings):
        self._server = Mosquitto(directory, lines)
        self._server.start()
        self.broker = MqttBroker(BrokerConfig(broker_port=self._server.port, **settings))

    @contextlib.contextmanager
    def stalled(self):
        """Let the server read and write nothing."""
        os.kill(self._server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._server.pid, signal.SIGCONT)

    def stop(self):
        """End the server."""
        self._server.stop()


class Tls(Mqtt):
    """The same behind TLS, whose transport is another one."""

    def __init__(self, directory):
        files = {"cafile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        lines = "".join(f"{key} {CERTIFICATES / name}\n" for key, name in files.items())
        super().__init__(directory, lines, broker_ca_file=str(CERTIFICATES / "ca.crt"))


SERVERS = [pytest.param(one, marks=pytest.mark.servers) for one in (Mqtt, Tls)]


@pytest.fixture(params=[Local, *SERVERS], ids=["local", "mqtt", "tls"])
def served(request, tmp_path):
    """One implementation after the other; the server of a real one ends after the test."""
    one = request.param(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def broker(served):
    """Only the broker of it."""
    return served.broker


@pytest.fixture(scope="module", autouse=True)
def _only_this_module_is_collected():
    """Leave what earlier modules have made out of the garbage collections of each test, which would take 0.1 s each."""
    gc.collect()
    gc.freeze()


@pytest.fixture
async def nothing_left():
    """Afterwards there are no more tasks and files than before, and the event loop had nothing to complain of."""
    loop = asyncio.get_running_loop()
    complaints = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    gc.collect()  # what an earlier test dropped closes its files now, not within this one
    tasks, files = asyncio.all_tasks(), open_files()
    yield
    for _ in range(5):  # an aborted transport closes its socket in the loop's next turn, one of TLS in a later one
        await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
    assert {task for task in asyncio.all_tasks() - tasks if not task.done()} <= {asyncio.current_task()}
    assert open_files() <= files


@pytest.fixture
async def pass_time(monkeypatch):
    """Return a function that moves the clock of the event loop ahead, in seconds."""
    loop = asyncio.get_running_loop()
    real_time = loop.time
    passed_s = 0.0
    monkeypatch.setattr(loop, "time", lambda: real_time() + passed_s)

    async def move(seconds):
        nonlocal passed_s
        passed_s += seconds
        for _ in range(3):
            await asyncio.sleep(0)

    return move
