"""`lockstep forward RUN --to TRACKER`: sends step breakdown and incidents to W&B, MLflow, TensorBoard, or by OTLP."""

import argparse
import contextlib
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from lockstep.cli.profile_command import DEFAULT_URL, check_url, read_token
from lockstep.contracts.errors import ConfigError
from lockstep.trackers.tracker import LIBRARIES, Tracker, TrackerOptions, open_tracker

if TYPE_CHECKING:
    from lockstep.trackers.forward_state import ForwardState
    from lockstep.trackers.forwarder import Forwarder

_INTERVALS_S = (1.0, 3600.0)
_STATE_FOLDER = Path(".local", "state", "lockstep")
_NAME_MAX = 150  # of a run's name within a file name
_log = logging.getLogger("lockstep.forward")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "forward",
        help="send a run's step breakdown and incidents to W&B, MLflow, TensorBoard, or by OTLP",
        description="Reads a coordinator's API and sends what is new in one run to a tracker until the run ends. When "
        "started again, it continues where it stopped. It runs in its own process; the training code does not change.",
        epilog="Credentials and servers are the tracker's own settings: WANDB_API_KEY, MLFLOW_TRACKING_URI, "
        "OTEL_EXPORTER_OTLP_HEADERS and so on.",
    )
    parser.add_argument("run", metavar="RUN", help="name of the run")
    parser.add_argument(
        "--to", required=True, choices=tuple(LIBRARIES), help="the tracker; each needs the extra of its name"
    )
    parser.add_argument("--coordinator", default=DEFAULT_URL, metavar="URL", help=f"default: {DEFAULT_URL}")
    parser.add_argument("--token-file", metavar="FILE", help="file with the API token, if the coordinator requires one")
    parser.add_argument(
        "--address",
        default="",
        metavar="WHERE",
        help="TensorBoard's folder, MLflow's tracking URI or the URL of an OTLP collector",
    )
    parser.add_argument(
        "--project", default="", metavar="NAME", help="W&B's project or MLflow's experiment (default: lockstep)"
    )
    parser.add_argument("--id", default="", metavar="ID", help="the training's own run in W&B (shared mode) or MLflow")
    parser.add_argument(
        "--interval",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time whose steps become one point (default: 10)",
    )
    parser.add_argument(
        "--link-url", default="", metavar="URL", help="where browsers reach the coordinator (default: --coordinator)"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="file that stores how far the run was sent (default: in ~/.local/state/lockstep)",
    )
    parser.add_argument("--once", action="store_true", help="send what is known now, and exit")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Forward until the run or the process ends.

    Raises
    ------
    LockstepError
        An argument is wrong, or the tracker's library is missing; with `--once`, coordinator or tracker is unreachable.
    """
    from lockstep.trackers.coordinator_reader import CoordinatorReader  # noqa: PLC0415  (the agent's image has no HTTP)
    from lockstep.trackers.forward_state import hold_state, load_state  # noqa: PLC0415
    from lockstep.trackers.forwarder import Forwarder  # noqa: PLC0415

    _check(arguments)
    token, to = read_token(arguments.token_file), arguments.to
    reader = CoordinatorReader(arguments.coordinator, arguments.run, token=token, link_url=arguments.link_url)
    state_file = arguments.state or _default_state_file(arguments.run, to)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with hold_state(state_file):
        state = load_state(state_file, arguments.run, to)
        forwarder = Forwarder(
            reader.read,
            partial(_open, arguments, state_file),
            state,
            state_file,
            interval_s=arguments.interval,
            log=_log,
        )
        _run(forwarder, arguments)
    sent = f"{forwarder.sent_points} points and {forwarder.sent_incidents} reports of incidents"
    print(f"{sent} of run {arguments.run} sent to {to}")
    return 0


def _run(forwarder: "Forwarder", arguments: argparse.Namespace) -> None:
    from lockstep.trackers.forwarder import follow  # noqa: PLC0415

    is_over = False
    try:
        if arguments.once:
            is_over = forwarder.forward(time.time(), is_last=True).is_over
            return
        with _stop_on_signals() as stop:
            is_over = follow(
                forwarder,
                now_s=time.time,
                wait=stop.wait,
                interval_s=arguments.interval,
                draw=random.random,
                log=_log,
            )
    finally:
        forwarder.close(is_over=is_over)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield the event that SIGINT and SIGTERM set; afterwards, these signals end the process again."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(arguments: argparse.Namespace, state_file: Path, state: "ForwardState") -> Tracker:
    """Open the tracker in the training's run, otherwise in the one that an earlier process began."""
    if arguments.id and state.tracker_run not in ("", arguments.id):
        got = f"the state in run {state.tracker_run}"
        raise ConfigError(f"--state {state_file}: got {got}, expected of {arguments.id}; name another file")
    options = TrackerOptions(
        run=arguments.run,
        address=arguments.address,
        project=arguments.project,
        tracker_run=arguments.id or state.tracker_run,
        is_attached=bool(arguments.id),
    )
    return open_tracker(arguments.to, options)


def _check(arguments: argparse.Namespace) -> None:
    check_url(arguments.coordinator)
    if arguments.link_url:
        check_url(arguments.link_url, "--link-url")
    least, most = _INTERVALS_S
    if not least <= arguments.interval <= most:
        raise ConfigError(f"--interval: got {arguments.interval}, expected {least:.0f} to {most:.0f} seconds")


def _default_state_file(run: str, tracker: str) -> Path:
    return Path.home() / _STATE_FOLDER / f"forward-{quote(run, safe='')[:_NAME_MAX]}-{tracker}.json"
