"""A real server behind a web configuration: handshakes, passwords, tokens, rotation."""

import asyncio
import base64
import contextlib
import os
import ssl
from pathlib import Path

import aiohttp
import bcrypt
import pytest
import yaml
from aiohttp import web

from lockstep.contracts.errors import ConfigError
from lockstep.serving import web as web_module
from lockstep.serving.web import Web
from tests.serving.sessions import until
from tests.support.servers import WAIT_S

CERTIFICATES = Path(__file__).parent / "certificates"
TLS = {"cert_file": str(CERTIFICATES / "server.crt"), "key_file": str(CERTIFICATES / "server.key")}
CLIENTS = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": str(CERTIFICATES / "ca.crt")}
PASSWORD = "correct horse"


def hashed(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def client_context(name=None):
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.crt"))
    if name is not None:
        context.load_cert_chain(CERTIFICATES / f"{name}.crt", CERTIFICATES / f"{name}.key")
    return context


def write(path, value):
    """Write a configuration with a time of its own: file times may be coarse."""
    path.write_text(yaml.safe_dump(value))
    write.clock = getattr(write, "clock", 1_700_000_000) + 1
    os.utime(path, (write.clock, write.clock))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "web.yml"


@contextlib.asynccontextmanager
async def serving(file, *, handler=None, **options):
    """Run an application behind the file; yield the guard, and a function that asks it."""
    guard = Web(str(file), **options)

    async def answer(_):
        return web.Response(text="metrics\n")

    app = web.Application()
    app.router.add_get("/metrics", handler or answer)
    guard.protect(app)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=guard.context).start()
    guard.port = port = runner.addresses[0][1]

    async def ask(*, context=None, authorization=None):
        headers = {} if authorization is None else {"Authorization": authorization}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{guard.scheme}://127.0.0.1:{port}/metrics", ssl=context or True, headers=headers) as answer,
        ):
            return answer.status, answer.headers

    try:
        yield guard, ask
    finally:
        await runner.cleanup()


