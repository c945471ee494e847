"""`lockstep preview`: draws the dashboards' panels from a Prometheus into one HTML page."""

import argparse
import json
import re
import time
from pathlib import Path

from lockstep.contracts.errors import ConfigError, FileAccessError, MalformedError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "preview",
        help="draw the dashboards from a Prometheus, without Grafana",
        description="Sends the queries of the Grafana dashboards to a Prometheus and draws the results into one HTML "
        "page that needs no other file. It is a preview: colours and sizes are close to Grafana's, not equal.",
    )
    parser.add_argument("out", metavar="FILE.html", type=Path, help="page to write")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="default: %(default)s")
    parser.add_argument(
        "--dashboard",
        action="append",
        metavar="NAME",
        help="fleet, run, domains, rank, diagnoses or self-monitoring (default: all)",
    )
    parser.add_argument(
        "--last", default="1h", metavar="TIME", help="period up to now, such as 90s, 15m, 1h (default), 2d"
    )
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a variable, such as run=llama (default: the first)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Draw and write the page.

    Raises
    ------
    ConfigError
        A dashboard, variable or time is unknown, Prometheus does not answer, or the page cannot be written.
    """
    from dashboards.preview.ask import TimeWindow  # noqa: PLC0415  (a training image has no such package)
    from dashboards.preview.page import render  # noqa: PLC0415

    boards = _boards(arguments.dashboard)
    chosen = _variables(arguments.var, boards)
    end_s = time.time()
    url = arguments.prometheus.rstrip("/")
    window = TimeWindow(url=url, begin_s=end_s - _seconds(arguments.last), end_s=end_s)
    try:
        page = render(boards, window, chosen)
    except MalformedError as error:
        raise ConfigError(f"{error}; use --prometheus URL") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url}: got {getattr(error, 'reason', error)}, expected the API of a Prometheus") from error
    try:
        arguments.out.write_text(page)
    except OSError as error:
        raise FileAccessError(f"{arguments.out}", error, expected="a file that can be written") from error
    print(arguments.out)
    return 0


def _boards(names: list[str] | None) -> list[dict[str, object]]:
    import dashboards  # noqa: PLC0415

    rendered = Path(dashboards.__file__).parent / "rendered"
    order = ("fleet", "run", "domains", "rank", "diagnoses", "self-monitoring")
    for name in names or []:
        if name not in order:
            raise ConfigError(f"--dashboard: got {name!r}, expected one of {', '.join(order)}")
    return [json.loads((rendered / f"{name}.json").read_text()) for name in names or order]


def _variables(given: list[str], boards: list[dict[str, object]]) -> dict[str, str]:
    known = {item["name"] for board in boards for item in board["templating"]["list"]}  # type: ignore[index]
    chosen = {}
    for item in given:
        name, mark, value = item.partition("=")
        if not mark or name not in known:
            raise ConfigError(f"--var: got {item!r}, expected NAME=VALUE with one of {', '.join(sorted(known))}")
        chosen[name] = value
    return chosen


def _seconds(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text)
    if match is None:
        raise ConfigError(f"--last: got {text!r}, expected a number with s, m, h or d")
    return int(match[1]) * _UNITS_S[match[2]]
