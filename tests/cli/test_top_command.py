"""`lockstep top` against the coordinator's own application, in a file and in a terminal."""

import asyncio
import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.decide.incidents import to_json
from lockstep.cli.main import main
from lockstep.cli.top_command import CoordinatorWatcher, _client, _watch, plain
from lockstep.cli.top_view import RUNS_MAX, TopView, format_seconds, lines, ordered
from lockstep.contracts.errors import LocalError
from tests.coordinator.conftest import announce
from tests.coordinator.test_runs import NOW, play
from tests.coordinator.test_store import incident
from tests.coordinator.web import FAULTY, Site
from tests.support.servers import WAIT_S


@pytest.fixture
async def site():
    async with Site() as made:
        play(made.runs, FAULTY, 0, 50)
        made.runs.take(announce(0, run="young"), NOW)
        made.url = str(made.client.make_url("/")).rstrip("/")
        yield made


def run_row(name="job", **more):
    values = {
        "run": name, "state": "healthy", "step": 5, "recent_step_seconds": 0.5, "baseline_step_seconds": 0.4,
        "expected": {"step_seconds": 0.39}, "ranks_reporting": 4, "world_size": 4, "slow_ranks": [], "incidents_open": [],
    }  # fmt: skip
    return values | more


def shown(view, width=200):
    return plain(lines(view, width))


async def test_once_prints_runs_ranks_and_incidents(site, capsys):
    """The run with an incident first and in detail: step time, slowest ranks with bars, cause and evidence."""
    assert await asyncio.to_thread(main, ["top", "--once", "--coordinator", site.url]) == 0
    output = capsys.readouterr().out
    rows = output.splitlines()
    assert rows[3].startswith("> ")
    assert [word in rows[3] for word in ("job", "profiling", "4/4", "ms +")] == [True] * 4
    assert "young" in rows[4]
    first = next(row for row in rows if row.startswith("rank "))
    assert first.startswith("rank 2  host-n1")
    assert "#" * 20 in first
    assert "* slow rank: rank 2, cause data, +4" in output
    assert "    since step 40, found at step 42, 2026-09-21 " in output
    assert "\x1b" not in output


async def test_a_run_by_name_and_one_that_is_not_there(site, capsys):
    """Shown in detail as asked; unknown names, wrong addresses and an absent coordinator are one line, status 2."""
    assert await asyncio.to_thread(main, ["top", "--once", "--coordinator", site.url, "--run", "young"]) == 0
    assert "no undisturbed step yet" in capsys.readouterr().out
    for arguments, words in (
        (["--coordinator", site.url, "--run", "jobs"], "run: got 'jobs', expected one of 'job', 'young'"),
        (["--coordinator", "http://127.0.0.1:9"], "coordinator at http://127.0.0.1:9: no coordinator is running there"),
        (["--coordinator", "ftp://x"], "--coordinator: got 'ftp://x'"),
        (["--coordinator", "http://["], "--coordinator: got 'http://['"),
        (["--interval", "0"], "--interval: got 0.0"),
    ):
        assert await asyncio.to_thread(main, ["top", "--once", *arguments]) == 2
        assert words in capsys.readouterr().err


async def test_a_coordinator_that_goes_away_is_reported_and_asked_again(site):
    """What was known stays on the screen, with the reason."""
    watch = CoordinatorWatcher(site.url, "", "")
    async with _client(watch) as client:
        await watch.look(client)
    watch.url = "http://127.0.0.1:9"
    async with _client(watch) as client:
        with pytest.raises(LocalError) as error:
            await watch.look(client)
    watch.trouble(str(error.value), 2.0)
    text = shown(watch.view)
    assert "coordinator at http://127.0.0.1:9: no coordinator is running there" in text
    assert "trying again every 2 s, Ctrl-C quits" in text
    assert "rank 2  host-n1" in text


