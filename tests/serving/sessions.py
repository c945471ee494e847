"""What tests of brokers share."""

import asyncio
from pathlib import Path

LARGE = 1 << 20


class Inbox:
    """A handler that keeps what comes."""

    def __init__(self):
        self.messages = []
        self._arrived = asyncio.Event()

    def __call__(self, topic, payload):
        self.messages.append((topic, payload))
        self._arrived.set()

    async def wait_for(self, count, topic=None):
        """Wait until so many messages are there, of one topic or all."""
        async with asyncio.timeout(120):
            while len([one for one, _ in self.messages if topic in (None, one)]) < count:
                self._arrived.clear()
                await self._arrived.wait()


def connected(broker, client_id, on_message=lambda *_: None, **options):
    return broker.connect(client_id=client_id, on_message=on_message, **{"packet_max_bytes": LARGE} | options)


async def fence(session, inbox):
    """Wait until all that `session` published before is in an inbox that gets this topic."""
    await session.publish("fence", b"")
    await inbox.wait_for(1, "fence")


def open_files():
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition):
    """Let the event loop run until `condition` holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (what it looks at is another program's, or has no event)
            await asyncio.sleep(0)
