"""The webhook's server: a certificate or configuration that cannot be used is named, in the log and in a metric."""

import asyncio
import contextlib
import os
import ssl

import pytest
import yaml
from aiohttp import ClientSession, TCPConnector

from lockstep.contracts.errors import ConfigError
from lockstep.injection.service import run_injector
from tests.helm.charts import join_pod, render
from tests.serving.test_web import CERTIFICATES, TLS
from tests.support.servers import free_port

GAUGE = "lockstep_injector_web_config_last_reload_successful"
FAILED = "lockstep_injector_web_config_reloads_failed_total"


@pytest.fixture(scope="module")
def addition_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("addition") / "pod.yaml"
    path.write_text(yaml.safe_dump(join_pod(render({"injection": {"enabled": True}}))))
    return path


class Writer:
    """Writes a web configuration, each time with another time of the file."""

    def __init__(self, path):
        self.path, self._clock = path, 1_700_000_000

    def write(self, text):
        self.path.write_text(text)
        self._clock += 1
        os.utime(self.path, (self._clock, self._clock))


@contextlib.asynccontextmanager
async def injector(addition_file, web_config_file):
    """Run the injector; yield a function that returns its metrics by name and labels."""
    port, stop = free_port(), asyncio.Event()
    files = {"addition_file": addition_file, "web_config_file": web_config_file}
    task = asyncio.create_task(run_injector(stop, **files, host="127.0.0.1", port=port))
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.crt")) if web_config_file else None
    address = f"{'https' if web_config_file else 'http'}://localhost:{port}/metrics"
    async with ClientSession(connector=TCPConnector(ssl=context or True)) as session:

        async def metrics():
            async with session.get(address) as answer:
                lines = (await answer.text()).splitlines()
            return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

        try:
            async with asyncio.timeout(120):
                while True:
                    with contextlib.suppress(OSError):
                        await metrics()
                        break
                    await asyncio.sleep(0.01)  # the server's task
            yield metrics
        finally:
            stop.set()
            await task


async def until(metrics, name, value):
    async with asyncio.timeout(120):
        while (await metrics())[name] != value:  # noqa: ASYNC110  (another task's doing)
            await asyncio.sleep(0.01)


async def test_a_renewed_certificate_that_cannot_be_used_shows_until_it_can(
    addition_file, tmp_path, monkeypatch, caplog
):
    """The old one stays in force; the log has what, where, got and expected."""
    monkeypatch.setattr("lockstep.serving.web._LOOK_SECONDS", 0.01)
    file = Writer(tmp_path / "web.yml")
    file.write(yaml.safe_dump({"tls_server_config": TLS}))
    async with injector(addition_file, str(file.path)) as metrics:
        assert (await metrics())[GAUGE] == 1
        other = {**TLS, "key_file": str(CERTIFICATES / "rotated.key")}
        for number, text in enumerate((yaml.safe_dump({"tls_server_config": other}), "{", "{}"), 1):
            file.write(text)
            await until(metrics, f'{FAILED}{{outcome="refused"}}', number)
            assert (await metrics())[GAUGE] == 0
        assert f"cert_file {TLS['cert_file']}, key_file {other['key_file']}: got [" in caplog.text
        assert "expected a certificate and its private key" in caplog.text
        assert f"web configuration {file.path}: TLS is switched on or off by a restart only" in caplog.text
        file.write(yaml.safe_dump({"tls_server_config": TLS}))
        await until(metrics, GAUGE, 1)
        assert (await metrics())[f'{FAILED}{{outcome="failed"}}'] == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tls_server_config": {**TLS, "cert_file": "gone.crt"}}, r"cert_file .*gone\.crt, key_file .*: got .*, exp"),
        ({"tls_server_config": {"cert_file": "a.crt"}}, r"web\.yml: tls_server_config: expected key_file"),
        ({"tls": {}}, r"web\.yml: got unknown key 'tls', the nearest known one is 'tls_server_config'"),
    ],
    ids=["no certificate", "no key", "unknown key"],
)
async def test_it_does_not_start_without_the_certificate_that_it_was_given(addition_file, tmp_path, config, message):
    """Kubernetes shows the message as the reason why the pod restarts."""
    path = tmp_path / "web.yml"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=message):
        await run_injector(
            asyncio.Event(), addition_file=addition_file, web_config_file=str(path), host="127.0.0.1", port=free_port()
        )


async def test_a_server_without_tls_warns_that_no_pod_will_get_the_agent(addition_file, caplog):
    """The API server asks over HTTPS only, so no request would arrive."""
    async with injector(addition_file, "") as metrics:
        assert (await metrics())[GAUGE] == 1
    assert "--web.config.file (not set): got no tls_server_config, expected a certificate" in caplog.text
