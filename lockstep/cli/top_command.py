"""`lockstep top`: the coordinator's page in a terminal, read from its API."""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lockstep.cli.profile_command import DEFAULT_URL, OTHER_FORM, accepted, check_url, read_token, unanswered
from lockstep.cli.top_view import Line, TopView, lines, ordered
from lockstep.contracts.errors import ConfigError, LocalError

if TYPE_CHECKING:
    import aiohttp

_TIMEOUT_S = 10.0  # of one request
_ANSWER_MAX_BYTES = 16 << 20  # the list of 10,000 runs is 8 MB
_INTERVALS_S = (0.2, 3600.0)
_PLAIN_WIDTH = 200  # of a file, if there is no terminal
_UP, _DOWN, _QUIT = b"\x1b[A", b"\x1b[B", b"q"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "top",
        help="watch the runs of a coordinator in the terminal",
        description="Shows the runs of a coordinator and, for the selected run, the slowest ranks and the open "
        "incidents. The keys up and down select a run, q quits. Without a terminal it prints plain text. The exit "
        "status is 2 if the coordinator cannot be reached or does not know the run. A coordinator that goes away "
        "later is tried again.",
    )
    parser.add_argument("--coordinator", default=DEFAULT_URL, metavar="URL", help=f"default: {DEFAULT_URL}")
    parser.add_argument("--run", default="", metavar="NAME", help="the run shown in detail (default: the first)")
    parser.add_argument("--once", action="store_true", help="print the present state and exit")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between two updates (default: 2)"
    )
    parser.add_argument("--token-file", metavar="FILE", help="file with the API token, if the coordinator requires one")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Watch until the user ends it.

    Raises
    ------
    LockstepError
        An argument is wrong; or, at the start, the coordinator cannot be reached or has no such run.
    """
    url = arguments.coordinator.rstrip("/")
    check_url(url)
    least, most = _INTERVALS_S
    if not least <= arguments.interval <= most:
        raise ConfigError(f"--interval: got {arguments.interval}, expected {least} to {most:.0f} seconds")
    token = read_token(arguments.token_file)
    watch = CoordinatorWatcher(url, token, arguments.run)
    if arguments.once:
        return asyncio.run(_once(watch))
    return asyncio.run(_watch(watch, arguments.interval, is_terminal=sys.stdin.isatty() and sys.stdout.isatty()))


class CoordinatorWatcher:
    """The latest data of a coordinator; `look` updates it. `chosen` is the run shown in detail.

    `was_read` is whether there has ever been a response to show.
    """

    def __init__(self, url: str, token: str, run: str) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.chosen = run
        self._is_given = bool(run)
        self.was_read = False
        self.view = TopView(url=url, chosen=run)

    async def look(self, client: "aiohttp.ClientSession") -> None:
        """Fetch the coordinator's current data.

        Raises
        ------
        LocalError
            It does not answer, answers something else, or has no such run; the previous data stays.
        """
        import aiohttp  # noqa: PLC0415  (services only)

        try:
            runs = ordered((await _get(client, "/api/v1/runs"))["runs"])
            if not self._is_given and self.chosen not in [run["run"] for run in runs]:
                self.chosen = runs[0]["run"] if runs else ""
            slowest: list[dict[str, Any]] = []
            if self.chosen:
                found = await _get(client, f"/api/v1/runs/{quote(self.chosen, safe='')}/heatmap")
                slowest = found.get("worst", [])
            incidents = (await _get(client, "/api/v1/incidents?state=open"))["incidents"]
            view = TopView(url=self.url, runs=runs, chosen=self.chosen, slowest=slowest, incidents=incidents)
            lines(view, _PLAIN_WIDTH)  # so that a response of another form is detected here
        except (aiohttp.ClientError, TimeoutError, *OTHER_FORM) as error:
            raise unanswered(self.url, error) from error
        self.view = view
        self.was_read = True

    def trouble(self, what: str, interval_s: float) -> None:
        """Keep the data, and note why it is out of date and when it is next requested."""
        old = self.view
        self.view = TopView(
            url=old.url,
            runs=old.runs,
            chosen=self.chosen,
            slowest=old.slowest,
            incidents=old.incidents,
            trouble=f"{what}; trying again every {interval_s:g} s, Ctrl-C quits",
        )

    def choose(self, step: int) -> None:
        """Choose the run above or below."""
        self._is_given = False
        names = [run["run"] for run in self.view.runs]
        if names:
            at = names.index(self.chosen) if self.chosen in names else 0
            self.chosen = names[min(max(at + step, 0), len(names) - 1)]


async def _get(client: "aiohttp.ClientSession", path: str) -> dict[str, Any]:
    async with client.get(path) as response:
        body = await response.content.read(_ANSWER_MAX_BYTES)
        while not response.content.at_eof() and len(body) < _ANSWER_MAX_BYTES:
            body += await response.content.read(_ANSWER_MAX_BYTES - len(body))
        return accepted(response, body)


def _client(watch: CoordinatorWatcher) -> "aiohttp.ClientSession":
    import aiohttp  # noqa: PLC0415  (services only)

    return aiohttp.ClientSession(watch.url, headers=watch.headers, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))


async def _once(watch: CoordinatorWatcher) -> int:
    async with _client(watch) as client:
        await watch.look(client)
    print(plain(lines(watch.view, _PLAIN_WIDTH)))
    return 0


async def _watch(watch: CoordinatorWatcher, interval_s: float, *, is_terminal: bool) -> int:
    """Update repeatedly until a key or a signal ends it."""
    stop, woken = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        woken.set()

    def on_key(key: bytes) -> None:
        if key in (_QUIT, b""):  # empty: the terminal is gone
            end()
        elif key in (_UP, _DOWN):
            watch.choose(1 if key == _DOWN else -1)
            woken.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        async with _client(watch) as client:
            await _look(watch, client, stop, interval_s)
            with _terminal(watch, on_key) if is_terminal else _file(watch) as show:
                while not stop.is_set():
                    show()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), interval_s)
                    woken.clear()
                    await _look(watch, client, stop, interval_s)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return 0


async def _look(
    watch: CoordinatorWatcher, client: "aiohttp.ClientSession", stop: asyncio.Event, interval_s: float
) -> None:
    """Update once; a user who quits does not wait for a response.

    Raises
    ------
    LocalError
        There was never a response to show: waiting does not correct a wrong address or name.
    """
    looking, stopping = asyncio.ensure_future(watch.look(client)), asyncio.ensure_future(stop.wait())
    await asyncio.wait((looking, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not looking.done():
        looking.cancel()
    try:
        await looking
    except LocalError as error:
        if not watch.was_read:
            raise
        watch.trouble(str(error), interval_s)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


@contextlib.contextmanager
def _file(watch: CoordinatorWatcher) -> Iterator[Callable[[], None]]:
    """Print every update, one after the other."""
    yield lambda: print(plain(lines(watch.view, _PLAIN_WIDTH)), end="\n\n", flush=True)


@contextlib.contextmanager
def _terminal(watch: CoordinatorWatcher, on_key: Callable[[bytes], None]) -> Iterator[Callable[[], None]]:
    """Draw on the whole terminal, and restore it afterwards."""
    import termios  # noqa: PLC0415  (terminals only)
    import tty  # noqa: PLC0415

    from rich.live import Live  # noqa: PLC0415  (drawing only)
    from rich.text import Text  # noqa: PLC0415

    def text() -> Text:
        size = shutil.get_terminal_size()
        shown = [*lines(watch.view, size.columns)[: size.lines - 1], [("up, down: select the run   q: quit", "dim")]]
        return Text("\n", no_wrap=True).join(Text.assemble(*line) for line in shown)

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        loop.add_reader(keyboard, lambda: on_key(os.read(keyboard, 16)))
        with Live(Text(), screen=True, auto_refresh=False) as live:
            yield lambda: live.update(text(), refresh=True)
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def plain(shown: list[Line]) -> str:
    """Return lines without their styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in shown)
