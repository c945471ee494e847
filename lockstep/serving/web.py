"""A service's HTTP server behind its web configuration: TLS, authentication, and rotation of both at run time.

There is one `Web` per service. No file is read while a request is answered: a task of the application checks for
changed files once a second, on a thread.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.metric import HTTP_REFUSALS
from lockstep.serving.fault_isolation import REFUSED, FaultIsolation
from lockstep.serving.http_server import LINGERING_S, BoundedSite, Connections
from lockstep.serving.web_config import WebConfig, read_web_config

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_RELOAD = "web configuration"
_REMEMBERED = 64  # passwords known to be right; a bcrypt check takes 50 ms or more
_NO_USER_HASH = b"$2b$10$" + b"." * 53  # checked for unknown users, so that timing does not reveal which users exist
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="lockstep"'}

HTTP_PORT = "http_port"
"""The setting of a service's port."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.contextmanager
def naming_port(host: str, port: int, name: str = HTTP_PORT) -> Iterator[None]:
    """Raise errors that name the setting or option of a port which cannot be bound.

    Raises
    ------
    ConfigError
        The port is in use, or the host has no such address.
    """
    try:
        yield
    except OSError as error:
        code = error.errno or 0  # negative for an unknown host
        reason = os.strerror(code) if code > 0 else error.strerror or error
        raise ConfigError(f"{name}: got {port}, expected a free port on {host}: {reason}") from error


