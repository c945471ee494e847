"""Pictures for the README, taken from a real run: every dashboard's preview and the coordinator's page of a run.

`make preview` writes them to docs/images. Eight gloo ranks train under the whole stack, and one turns slow after 7,000
steps; Chromium draws what `lockstep preview` makes of Prometheus four minutes later. The agent's share of the step time
is printed. With its defaults the run takes a quarter of an hour at steps of 84 ms.
"""

import argparse
import base64
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lockstep.cli.main import main as lockstep
from tests.support.browser import chromium
from tests.support.servers import get_json, wait_until
from tests.support.stack import Stack, full_stack

RUN, RANK = "gpt-small", 2
BOARDS = ("fleet", "run", "domains", "rank", "diagnoses", "self-monitoring")
WIDTH = 1360
QUALITY = 82
"""Of the WebP pictures: text stays sharp at half the bytes."""
_STARTED_SECONDS = 300
_FOUND_SECONDS = 300
_AFTER_SECONDS = 240  # so that the pictures show both, the healthy run and the slow rank
_STEP_SECONDS_MAX = 2.0
_DRAWN_SECONDS = 30
_IS_DRAWN = "['heat', 'charts'].every(name => document.getElementById(name)?.dataset.last)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, draw, and name each picture."""
    parser = argparse.ArgumentParser(description="Take the README's pictures from a real run.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "images")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument(
        "--healthy-steps", type=int, default=7000, help="before one rank turns slow (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        full_stack(Path(folder)) as stack,
        stack.job(RUN, "compute", RANK, fault_step=options.healthy_steps, ranks=options.ranks),
        chromium() as browser,
    ):
        begun_s = time.monotonic()
        stack.wait_step(RUN, 0, _STARTED_SECONDS)
        stack.wait_step(RUN, options.healthy_steps, options.healthy_steps * _STEP_SECONDS_MAX)
        wait_until(lambda: any(each["function"] for each in stack.incidents(RUN)), _FOUND_SECONDS, "a function")
        time.sleep(_AFTER_SECONDS)
        window = f"{math.ceil((time.monotonic() - begun_s) / 60)}m"
        for board in BOARDS:
            page = Path(folder) / f"{board}.html"
            options = ["--prometheus", stack.prometheus, "--dashboard", board, "--last", window]
            variables = [f"--var=run={RUN}"] if board not in ("fleet", "self-monitoring") else []
            variables += [f"--var=rank={RANK}"] if board == "rank" else []
            if lockstep(["preview", str(page), *options, *variables]):
                return 1
            _take(browser, page.as_uri(), out / f"dashboard-{board}.webp")
        _take(browser, f"{stack.coordinator}/runs/{RUN}", out / "coordinator-run.webp", ready=_IS_DRAWN)
        print(f"the agent's share of the step time, as the dashboard shows it: {agent_share(stack):.3%}")
    return 0


def agent_share(stack: Stack) -> float:
    """Return the share of the training's step time that the agent took, in the last minute."""
    expression = f'max(run:lockstep_agent_time_per_step_time:ratio_rate1m{{run="{RUN}"}})'
    answer = get_json(f"{stack.prometheus}/api/v1/query?query={quote(expression)}")
    assert answer is not None
    return float(answer["data"]["result"][0]["value"][1])


def _take(browser: Any, address: str, path: Path, ready: str = "true") -> None:
    """Write a picture of a page, however long it is, once the expression `ready` is true in it."""
    browser.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=900, deviceScaleFactor=1, mobile=False)
    browser.call("Page.navigate", url=address)
    browser.wait("Page.loadEventFired")
    wait_until(lambda: browser.ask(ready), _DRAWN_SECONDS, f"{address}: {ready}")
    size = browser.call("Page.getLayoutMetrics")["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": size["height"], "scale": 1}
    options = {"format": "webp", "quality": QUALITY, "captureBeyondViewport": True, "clip": clip}
    path.write_bytes(base64.b64decode(browser.call("Page.captureScreenshot", **options)["data"]))
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    sys.exit(main())
