"""How a broker is reached."""

import asyncio

import pytest

from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.contracts.errors import ConfigError
from lockstep.serving.broker import backoff_seconds, check_protocol, client_options, heed_cancellation


def wait(failures, jitter):
    return backoff_seconds(failures, jitter, first_seconds=0.2, longest_seconds=15.0)


def test_backoff_doubles_is_capped_and_jittered():
    """Half of each wait is chance; none is longer than the cap."""
    assert wait(1, 0.0) == pytest.approx(0.1)
    assert wait(1, 1.0) == pytest.approx(0.2)
    assert wait(4, 1.0) == pytest.approx(1.6)
    assert wait(10_000, 1.0) == 15.0


@pytest.mark.parametrize("form", [ExporterConfig, CoordinatorConfig])
def test_both_services_describe_a_broker(form, tmp_path):
    """Host, port, user and rotated password of either configuration become the client's arguments."""
    password = tmp_path / "password"
    config = form(broker_host="b", broker_port=8883, broker_username="u", broker_password_file=str(password))
    for secret in ("one\n", "two"):
        password.write_text(secret)
        options = client_options(config, packet_max_bytes=1000)
        assert (options["hostname"], options["port"], options["username"]) == ("b", 8883, "u")
        assert options["password"] == secret.strip()
    assert options["properties"].MaximumPacketSize == 1000
    assert client_options(form(broker_protocol="3.1.1"), packet_max_bytes=1000)["properties"] is None


def test_an_unknown_protocol_is_named():
    """A version that is not spoken is refused with those that are."""
    with pytest.raises(ConfigError, match="broker_protocol: got '4'"):
        check_protocol(ExporterConfig(broker_protocol="4"))


async def test_a_cancellation_that_a_wait_lost_is_heeded():
    """A task cancelled in the moment its answer comes ends all the same, though Python 3.11 hands it the answer."""
    answer = asyncio.get_running_loop().create_future()

    async def serve():
        await asyncio.wait_for(answer, timeout=60)
        heed_cancellation()
        await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    answer.set_result(None)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=30)
    assert done == {task}
    assert task.cancelled()


async def test_a_task_that_nobody_cancelled_goes_on():
    """Outside of a cancellation, after an expired timeout too, nothing is raised."""
    heed_cancellation()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    heed_cancellation()
