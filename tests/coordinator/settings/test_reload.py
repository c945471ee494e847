"""Configuration files read again while a coordinator serves."""

import argparse
from pathlib import Path

import aiohttp
import pytest

from coordinator.runtime import Coordinator
from coordinator.settings.config import CoordinatorConfig
from lockstep.cli.services_command import read_config
from lockstep.contracts.errors import ConfigError
from tests.coordinator.conftest import running, until
from tests.coordinator.web import Site


def reader(file):
    """Return what reads `file` as the command line does."""
    arguments = argparse.Namespace(config=str(file), set=[])
    return lambda: read_config(CoordinatorConfig, arguments, "LOCKSTEP_COORDINATOR_TEST_")


@pytest.fixture
def files(tmp_path):
    """Return a configuration file and the policy file that it names."""
    config, policy = tmp_path / "coordinator.yaml", tmp_path / "policy.yaml"
    policy.write_text("excess.floor_ratio: 0.05\ndetectors.hang: false\n")
    config.write_text(f"policy_file: {policy}\nruns_max: 20\n")
    return config, policy


async def test_both_files_are_read_again(files):
    """A key of the one and a threshold of the other take effect together; the rest stays."""
    config, policy = files
    site = Site()
    site.reread = reader(config)
    await site.reloader.reload("a test")
    assert site.control.policy().excess.floor_ratio == 0.05
    assert not site.runs.by_name["job"].policy.detectors.hang
    policy.write_text("excess.floor_ratio: 0.1\nrun.recover_steps: 30\nscope.runs: [prod-*]\n")
    config.write_text(config.read_text().replace("runs_max: 20", "runs_max: 30"))
    done = await site.reloader.reload("a test")
    assert [change.name for change in done.changes] == [
        "excess.floor_ratio",
        "run.recover_steps",
        "detectors.hang",
        "scope.runs",
    ]
    assert done.applied == ("runs_max",)
    assert site.runs.by_name["job"].machine.tracker.policy.recover_steps == 30
    site.store.close()


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("coordinator.yaml", "runs_maxx: 3", "nearest known key is 'runs_max'"),
        ("coordinator.yaml", "runs_max: 0", "runs_max: got 0"),
        ("coordinator.yaml", "policy_file: /nowhere", "/nowhere"),
        ("coordinator.yaml", "[", "coordinator.yaml"),
        ("policy.yaml", "excess.flor_ratio: 0.1", "nearest is 'excess.floor_ratio'"),
        ("policy.yaml", "excess.floor_ratio: fast", "policy.yaml: excess.floor_ratio: got 'fast'"),
        ("policy.yaml", "run.lost_seconds: 4000", "expected less than run.lost_keep_seconds"),
        ("policy.yaml", "- a", "got list, expected names and values"),
        ("policy.yaml", "[", "expected YAML"),
    ],
)
async def test_a_wrong_file_changes_nothing(files, name, text, named):
    """The configuration from before is in force whole, and it shows that the last reload failed."""
    config, _ = files
    site = Site()
    site.reread = reader(config)
    await site.reloader.reload("a test")
    before = site.control.policy(), site.control.config
    (config.parent / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        await site.reloader.reload("a test")
    assert named in str(caught.value)
    assert (site.control.policy(), site.control.config) == before
    assert not site.control.reload_ok
    await site.reloader.on_signal()  # reported in the log; no one waits for an answer
    site.store.close()


def test_the_example_of_a_policy_file_is_valid():
    """It changes its own keys and no more."""
    config = CoordinatorConfig(policy_file=str(Path(__file__).parents[3] / "examples" / "policy.yaml"))
    config.validate()
    assert (config.policy().excess.floor_ratio, config.policy().run.recover_steps) == (0.03, 20)
    assert config.policy().scope.runs == ("prod-*", "pretrain-*")


async def test_a_running_coordinator_reloads_and_shows_it_in_its_metrics(files):
    """The metrics of Prometheus's own convention, and the count of changes."""
    config, policy = files
    prefix = "lockstep_coordinator_"
    async with running(reread=reader(config)) as coordinator:
        assert isinstance(coordinator, Coordinator)
        coordinator.request_reload()
        await until(lambda: coordinator._control.policy().excess.floor_ratio == 0.05)
        policy.write_text("excess.floor_ratio: nothing\n")
        coordinator.request_reload()
        await until(lambda: not coordinator._control.reload_ok)
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{coordinator.http_port}") as client,
            client.get("/metrics") as response,
        ):
            text = await response.text()
    assert f"{prefix}config_last_reload_successful 0.0" in text
    assert f'{prefix}policy_changes_total{{source="file"}} 2.0' in text
    assert f"{prefix}config_last_reload_success_timestamp_seconds 1" in text
