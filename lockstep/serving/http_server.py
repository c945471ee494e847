"""Accepts HTTP connections within bounds on their number, the time for a request, and log lines, whatever clients do.

aiohttp waits an hour for an unfinished request (3.14), and asyncio logs a shortage of descriptors a hundred times in a
row, each time with a traceback. So this module accepts the sockets itself. A connection is either *waiting* for its
client to send a whole request, or *busy* with one. A connection that waits too long is closed; with `CONNECTIONS_MAX`
open, a new one replaces the one that has waited longest. A scraper gets through despite two hundred silent clients.
"""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from aiohttp import web

from lockstep.serving.log_limit import LogLimit, RepeatFilter

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256  # 64 event listeners, and some connections for each of a few dozen browsers and scrapers
_DESCRIPTORS_SHARE = 4  # HTTP may use one in this many of the process's descriptors; rings, broker, files need the rest
_REQUEST_S = 10.0  # for a handshake and a first request; headers of 8 KB at 8 kbit/s
_IDLE_S = 75.0  # between requests: longer than the most usual scrape interval, a minute
LINGERING_S = 1.0
"""For the rest of a body that is not read: aiohttp waits ten, with a task for each client that left meanwhile."""
_UNSENT_S = 30.0  # a client that accepts no byte of its response for this long is gone
_BACKLOG = 128
_ACCEPTS_MAX = 32  # in one turn of the event loop
_RETRY_S = 1.0  # after descriptors or memory ran out
_GONE = 499  # for a client that left during its request: not our error, and no one receives it
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connections:
    """The connections of one application, on one event loop; `protect` installs it, `BoundedSite` accepts into it.

    `request_s` is the longest time for a first request, `idle_s` for each further one.
    """

    def __init__(
        self, *, connections_max: int = CONNECTIONS_MAX, request_s: float = _REQUEST_S, idle_s: float = _IDLE_S
    ) -> None:
        self.limit = min(connections_max, _descriptors_for_http())
        self.request_s = request_s
        self.idle_s = idle_s
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}
        """The connections in `open` that have no whole request, longest wait first."""
        self._of_transport: dict[asyncio.BaseTransport | None, Connection] = {}
        self._limit_log = LogLimit(_log)

    def protect(self, app: web.Application) -> None:
        """Install this middleware in front of all handlers of an application."""

        @web.middleware
        async def track(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.transport is None:
                return web.Response(status=_GONE)
            connection = self._of_transport.get(request.transport)
            if connection is None:  # accepted elsewhere, as by aiohttp's own test server
                return await handler(request)
            number = connection.begin()
            if request.can_read_body:
                request.content.on_eof(lambda: connection.work(number))
            else:
                connection.work(number)
            try:
                return await handler(request)
            except ConnectionError:
                if request.transport is not None:
                    raise
                return web.Response(status=_GONE)
            finally:
                connection.wait(self.idle_s)

        app.middlewares.insert(0, track)

    def admit(self, connection: "Connection") -> bool:
        """Add a connection; at the limit it replaces the one that has waited longest. False if all are busy."""
        if len(self.open) >= self.limit:
            longest = next(iter(self.waiting), None)
            self.warn("connections", f"got more than {self.limit} at once, expected fewer; closing the longest wait")
            if longest is None:
                return False
            longest.abort()
        self.open.add(connection)
        connection.wait(self.request_s)
        return True

    def made(self, connection: "Connection", transport: asyncio.BaseTransport) -> None:
        """Register the transport that identifies the requests of a connection."""
        self._of_transport[transport] = connection

    def discard(self, connection: "Connection", transport: asyncio.BaseTransport | None) -> None:
        """Forget a connection that has ended."""
        self.open.discard(connection)
        self.waiting.pop(connection, None)
        self._of_transport.pop(transport, None)

    def warn(self, kind: str, text: str) -> None:
        """Log an event of the HTTP server, one line a minute of each kind."""
        self._limit_log.warning(kind, asyncio.get_running_loop().time(), f"HTTP {kind}: {text}")


class Connection(asyncio.Protocol):
    """One accepted connection, between its transport and aiohttp's protocol; `start` begins it."""

    def __init__(self, connections: Connections, handler: asyncio.Protocol) -> None:
        self._connections = connections
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._accepted: socket.socket | None = None  # until the transport owns it
        self._opening: asyncio.Task[None] | None = None
        self._request = 0

    def start(self, accepted: socket.socket, context: "ssl.SSLContext | None") -> None:
        """Start the connection, with a handshake if there is a context."""
        self._accepted = accepted
        self._opening = asyncio.get_running_loop().create_task(self._open(accepted, context), name="http connection")

    async def _open(self, accepted: socket.socket, context: "ssl.SSLContext | None") -> None:
        loop = asyncio.get_running_loop()
        self._accepted = None
        handshake_s = self._connections.request_s if context is not None else None
        try:
            await loop.connect_accepted_socket(lambda: self, accepted, ssl=context, ssl_handshake_timeout=handshake_s)
        except OSError:  # the client left, or does not speak our TLS
            self._end()
        except BaseException:
            self._end()
            raise

    def wait(self, longest_s: float) -> None:
        """Wait for a whole request, at most `longest_s`."""
        self._request += 1
        if self in self._connections.open:
            self._connections.waiting[self] = None
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(longest_s, self.abort)

    def begin(self) -> int:
        """Return the number of the request whose head has arrived."""
        return self._request

    def work(self, request: int) -> None:
        """Stop waiting, because the whole request has arrived. Has no effect if it was already answered."""
        if request == self._request:
            self._connections.waiting.pop(self, None)
            self._stop_timer()

    def abort(self) -> None:
        """Close at once; unsent data is lost."""
        if self._transport is not None:
            self._transport.abort()
        elif self._opening is not None:
            self._opening.cancel()
        if self._accepted is not None:
            self._accepted.close()
        self._end()

    def _end(self) -> None:
        self._stop_timer()
        self._connections.discard(self, self._transport)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the transport on, unless the connection was replaced meanwhile."""
        assert isinstance(transport, asyncio.Transport)
        if self not in self._connections.open:
            transport.abort()  # before aiohttp's protocol sees it, which asserts that it is alive when its task begins
            return
        self._transport = transport
        self._connections.made(self, transport)
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._end()
        if self._transport is not None:
            self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hand on."""
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Hand on."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """Hand on."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        self._handler.resume_writing()


class Acceptor:
    """Accepts from listening sockets, which it owns, until closed; the part of `asyncio.Server` that aiohttp needs."""

    def __init__(
        self,
        sockets: list[socket.socket],
        connections: Connections,
        make_handler: Callable[[], asyncio.Protocol],
        context: "ssl.SSLContext | None",
    ) -> None:
        self.sockets = sockets
        self._connections = connections
        self._make_handler = make_handler
        self._context = context
        self._loop = asyncio.get_running_loop()
        for listening in sockets:
            self._listen(listening)

    def close(self) -> None:
        """Stop accepting; connections stay."""
        sockets, self.sockets = self.sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening)
            listening.close()

    def _listen(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._connections.warn("accept", f"got {error.strerror}, expected a connection")
                if error.errno in _EXHAUSTED:
                    self._loop.remove_reader(listening)
                    self._loop.call_later(_RETRY_S, self._listen, listening)
                return
            connection = Connection(self._connections, self._make_handler())
            if self._connections.admit(connection):
                accepted.setblocking(False)
                with contextlib.suppress(OSError):  # not every kind of socket has it
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(_UNSENT_S * 1000))
                connection.start(accepted, self._context)
            else:
                accepted.close()


class BoundedSite(web.BaseSite):
    """The address where an application is served, a host and a port; replaces aiohttp's `TCPSite`."""

    def __init__(
        self,
        runner: web.BaseRunner,
        host: str,
        port: int,
        connections: Connections,
        *,
        ssl_context: "ssl.SSLContext | None" = None,
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context, backlog=_BACKLOG)
        self._host = host
        self._port = port
        self._connections = connections

    @property
    def name(self) -> str:
        """Return the address, for logs."""
        return f"{'http' if self._ssl_context is None else 'https'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Bind, and accept from now on.

        Raises
        ------
        OSError
            The host has no address, or the port is in use.
        """
        await super().start()
        server = self._runner.server
        assert server is not None
        RepeatFilter.install(logging.getLogger("aiohttp.server"))
        sockets = await _bind(self._host, self._port)
        acceptor = Acceptor(sockets, self._connections, server, self._ssl_context)
        self._server = cast("asyncio.AbstractServer", acceptor)


def _descriptors_for_http() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if descriptors == resource.RLIM_INFINITY else max(1, descriptors // _DESCRIPTORS_SHARE)


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets on all addresses of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sockets.append(socket.create_server(address, family=family, backlog=_BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets
