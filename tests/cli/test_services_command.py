"""Signals, as an operator sends them to a service."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

from tests.support.policy_file import policy_file
from tests.support.servers import WAIT_S

COMMAND = [sys.executable, "-m", "lockstep.cli.main", "coordinator", "--config"]


class Service:
    """A coordinator in a process of its own; `wait_for` reads its log up to a line."""

    def __init__(self, config):
        self.process = subprocess.Popen([*COMMAND, str(config)], stderr=subprocess.PIPE, text=True)
        self._watch = threading.Timer(60, self.process.kill)  # a log line that never comes must not hang the tests
        self._watch.start()

    def wait_for(self, pattern):
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} is not in the log: {''.join(seen)}")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.close()
        status = self.process.wait(timeout=30)
        self._watch.cancel()
        self._watch.join()
        return status


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "coordinator.yaml"
    file.write_text("http_host: 127.0.0.1\nhttp_port: 0\nbroker_host: 127.0.0.1\nbroker_port: 1\n")
    return file


def test_a_hangup_reads_the_configuration_again(config):
    """What can change does, what cannot is named, a wrong file is reported and survived; the end is as always."""
    service = Service(config)
    port = service.wait_for(r"coordinator on http://127\.0\.0\.1:(\d+)/").group(1)
    policy = policy_file(config.parent, {"excess.floor_ratio": 0.1})
    config.write_text(config.read_text().replace("broker_port: 1", "broker_port: 2") + f"policy_file: {policy}\n")
    os.kill(service.process.pid, signal.SIGHUP)
    service.wait_for(r"policy of all runs: excess\.floor_ratio: 0\.025 -> 0\.1, by SIGHUP")
    service.wait_for(r"reload by SIGHUP: broker_port need a restart")
    config.write_text("policy_fil: x\n")
    os.kill(service.process.pid, signal.SIGHUP)
    service.wait_for(r"nearest known key is 'policy_file'.*the previous configuration stays in force")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as response:
        assert "lockstep_coordinator_config_last_reload_successful 0.0" in response.read().decode()
    assert service.end() == 0
