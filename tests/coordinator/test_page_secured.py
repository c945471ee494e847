"""The page in Chromium behind `--web.config.file`: TLS by a private authority, a password, and a real coordinator."""

import asyncio
import base64
import http
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

import pytest
import yaml

from lockstep.contracts import topics
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.mqtt import MqttBroker
from tests.coordinator.conftest import announce
from tests.coordinator.conftest import until as until_async
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_page_browser import show, until
from tests.serving.test_web import PASSWORD, TLS, hashed
from tests.support.browser import chromium
from tests.support.servers import WAIT_S, free_port, mosquitto, running, wait_until
from tests.support.wire import wired

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]
USER = "operator"
COORDINATOR = [sys.executable, "-m", "lockstep.cli.main", "coordinator"]
HEALTHY = generate(Scenario(degrees="dp=4", steps=40))


class Person:
    """Who sits before the browser and is asked for a password; `asked` counts how often."""

    def __init__(self, tab):
        self.asked = 0
        self.password = PASSWORD
        self._tab = tab
        self._note, tab._note = tab._note, self._receive
        tab.call("Security.setIgnoreCertificateErrors", ignore=True)  # the authority is none of this machine's
        tab.call("Fetch.enable", handleAuthRequests=True, patterns=[{"urlPattern": "*"}])

    def _receive(self, message):
        what, request = message.get("method", ""), message.get("params", {})
        if what == "Fetch.requestPaused":
            self._send("Fetch.continueRequest", requestId=request["requestId"])
        elif what == "Fetch.authRequired":
            assert (request["authChallenge"]["scheme"], request["authChallenge"]["realm"]) == ("basic", "lockstep")
            self.asked += 1
            given = {"response": "ProvideCredentials", "username": USER, "password": self.password}
            if not self.password:
                given = {"response": "CancelAuth"}
            self._send("Fetch.continueWithAuth", requestId=request["requestId"], authChallengeResponse=given)
        self._note(message)

    def _send(self, method, **parameters):
        """Send a command whose answer no one waits for: one that is waited for may be under way."""
        message = {"id": -1, "method": method, "params": parameters, "sessionId": self._tab._session}
        os.write(self._tab._write, json.dumps(message).encode() + b"\0")


@pytest.fixture
def broker(tmp_path):
    with mosquitto(tmp_path) as made:
        yield made


@pytest.fixture
def url(tmp_path, broker):
    """Give the address of a coordinator with a certificate and a password."""
    web, port = tmp_path / "web.yml", free_port()
    web.write_text(yaml.safe_dump({"tls_server_config": TLS, "basic_auth_users": {USER: hashed(PASSWORD)}}))
    own = [f"--set=broker_port={broker.port}", "--set=http_host=127.0.0.1", f"--set=http_port={port}"]
    log = tmp_path / "coordinator.log"
    with running([*COORDINATOR, *own, f"--web.config.file={web}"], log) as process:
        wait_until(
            lambda: process.poll() is not None or "connected" in log.read_text(), WAIT_S, "connection to the broker"
        )
        assert process.poll() is None, log.read_text()
        yield f"https://127.0.0.1:{port}"


def send(broker, begin_s, first, last):
    """Publish the announcement of four ranks, and their steps from `first` to before `last`, as a new stream."""

    async def publish():
        async with wired(MqttBroker(BrokerConfig(broker_port=broker.port)), stream_id=first + 1) as wire:
            await wire.announce(announce(0, 1, 2, 3, heartbeat_s=time.time()))
            for step in range(first, last):
                await wire.send(topics.STEPS, HEALTHY.batch(step, step + 1, start_s=begin_s))
            await until_async(lambda: any(each.received == last - first for each in wire.acknowledged.values()))

    asyncio.run(asyncio.wait_for(publish(), 30))


def knows(url, run):
    """Whether the coordinator knows of a run: a page that is asked for earlier is another one."""
    credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(f"{url}/api/v1/runs/{run}", headers={"Authorization": f"Basic {credentials}"})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S, context=ssl._create_unverified_context()) as answer:
            return answer.status == http.HTTPStatus.OK
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.NOT_FOUND:
            raise
        return False


def test_the_page_lives_behind_tls_and_a_password(broker, url):
    """Nothing is shown without the password; with it, given once, page, map and live events come over TLS."""
    begin_s = time.time()
    send(broker, begin_s, 0, 20)
    wait_until(lambda: knows(url, "job"), WAIT_S, "announcement")
    with chromium() as tab:
        person = Person(tab)
        person.password = ""
        show(tab, f"{url}/runs/job")
        assert tab.ask("document.body.innerText").strip() == "user and password needed"
        person.password, person.asked = PASSWORD, 0
        show(tab, f"{url}/runs/job")
        until(tab, "document.getElementById('heat').dataset.last === '19'")
        until(tab, "document.getElementById('live').textContent === 'live'")
        assert tab.ask("isSecureContext")
        tab.ask("window.mark = 1")
        send(broker, begin_s, 20, 25)
        until(tab, "document.getElementById('heat').dataset.last === '24'")
        until(tab, "document.querySelector('.tiles').innerText.includes('24')")
        assert (tab.ask("window.mark"), person.asked) == (1, 1)
        # The page that was refused asked for an icon of its own, maybe only when the password was known.
        failed = "Failed to load resource: the server responded with a status of"
        expected = (f"fetched {url}/", f"{failed} 401", f"{failed} 404 (Not Found) {url}/favicon.ico")
        assert [each for each in tab.complaints if not each.startswith(expected)] == []