def test_a_coordinator_that_was_never_there_ends_the_command(capsys):
    """Status 2 and one line with the address, not a screen that tries for ever."""
    assert main(["top", "--coordinator", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr() == (
        "",
        "lockstep: coordinator at http://127.0.0.1:9: no coordinator is running there; use --coordinator URL\n",
    )


async def test_a_misspelt_run_ends_the_command(site):
    """One line with the known runs, not a screen that tries for ever."""
    with pytest.raises(LocalError) as error:
        await asyncio.wait_for(_watch(CoordinatorWatcher(site.url, "", "jobs"), 0.2, is_terminal=False), WAIT_S)
    assert str(error.value) == f"coordinator at {site.url}: run: got 'jobs', expected one of 'job', 'young'"


@pytest.mark.parametrize(
    "answer",
    [
        ({"text": "<html>login</html>", "content_type": "text/html"}, "'<html>login</html>'"),
        ({"text": "<html>" + "x" * 500, "status": 403}, "'<html>" + "x" * 44 + "'"),
        ({"text": "[1]", "content_type": "application/json", "status": 500}, "'[1]'"),
        ({"text": ""}, "''"),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        ["top", "--once"],
        ["profile", "job", "--ranks", "0"],
        ["whatif", "--run", "job"],
    ],
)
async def test_a_server_that_is_no_coordinator_is_reported(capsys, arguments, answer):
    """An address of another service, whose pages are HTML: what came, what was expected, and the option."""
    body, reason = answer
    async with TestServer(_always(body)) as other:
        url = str(other.make_url("")).rstrip("/")
        assert await asyncio.to_thread(main, [*arguments, "--coordinator", url]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lockstep: answer in {url}/api/v1/run")
    assert error.endswith(f": got {reason}, expected a JSON object of a coordinator; use --coordinator URL\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["top", "--once"], "runs"),
        (["profile", "job", "--ranks", "0"], "request_id"),
        (["whatif", "--run", "job"], "text"),
    ],
)
async def test_a_missing_part_of_an_answer_is_named(capsys, arguments, part):
    """JSON of another service: the part that is missing, not the error of the language."""
    async with TestServer(_always({"text": "{}", "content_type": "application/json"})) as other:
        url = str(other.make_url("")).rstrip("/")
        assert await asyncio.to_thread(main, [*arguments, "--coordinator", url]) == 2
    expected = f"got an answer without {part!r}, expected one of a coordinator; use --coordinator URL"
    assert capsys.readouterr().err == f"lockstep: coordinator at {url}: {expected}\n"


def _always(response):
    async def handler(_):
        return web.Response(**response)

    application = web.Application()
    application.router.add_route("*", "/{any:.*}", handler)
    return application


async def test_up_and_down_choose_the_run(site):
    """Within the list; a run that ends gives way to the first, unless it was asked for."""
    watch = CoordinatorWatcher(site.url, "", "")
    async with _client(watch) as client:
        await watch.look(client)
        assert watch.chosen == "job"
        watch.choose(1)
        watch.choose(1)
        assert watch.chosen == "young"
        site.runs.forget("young")
        await watch.look(client)
        assert watch.chosen == "job"


def test_runs_that_need_somebody_come_first():
    """Open incidents, then a run that stands still, then the others by name."""
    rows = [run_row("a"), run_row("b", state="hung"), run_row("z", incidents_open=["z-1"])]
    assert [row["run"] for row in ordered(rows)] == ["z", "b", "a"]


def test_what_is_hostile_moves_no_cursor():
    """Control characters and endless names of runs and nodes; no line is longer than the screen."""
    name = "\x1b[2Jjob\u202e" + "x" * 500
    slow = {"rank": 1, "hostname": name, "self_seconds": 1.0, "wait_seconds": None, "excess_ratio": None}
    text = shown(TopView(url="http://x", runs=[run_row(name)] * 100, chosen=name, slowest=[slow]), 100)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert f"and {100 - RUNS_MAX} more" in text


@pytest.mark.parametrize(
    ("values", "title"),
    [
        ({"scope": "rank"}, "* slow rank: ranks 2, 3, cause compute, +50%"),
        ({"scope": "node"}, "* slow rank: a node, ranks 2, 3, cause compute, +50%"),
        ({"kind": "slow_link", "scope": "group", "cause": "link"}, "* slow link: dp dp0, cause link, +50%"),
        ({"kind": "fluctuation", "scope": "job", "domain": None}, "* fluctuation: the whole run, cause compute, +50%"),
        (
            {"kind": "hang", "cause": "unknown", "ranks": (3,), "slowdown_ratio": 1260.0, "excess_seconds": 605.0},
            "* hang: rank 3, cause unknown, no step for 10 min",
        ),
    ],
)
def test_an_incident_names_who_is_meant(values, title):
    """Ranks where ranks are at fault, a group by its name, and of a hang its silence instead of a share of it."""
    opened = to_json(incident(opened_unix_ns=1_790_000_000 * 10**9, **values))
    text = shown(TopView(url="http://x", runs=[run_row()], incidents=[opened]))
    assert f"{title}  job\n    since step 60, found at step 62, 2026-09-21 14:13:20 UTC\n" in text


def test_an_empty_coordinator_and_figures():
    """No run, no incident; times in three figures."""
    assert "no run yet" in shown(TopView(url="http://x"))
    away = shown(replace(TopView(url="http://x"), trouble="trying"))
    assert "trying" in away
    assert "no " not in away
    assert [format_seconds(each) for each in (None, 0.0123, 0.5, 12.34)] == ["-", "12.3 ms", "500 ms", "12.3 s"]
    assert [format_seconds(each) for each in (599, 600, 7199, 7200)] == ["599 s", "10 min", "120 min", "2.0 h"]


@contextlib.contextmanager
def terminal(url):
    """Run the command in a terminal of its own; yield it and a function that reads until some words came."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lockstep.cli.main", "top", "--coordinator", url, "--interval", "0.2"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = []

    def read_until(words):
        end = time.monotonic() + 30
        while words not in "".join(seen):
            assert time.monotonic() < end, "".join(seen)
            if select.select([ours], [], [], 0.1)[0]:
                seen.append(os.read(ours, 1 << 16).decode(errors="replace"))

    try:
        yield process, read_until, lambda keys: os.write(ours, keys)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("way", ["q", "interrupt"])
async def test_a_terminal_is_drawn_on_and_given_back(site, way):
    """Runs on the other screen; down chooses; q and Ctrl-C end it with status 0 and the terminal as it was."""

    def use():
        with terminal(site.url) as (process, read_until, press):
            read_until("q: quit")
            read_until("host-n1")
            press(b"\x1b[B")
            read_until("no undisturbed step yet")
            press(b"q") if way == "q" else process.send_signal(signal.SIGINT)
            read_until("\x1b[?1049l")
            return process.wait(WAIT_S)

    assert await asyncio.to_thread(use) == 0