async def names_served(port):
    """Return the names in the certificate that a server shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
    names = {name for _, name in writer.get_extra_info("peercert")["subjectAltName"]}
    writer.close()
    await writer.wait_closed()
    return names


def basic(user, password):
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


async def test_answers_that_refuse_who_asks_are_counted(file):
    """By status, whatever answered: this configuration, or a handler that needs a token."""

    async def forbid(_):
        raise web.HTTPForbidden

    write(file, {"basic_auth_users": {"prometheus": hashed(PASSWORD)}})
    async with serving(file) as (guard, ask):
        for authorization in (None, basic("prometheus", "wrong"), basic("prometheus", PASSWORD)):
            await ask(authorization=authorization)
        assert guard.refusals == {"401": 2, "403": 0}
    async with serving("", handler=forbid) as (guard, ask):
        assert (await ask())[0] == 403
        assert guard.refusals == {"401": 0, "403": 1}


async def test_without_a_file_all_is_open():
    """The default of a fresh installation."""
    async with serving("") as (guard, ask):
        assert guard.scheme == "http"
        assert (await ask())[0] == 200


async def test_tls_serves_and_speaks_nothing_old(file):
    """A client that trusts the authority is served; one that offers TLS 1.1 only, or plain HTTP, is not."""
    write(file, {"tls_server_config": TLS, "http_server_config": {"headers": {"X-Frame-Options": "deny"}}})
    async with serving(file) as (guard, ask):
        status, headers = await ask(context=client_context())
        assert (guard.scheme, status, headers["X-Frame-Options"]) == ("https", 200, "deny")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask()
        newest = client_context()
        newest.maximum_version = newest.minimum_version = ssl.TLSVersion.TLSv1_3
        assert (await ask(context=newest))[0] == 200


async def test_clients_need_a_certificate_with_a_known_name(file):
    """mTLS: none is refused in the handshake, one of the authority without the name gets 403."""
    write(file, {"tls_server_config": {**TLS, **CLIENTS, "client_allowed_sans": ["prometheus.example"]}})
    async with serving(file) as (_, ask):
        assert (await ask(context=client_context("prometheus")))[0] == 200
        assert (await ask(context=client_context("stranger")))[0] == 403
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask(context=client_context())


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"prometheus").decode(),
        basic("prometheus", "wrong"),
        basic("nobody", PASSWORD),
        basic("prometheus", PASSWORD + "\0"),
        "Bearer wrong",
        "Digest x",
    ],
)
async def test_who_gives_no_password_is_refused(file, authorization):
    """With a challenge, whatever the header holds."""
    write(file, {"basic_auth_users": {"prometheus": hashed(PASSWORD)}})
    async with serving(file, is_token=lambda token: token == "right") as (_, ask):
        status, headers = await ask(authorization=authorization)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="lockstep"')


async def test_password_or_token_is_let_in(file, monkeypatch):
    """The right password, checked once and remembered; and the bearer token of the API, which shares its header."""
    write(file, {"basic_auth_users": {"prometheus": hashed(PASSWORD)}})
    checks = []
    check = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda *pair: checks.append(pair) or check(*pair))
    async with serving(file, is_token=lambda token: token == "right") as (_, ask):
        for _ in range(3):
            assert (await ask(authorization=basic("prometheus", PASSWORD)))[0] == 200
        assert len(checks) == 1
        assert (await ask(authorization="Bearer right"))[0] == 200
        assert (await ask(authorization=basic("prometheus", "wrong")))[0] == 401


async def test_passwords_and_certificates_are_rotated(file, tmp_path):
    """What is changed is in force for the next connection, without a restart; the old password is no longer."""
    for kind in ("crt", "key"):
        (tmp_path / f"own.{kind}").write_bytes((CERTIFICATES / f"server.{kind}").read_bytes())
    tls = {"cert_file": "own.crt", "key_file": "own.key"}
    write(file, {"tls_server_config": tls, "basic_auth_users": {"a": hashed("old")}})
    async with serving(file) as (guard, ask):
        assert (await ask(context=client_context(), authorization=basic("a", "old")))[0] == 200
        for kind in ("crt", "key"):
            (tmp_path / f"own.{kind}").write_bytes((CERTIFICATES / f"rotated.{kind}").read_bytes())
        write(file, {"tls_server_config": tls, "basic_auth_users": {"a": hashed("new")}})
        await asyncio.to_thread(guard.reload)
        assert (await ask(context=client_context(), authorization=basic("a", "old")))[0] == 401
        assert (await ask(context=client_context(), authorization=basic("a", "new")))[0] == 200
        assert "rotated.example" in await names_served(guard.port)


async def test_a_rotation_that_fails_by_a_bug_is_counted_and_the_next_one_counts(file, monkeypatch):
    """The task that looks for changed files goes on: certificates expire."""
    monkeypatch.setattr(web_module, "_LOOK_SECONDS", 0.01)
    write(file, {})
    async with serving(file) as (guard, _):
        with monkeypatch.context() as patch:
            patch.setattr(Web, "reload", lambda _: {}["a bug"])
            write(file, {"http_server_config": {}})
            await until(lambda: guard.isolation.dropped["web configuration", "failed"] == 1)
        write(file, {"http_server_config": {"headers": {"X-Frame-Options": "deny"}}})
        await until(lambda: guard._config.headers == {"X-Frame-Options": "deny"})


async def test_a_broken_rotation_changes_nothing(file):
    """A file that is wrong, a pair that does not fit, TLS taken away: refused by name, the old state stays."""
    write(file, {"tls_server_config": TLS})
    async with serving(file) as (guard, ask):
        for broken in (
            {"tls_server_config": {**TLS, "key_file": str(CERTIFICATES / "rotated.key")}},
            {"tls": {}},
            {},
        ):
            write(file, broken)
            with pytest.raises(ConfigError, match=r"web\.yml|cert_file"):
                guard.reload()
            assert (await ask(context=client_context()))[0] == 200


async def test_a_changed_file_is_seen_by_itself(file, monkeypatch, caplog):
    """The application's own task looks, takes what is right, and warns of what is not."""
    monkeypatch.setattr("lockstep.serving.web._LOOK_SECONDS", 0.01)
    write(file, {"basic_auth_users": {"a": hashed("old")}})
    async with serving(file) as (_, ask):
        write(file, {"basic_auth_users": {"a": hashed("new")}})
        async with asyncio.timeout(WAIT_S):
            while (await ask(authorization=basic("a", "new")))[0] != 200:  # noqa: ASYNC110  (another task's doing)
                await asyncio.sleep(0.01)
            file.write_text("{")
            while "stays" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await ask(authorization=basic("a", "new")))[0] == 200
