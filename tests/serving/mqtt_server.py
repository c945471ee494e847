"""An MQTT server that runs a test's script and does nothing else."""

import asyncio
import contextlib

import mqtt5


class Client:
    """What the server sees of its client."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self._buffer = b""

    async def packet(self):
        """Return the next packet of the client."""
        while True:
            with contextlib.suppress(IndexError):
                packet, size = mqtt5.read(memoryview(self._buffer))
                self._buffer = self._buffer[size:]
                return packet
            data = await self.reader.read(1 << 16)
            if not data:
                raise ConnectionError("the client has closed the connection")
            self._buffer += data

    async def accept(self, **properties):
        """Take the CONNECT packet and accept the session; return the packet."""
        connect = await self.packet()
        self.send(mqtt5.ConnAckPacket(**properties))
        return connect

    def send(self, *packets):
        """Write packets, or bytes as they are."""
        self.writer.write(b"".join(one if isinstance(one, bytes) else one.write() for one in packets))

    async def gone(self):
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass


@contextlib.asynccontextmanager
async def serving(script):
    """Run `script(client)` for each connection; yield the port. What a script asserts fails the test."""
    scripts = []

    async def serve(reader, writer):
        client = Client(reader, writer)
        try:
            await script(client)
        finally:
            writer.transport.abort()

    def accept(reader, writer):
        scripts.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        for task in scripts:
            task.cancel()
        for ended in await asyncio.gather(*scripts, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, ConnectionError):
                raise ended