class Web:
    """The web configuration in force; without a file, the server is open and unencrypted.

    `is_token` returns whether a bearer token is valid. Its holder needs no password as well, because HTTP has one
    header for both. `refusals` counts, over all handlers, responses that deny access, by status (`HTTP_REFUSALS`).
    `isolation` counts changed files that were refused, or failed because of a bug of ours. `is_current` is whether the
    current content of the files is in force.
    """

    def __init__(self, file: str = "", is_token: Callable[[str], bool] = lambda _: False) -> None:
        self._file = Path(file) if file else None
        self._is_token = is_token
        self._config = read_web_config(self._file) if self._file is not None else WebConfig()
        self.context: ssl.SSLContext | None = None if self._config.tls is None else self._config.tls.context()
        self.connections = Connections()
        self.refusals: Counter[str] = Counter(dict.fromkeys(HTTP_REFUSALS, 0))
        self.isolation = FaultIsolation((_RELOAD,), failures_max=sys.maxsize)
        self.is_current = True
        self._times = self._read_times()
        self._secret = os.urandom(16)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._checks = asyncio.Semaphore(1)  # guesses wait for each other, and leave the other core to the service
        if self._config.hash_of:
            _import_bcrypt()

    @property
    def scheme(self) -> str:
        """Return `http` or `https`."""
        return "http" if self.context is None else "https"

    def protect(self, app: web.Application) -> None:
        """Install this configuration in front of all handlers of an application, with the limits on connections."""
        if self._file is not None:
            self._protect(app)
        app.on_response_prepare.append(self._count_refusal)
        self.connections.protect(app)

    def runner(self, app: web.Application, *, shutdown_s: float) -> web.AppRunner:
        """Return a runner for an application; its cleanup waits `shutdown_s` for requests in progress."""
        return web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_s, lingering_time=LINGERING_S)

    def site(self, runner: web.BaseRunner, host: str, port: int) -> BoundedSite:
        """Return the site of a protected application; its `start` binds."""
        return BoundedSite(runner, host, port, self.connections, ssl_context=self.context)

    def _protect(self, app: web.Application) -> None:

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app.middlewares.insert(0, guard)
        app.on_response_prepare.append(self._add_headers)
        app.cleanup_ctx.append(self._keep_fresh)

    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        names = self._config.tls.allowed_names if self._config.tls is not None else ()
        if names and not set(names) & _names_of(request):
            return web.Response(status=403, text="the client certificate has none of the allowed names\n")
        if self._config.hash_of and not await self._is_authorised(request.headers.get("Authorization", "")):
            return web.Response(status=401, text="user and password needed\n", headers=_CHALLENGE)
        return await handler(request)

    async def _is_authorised(self, header: str) -> bool:
        kind, _, value = header.partition(" ")
        if kind.lower() == "bearer":
            return self._is_token(value)
        if kind.lower() != "basic":
            return False
        try:
            user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
        return bool(colon) and await self._is_right(user, password.encode())

    async def _is_right(self, user: str, password: bytes) -> bool:
        hashed = self._config.hash_of.get(user, _NO_USER_HASH)
        proof = hmac.digest(self._secret, hashlib.sha256(password).digest() + hashed + user.encode(), "sha256")
        if proof in self._known:
            self._known.move_to_end(proof)
            return True
        async with self._checks:
            bcrypt = _import_bcrypt()
            # bcrypt reads 72 bytes; every implementation cuts a longer password there.
            is_right = await asyncio.to_thread(_is_equal, bcrypt.checkpw, password[:72], hashed)
        if is_right and hashed is not _NO_USER_HASH:
            self._known[proof] = None
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return True
        return False

    async def _count_refusal(self, _: web.Request, response: web.StreamResponse) -> None:
        status = str(response.status)
        if status in self.refusals:
            self.refusals[status] += 1

    async def _add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(self._config.headers)

    async def _keep_fresh(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._poll_files(), name="web configuration")
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _poll_files(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with self.isolation.guard(_RELOAD, str(self._file), asyncio.get_running_loop().time()):
                await self._reload_if_changed()

    async def _reload_if_changed(self) -> None:
        times = await asyncio.to_thread(self._read_times)
        if times != self._times:
            self._times = times
            self.is_current = False
            try:
                await asyncio.to_thread(self.reload)
                self.is_current = True
            except ConfigError as error:
                self.isolation.dropped[_RELOAD, REFUSED] += 1
                _log.warning("%s; the previous one stays in force", error)

    def reload(self) -> None:
        """Reload the file and the certificate.

        Raises
        ------
        ConfigError
            They are invalid, or TLS would be switched on or off; nothing has changed then.
        """
        assert self._file is not None
        fresh = read_web_config(self._file)
        if (fresh.tls is None) != (self.context is None):
            raise ConfigError(f"web configuration {self._file}: TLS is switched on or off by a restart only")
        if fresh.tls is not None and self.context is not None:
            fresh.tls.context()  # check that the pair fits before changing the one in use
            fresh.tls.load(self.context)
        self._config = fresh
        self._known.clear()
        _log.info("web configuration %s is loaded and in force", self._file)

    def _read_times(self) -> tuple[int, ...]:
        """Return when each file was last changed; 0 if it is missing, as during a rotation."""
        if self._file is None:
            return ()
        files = [self._file]
        if self._config.tls is not None:
            files += [self._config.tls.certificate, self._config.tls.key]
        times = []
        for file in files:
            try:
                times.append(file.stat().st_mtime_ns)
            except OSError:
                times.append(0)
        return tuple(times)


def _names_of(request: web.Request) -> set[str]:
    """Return the names in the client's certificate: hosts, addresses, mail addresses and URIs."""
    certificate = request.get_extra_info("peercert") or {}
    return {str(value) for _, value in certificate.get("subjectAltName", ())}


def _is_equal(check: Callable[[bytes, bytes], bool], password: bytes, hashed: bytes) -> bool:
    try:
        return check(password, hashed)
    except ValueError:  # a salt that bcrypt rejects, a NUL in the password
        return False


def _import_bcrypt() -> Any:
    try:
        import bcrypt  # noqa: PLC0415  (needed for passwords only)
    except ModuleNotFoundError:
        raise ConfigError("basic_auth_users needs the package bcrypt: pip install bcrypt") from None
    return bcrypt
