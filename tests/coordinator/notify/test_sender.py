"""How notifications are sent: once, again after failures, within bounds; the clock and the waits are the test's."""

import asyncio
import base64
import contextlib
import hmac
import json
import logging

import pytest

from coordinator.notify import sender as sender_module
from coordinator.notify.notification import OPENED, Notification
from coordinator.notify.sender import DROPPED, FAILED, GIVE_UP_S, LONGEST_WAIT_S, QUEUE_MAX, SENT, NotificationSender
from coordinator.notify.targets import SlackTarget, WebhookTarget
from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts.errors import ConfigError
from tests.coordinator.conftest import until
from tests.coordinator.notify.receiver import SECRET, Receiver, receiving, webhook_settings
from tests.coordinator.test_store import incident
from tests.support.servers import WAIT_S, free_port

NOW_S = 1_000_000.0


class Watch:
    """A sender with a clock of its own, whose waits end at once and move it."""

    def __init__(self, target, on_wait=None):
        self.now_s, self.waits, self.settled, self.on_wait = NOW_S, [], [], on_wait
        self.sender = NotificationSender(
            target, settle=self._settle, now_s=lambda: self.now_s, wait=self._wait, jitter=lambda: 1.0
        )

    async def _settle(self, notification):
        self.settled.append(notification.id)

    async def _wait(self, seconds):
        self.waits.append(seconds)
        self.now_s += seconds
        if self.on_wait is not None:
            await self.on_wait()
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def sending(self):
        task = asyncio.create_task(self.sender.run())
        try:
            yield self.sender
        finally:
            self.sender.stop()
            await asyncio.wait_for(task, WAIT_S)


def notification(number=1, **more):
    return Notification(incident=incident(number, **more), stage=OPENED, unix_s=NOW_S)


def webhook(tmp_path, url):
    config = CoordinatorConfig(**webhook_settings(tmp_path, url))
    return WebhookTarget(lambda: config)


async def test_it_is_delivered_once_and_its_signature_verifies(tmp_path):
    """The receiver computes the signature of what it got."""
    receiver = Receiver()
    async with receiving(receiver) as url:
        watch = Watch(webhook(tmp_path, url))
        async with watch.sending() as sender:
            sender.offer(notification())
            await until(lambda: sender.counts[SENT] == 1)
    ((path, headers, body),) = receiver.requests
    assert path == "/hook"
    assert headers["Content-Type"].startswith("application/cloudevents+json")
    assert headers["webhook-timestamp"] == str(int(NOW_S))
    assert headers["webhook-id"] == json.loads(body)["id"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.digest(base64.b64decode(SECRET.removeprefix("whsec_")), signed, "sha256")
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert watch.settled == [headers["webhook-id"]]
    assert watch.waits == []


async def test_errors_are_tried_again_with_growing_waits_and_the_same_id(tmp_path):
    """A 500, a 429 that asks for ten seconds, then success."""
    receiver = Receiver(500, 500, 429, headers={"Retry-After": "10"})
    async with receiving(receiver) as url:
        watch = Watch(webhook(tmp_path, url))
        async with watch.sending() as sender:
            sender.offer(notification())
            await until(lambda: sender.counts[SENT] == 1)
    assert watch.waits == [10.0, 10.0, 10.0]
    assert len({headers["webhook-id"] for _, headers, _ in receiver.requests}) == 1
    assert len({headers["webhook-timestamp"] for _, headers, _ in receiver.requests}) == 4
    assert len(watch.settled) == 1


async def test_a_refused_connection_is_tried_again(tmp_path):
    """The receiver starts after two tries."""
    port, receiver = free_port(), Receiver()
    async with contextlib.AsyncExitStack() as stack:

        async def start():
            if len(watch.waits) == 2:
                await stack.enter_async_context(receiving(receiver, port))

        watch = Watch(webhook(tmp_path, f"http://127.0.0.1:{port}/hook"), start)
        async with watch.sending() as sender:
            sender.offer(notification())
            await until(lambda: sender.counts[SENT] == 1)
    assert watch.waits == [1.0, 2.0]
    assert len(receiver.requests) == 1


async def test_it_is_given_up_after_an_hour(tmp_path):
    """Waits grow to a minute; then the next one has its turn."""
    watch = Watch(webhook(tmp_path, f"http://127.0.0.1:{free_port()}/hook"))
    async with watch.sending() as sender:
        sender.offer(notification())
        await until(lambda: sender.counts[FAILED] == 1)
    assert max(watch.waits) == LONGEST_WAIT_S
    assert GIVE_UP_S - 2 * LONGEST_WAIT_S < sum(watch.waits) <= GIVE_UP_S
    assert len(watch.settled) == 1


@pytest.mark.parametrize("status", [302, 307, 400, 401, 404, 410])
async def test_redirects_and_refusals_are_not_tried_again(tmp_path, status):
    """A redirect would carry the incident to another address."""
    receiver = Receiver(status, headers={"Location": "/elsewhere"})
    async with receiving(receiver) as url:
        watch = Watch(webhook(tmp_path, url))
        async with watch.sending() as sender:
            sender.offer(notification())
            await until(lambda: sender.counts[FAILED] == 1)
    assert [path for path, _, _ in receiver.requests] == ["/hook"]
    assert watch.waits == []


async def test_silence_ends_at_the_deadline(tmp_path, monkeypatch):
    """A receiver that takes the request and never answers costs one try."""
    monkeypatch.setattr(sender_module, "TRY_S", 0.2)
    gate = asyncio.Event()
    receiver = Receiver(gate=gate)

    async def release():
        monkeypatch.setattr(sender_module, "TRY_S", 20.0)
        gate.set()

    async with receiving(receiver) as url:
        watch = Watch(webhook(tmp_path, url), release)
        async with watch.sending() as sender:
            sender.offer(notification())
            await until(lambda: sender.counts[SENT] == 1)
    assert watch.waits == [1.0]


async def test_a_full_queue_drops_the_oldest_and_counts_it(tmp_path):
    """Memory has a bound, however long the receiver is away."""
    sender = Watch(webhook(tmp_path, "http://127.0.0.1:9/")).sender
    dropped = [sender.offer(notification(number)) for number in range(QUEUE_MAX + 2)]
    assert [each.id for each in dropped if each] == [notification(0).id, notification(1).id]
    assert sender.counts[DROPPED] == 2
    assert len(sender._queue) == QUEUE_MAX


async def test_slack_gets_a_message_and_no_log_has_its_address(tmp_path, caplog):
    """The address is a secret: it is in no log, whatever goes wrong, and read again for each try."""
    caplog.set_level(logging.DEBUG)
    file, receiver = tmp_path / "slack", Receiver(500, 404)
    config = CoordinatorConfig(notify_slack_url_file=str(file))
    async with receiving(receiver) as url:
        secret = f"{url}/T0/B0/geheim"

        async def write():
            texts = {1: "no address geheim", 2: f"http://127.0.0.1:{free_port()}/geheim"}
            file.write_text(texts.get(len(watch.waits), secret))

        watch = Watch(SlackTarget(lambda: config), write)
        async with watch.sending() as sender:
            sender.offer(notification())
            await until(lambda: sender.counts[FAILED] == 1)
            sender.offer(notification(2))
            await until(lambda: sender.counts[SENT] == 1)
    assert [path for path, _, _ in receiver.requests] == ["/hook/T0/B0/geheim"] * 3
    assert json.loads(receiver.requests[-1][2])["text"].startswith("Slow rank")
    assert watch.waits == [1.0, 2.0, 4.0, 8.0]
    assert "ClientConnectorError" in caplog.text
    assert "status 404, not sent" in caplog.text
    assert "geheim" not in caplog.text


async def test_the_signing_secret_is_in_no_log(tmp_path, caplog):
    """Nor in the message about a file that has another form."""
    caplog.set_level(logging.DEBUG)
    receiver = Receiver(500, 400)
    async with receiving(receiver) as url:
        target = webhook(tmp_path, url)
        watch = Watch(target)
        async with watch.sending() as sender:
            sender.offer(notification())
            await until(lambda: sender.counts[FAILED] == 1)
    (tmp_path / "webhook-secret").write_text("geheim")
    with pytest.raises(ConfigError, match="notify_webhook_secret_file"):
        target.key()
    assert SECRET.removeprefix("whsec_") not in caplog.text


async def test_a_bug_of_ours_costs_one_notification(tmp_path):
    """It counts as failed and as a fault; the next one is sent."""
    receiver = Receiver()
    async with receiving(receiver) as url:
        watch = Watch(webhook(tmp_path, url))
        async with watch.sending() as sender:
            sender.offer(notification(advice=(None,)))
            sender.offer(notification(2))
            await until(lambda: sender.counts[SENT] == 1)
    assert sender.counts[FAILED] == 1
    assert sender.isolation.dropped["notify", "failed"] == 1
    assert len(receiver.requests) == 1
