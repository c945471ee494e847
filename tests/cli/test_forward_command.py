"""`lockstep forward` as it is typed: mistakes by name, and a coordinator's own application forwarded to event files."""

import asyncio
import signal
import subprocess
import sys

import pytest

from lockstep.cli.main import main
from lockstep.contracts.errors import PeerError
from lockstep.trackers.forwarder import Forwarder
from lockstep.trackers.tracker import LIBRARIES
from tests.coordinator.test_runs import play
from tests.coordinator.web import FAULTY, Site
from tests.support.servers import answers
from tests.trackers.test_tensorboard import scalars

AWAY = "http://127.0.0.1:9"  # discard, which no one serves


@pytest.fixture
async def site():
    async with Site() as made:
        play(made.runs, FAULTY, 0, 60)
        made.url = str(made.client.make_url("/")).rstrip("/")
        yield made


def arguments(folder, run="job", url=AWAY, to="tensorboard"):
    address = ["--address", str(folder / "events")] if to == "tensorboard" else []
    state = ["--state", str(folder / "state" / "state.json")]
    return ["forward", run, "--to", to, *address, "--coordinator", url, *state, "--once"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], f"coordinator at {AWAY}/api/v1/runs: got no answer"),
        (["--interval", "0"], "--interval: got 0.0, expected 1 to 3600 seconds"),
        (["--coordinator", "here"], "--coordinator: got 'here', expected a URL like"),
        (["--link-url", "here"], "--link-url: got 'here', expected a URL like"),
        (["--address", ""], "--address: got nothing, expected the folder"),
        (["--project", "p"], "--project and --id: expected only with wandb and mlflow"),
        (["--state", "/proc/no/state"], "--state /proc/no/state: No such file or directory, expected a file"),
        (["--token-file", "/no/token"], "--token-file /no/token"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, more, words):
    """On stderr, with status 2; nothing is noted as sent."""
    assert main([*arguments(tmp_path), *more]) == 2
    assert words in capsys.readouterr().err


def test_a_server_that_is_no_coordinator_is_named(tmp_path, capsys):
    """Its address, how its answer begins, and what was expected."""
    with answers("<html>login</html>") as address:
        assert main(arguments(tmp_path, url=f"http://{address}")) == 2
    where = f"http://{address}/api/v1/runs"
    assert f"answer in {where}: got '<html>login</html>', expected a JSON object with runs" in capsys.readouterr().err


@pytest.mark.parametrize("to", LIBRARIES)
def test_a_library_that_is_not_installed_is_named_with_its_extra(tmp_path, capsys, monkeypatch, to):
    """And how to install it; nothing else is imported for it."""
    (library,) = LIBRARIES[to]
    for name in [name for name in sys.modules if name.split(".")[0] == library or name.endswith(f"{to}_tracker")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    assert main(arguments(tmp_path, to=to)) == 2
    expected = f"--to {to}: got no module {library}"
    assert f"{expected}, expected pip install 'lockstep-monitor[{to}]'" in capsys.readouterr().err


def test_an_extra_of_a_tracker_is_all_that_is_needed(tmp_path):
    """No package of the services: the forwarder runs where only the tracker's library is installed."""
    absent = "aiohttp bcrypt mqtt5 msgspec pandas prometheus_client pyarrow torch yaml".split()  # noqa: SIM905
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
from lockstep.cli.main import main
sys.exit(main({arguments(tmp_path)}))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, f"coordinator at {AWAY}/api/v1/runs: got no answer" in ended.stderr) == (2, True), ended


def test_a_process_that_follows_ends_when_it_is_asked_to(tmp_path, capsys, monkeypatch):
    """Though the coordinator is away; the signals mean afterwards what they did before."""

    def forward(*_):
        signal.raise_signal(signal.SIGTERM)
        raise PeerError("away")

    monkeypatch.setattr(Forwarder, "forward", forward)
    before = signal.getsignal(signal.SIGTERM)
    assert main(arguments(tmp_path)[:-1]) == 0
    assert capsys.readouterr().out == "0 points and 0 reports of incidents of run job sent to tensorboard\n"
    assert signal.getsignal(signal.SIGTERM) is before


async def test_an_unknown_run_is_named_with_those_that_are_known(site, tmp_path, capsys):
    """The state stays at the beginning."""
    assert await asyncio.to_thread(main, arguments(tmp_path, run="jop", url=site.url)) == 2
    assert "got 'jop', expected a run that it knows: job" in capsys.readouterr().err


async def test_a_run_is_forwarded_once_with_its_breakdown_and_its_incident(site, tmp_path, capsys):
    """From the coordinator's application to files on disk: parts sum to the step, and the slow rank is named."""
    assert await asyncio.to_thread(main, arguments(tmp_path, url=site.url)) == 0
    folder = tmp_path / "events" / "job" / "attempt-0"
    values = {}
    for tag, step, value, _ in scalars(folder):
        values.setdefault(step, {})[tag.removeprefix("lockstep/")] = value
    assert list(values) == sorted(values)
    for known in values.values():
        parts = sum(known[f"{name}_seconds"] for name in ("data", "compute", "host", "gc", "dp_wait"))
        assert parts == pytest.approx(known["step_seconds"], rel=0.05)
    assert values[max(values)]["incidents_open"] == 1.0
    text = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"slow rank of rank 2 on host-n1: data, from step 40, open" in text
    assert f"{site.url}/incidents/".encode() in text
    capsys.readouterr()
    assert await asyncio.to_thread(main, arguments(tmp_path, url=site.url)) == 0
    assert capsys.readouterr().out == "0 points and 0 reports of incidents of run job sent to tensorboard\n"
