"""`lockstep up`: the services of one machine, set by flags."""

import contextlib
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from lockstep.cli.main import build_parser
from tests.support.servers import WAIT_S, free_port, get, get_json, running, wait_until

UP = [sys.executable, "-m", "lockstep.cli.main", "up"]


@pytest.mark.servers
def test_with_a_token_file_things_can_be_changed(tmp_path):
    """Who has the token may change a threshold; no one else may."""
    (tmp_path / "token").write_text("word-of-many-letters\n")
    port = free_port()
    ports = [f"--coordinator-port={port}", "--exporter-port=0"]
    command = [*UP, f"--root={tmp_path}", f"--token-file={tmp_path / 'token'}", *ports]

    def change(headers):
        body = json.dumps({"excess.floor_ratio": 0.03}).encode()
        url = f"http://127.0.0.1:{port}/api/v1/policy"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PATCH")) as answer:
            return answer.status

    with running(command, tmp_path / "up.log"):
        wait_until(lambda: get(f"http://127.0.0.1:{port}/-/healthy"), WAIT_S, "lockstep up is healthy")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            change({})
        assert change({"Authorization": "Bearer word-of-many-letters"}) == 200


def listening(pid):
    """Return the loopback ports that a process listens on."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(str(link.readlink()))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


@pytest.mark.servers
def test_the_services_meet_without_a_port_of_a_broker(tmp_path):
    """The coordinator knows the exporter by its heartbeat, and nothing listens but the two services' HTTP."""
    exporter, coordinator = free_port(), free_port()
    command = [*UP, f"--root={tmp_path}", f"--coordinator-port={coordinator}", f"--exporter-port={exporter}"]
    with running(command, tmp_path / "up.log") as process:
        targets = wait_until(
            lambda: get_json(f"http://127.0.0.1:{coordinator}/api/v1/targets"), WAIT_S, "the heartbeat"
        )
        assert [target["targets"][0].rpartition(":")[2] for target in targets] == [str(exporter)]
        assert get(f"http://127.0.0.1:{coordinator}/-/ready")
        assert listening(process.pid) == {exporter, coordinator}


@pytest.mark.parametrize("words", [["up"], ["top"], ["profile", "job", "--ranks", "0"]], ids=lambda words: words[0])
def test_one_name_for_one_thing(words):
    """The token's file, and the coordinator's address where one is asked, are reported alike everywhere."""
    assert build_parser().parse_args([*words, "--token-file", "token"]).token_file == "token"
    if words != ["up"]:
        build_parser().parse_args([*words, "--coordinator", "http://127.0.0.1:9856"])
