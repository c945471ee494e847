"""`lockstep profile RUN --ranks 0,8-11`: requests a capture from a coordinator, shows progress, prints the result."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from lockstep.contracts.errors import ConfigError, FileAccessError, LocalError, MalformedError
from lockstep.contracts.json_text import answered_object
from lockstep.contracts.limits import PROFILE_RANKS_MAX

if TYPE_CHECKING:
    import aiohttp

DEFAULT_URL = "http://127.0.0.1:9856"
_POLL_S = 0.5
_REFUSAL_MAX = 500  # characters
_TIMEOUT_S = 30.0  # for one request to the coordinator
_FAILED = 1


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "profile",
        help="capture some steps of some ranks of a running job",
        description="Asks the coordinator to profile the next steps of some ranks, shows the progress of each rank, "
        "and prints what their traces show. Training goes on. The output states what the capture cost.",
    )
    parser.add_argument("run", metavar="RUN", help="name of the run")
    parser.add_argument("--ranks", required=True, metavar="LIST", help="ranks and ranges of them, e.g. 0,8-11")
    parser.add_argument("--steps", type=int, metavar="N", help="steps to capture (default: the coordinator's)")
    parser.add_argument(
        "--shapes",
        action="store_true",
        help="record input shapes of operators, which rooflines need; costs training more",
    )
    parser.add_argument(
        "--coordinator",
        metavar="URL",
        default=DEFAULT_URL,
        help=f"default: {DEFAULT_URL}",
    )
    parser.add_argument("--token-file", metavar="FILE", help="file with the coordinator's API token")
    parser.add_argument("--no-wait", action="store_true", help="exit when the coordinator has accepted the request")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, and no progress")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Request, wait and print; return 1 if no rank delivered.

    Raises
    ------
    LockstepError
        An argument is wrong, the coordinator cannot be reached, or it refuses.
    """
    check_url(arguments.coordinator)
    ranks = parse_ranks(arguments.ranks)
    token = read_token(arguments.token_file)
    return asyncio.run(_profile(arguments, ranks, token))


def parse_ranks(text: str) -> list[int]:
    """Return the ranks of a list like `0,8-11`.

    Raises
    ------
    ConfigError
        It is not such a list, or names more ranks than a capture may have.
    """
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 2 * len("10000000"):
            raise ConfigError(f"--ranks: got {part!r:.50}, expected a rank or a range like 8-11")
        begin, end = int(first), int(last) if dash else int(first)
        if not begin <= end < begin + PROFILE_RANKS_MAX:
            raise ConfigError(f"--ranks: got {part!r:.50}, expected at most {PROFILE_RANKS_MAX} ascending ranks")
        ranks += range(begin, end + 1)
    ranks = list(dict.fromkeys(ranks))
    if len(ranks) > PROFILE_RANKS_MAX:
        raise ConfigError(f"--ranks: got {len(ranks)} ranks, expected at most {PROFILE_RANKS_MAX}")
    return ranks


def read_token(path: str | None) -> str:
    """Return the token in a file, empty without a file.

    Raises
    ------
    ConfigError
        The file cannot be read.
    """
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"--token-file {path}", error) from None


def check_url(url: str, option: str = "--coordinator") -> None:
    """Refuse an address that cannot be a coordinator's.

    Raises
    ------
    ConfigError
        It has no host, or is not an HTTP address.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # an unclosed bracket
        is_url = False
    if not is_url:
        raise ConfigError(f"{option}: got {url!r:.100}, expected a URL like {DEFAULT_URL}")


def unanswered(url: str, error: Exception) -> LocalError:
    """Return the error for a request without a usable response: what came, and where to look for a coordinator."""
    if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
        what = "no coordinator is running there; use --coordinator URL"
    elif isinstance(error, KeyError):
        what = f"got an answer without {error}, expected one of a coordinator; use --coordinator URL"
    elif isinstance(error, (LookupError, TypeError, AttributeError)):
        what = f"got an answer of another form ({error}), expected one of a coordinator; use --coordinator URL"
    else:
        what = "no response in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return LocalError(f"coordinator at {url}: {what}")


async def _profile(arguments: argparse.Namespace, ranks: list[int], token: str) -> int:
    import aiohttp  # noqa: PLC0415  (services only)

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    path = f"/api/v1/runs/{quote(arguments.run, safe='')}/profile"
    body: dict[str, Any] = {"ranks": ranks}
    if arguments.shapes:
        body["shapes"] = True
    if arguments.steps is not None:
        body["steps"] = arguments.steps
    try:
        async with aiohttp.ClientSession(arguments.coordinator, headers=headers, timeout=timeout) as client:
            asked = await request_json(client, "POST", path, body)
            if arguments.no_wait:
                print(json.dumps(asked) if arguments.json else _asked_text(asked))
                return 0
            if not arguments.json:
                print(_asked_text(asked), flush=True)
            end = await _wait(client, path, asked["request_id"], quiet=arguments.json)
    except (aiohttp.ClientError, TimeoutError, *OTHER_FORM) as error:
        raise unanswered(arguments.coordinator, error) from error
    print(json.dumps(end) if arguments.json else _end_text(end))
    return 0 if _delivered(end) else _FAILED


OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""What a response raises that lacks a part, or has a part of the wrong type."""


async def request_json(client: "aiohttp.ClientSession", method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Return the JSON object of the coordinator's response.

    Raises
    ------
    LocalError
        It refuses; the message is its own.
    """
    async with client.request(method, path, json=body) as response:
        return accepted(response, await response.read())


def accepted(response: "aiohttp.ClientResponse", body: bytes) -> dict[str, Any]:
    """Return the JSON object of a coordinator's response.

    Raises
    ------
    LocalError
        It refuses, with a message of its own, or it is not a coordinator.
    """
    try:
        answer = answered_object(body, where=str(response.url), expected="a JSON object of a coordinator")
    except MalformedError as error:
        raise LocalError(f"{error}; use --coordinator URL") from error
    if not response.ok:
        refusal = str(answer.get("error", response.reason))[:_REFUSAL_MAX]
        raise LocalError(f"coordinator at {response.url.origin()}: {refusal}")
    return answer


async def _wait(client: "aiohttp.ClientSession", path: str, request_id: int, *, quiet: bool) -> dict[str, Any]:
    """Poll until the capture is over and diagnosed, and print each change."""
    reply: dict[int, str] = {}
    while True:
        answer = await request_json(client, "GET", path)
        known = [each for each in [answer["running"], *answer["past"]] if each and each["request_id"] == request_id]
        if not known:
            raise LocalError(
                f"request {request_id} is no longer known: the coordinator restarted, or later requests replaced it"
            )
        capture: dict[str, Any] = known[0]
        for rank in capture["ranks"] if not quiet else ():
            if reply.get(rank["rank"]) != rank["state"]:
                reply[rank["rank"]] = rank["state"]
                reason = f": {rank['reason']}" if rank["reason"] else ""
                print(f"rank {rank['rank']} {rank['state']}{reason}", flush=True)
        if capture["ended_unix_seconds"] is not None and (capture["diagnosis"] is not None or not _delivered(capture)):
            return capture
        await asyncio.sleep(_POLL_S)


def _delivered(capture: dict[str, Any]) -> bool:
    return any(rank["state"] == "summarised" for rank in capture["ranks"])


def _asked_text(asked: dict[str, Any]) -> str:
    return f"request {asked['request_id']}: {asked['steps']} steps from step {asked['first_step']}"


def _end_text(capture: dict[str, Any]) -> str:
    lines = [f"cost to training: {capture['cost_seconds']:.2f} s over {len(capture['ranks'])} ranks"]
    diagnosis = capture["diagnosis"]
    if not _delivered(capture):
        print("lockstep: no rank delivered a trace", file=sys.stderr)
        return lines[0]
    lines.append(f"{diagnosis['function']} ({diagnosis['confidence']} confidence)")
    lines += [f"  {sentence}" for sentence in diagnosis["evidence"]]
    for advice in diagnosis["advice"]:
        gain = advice["predicted_gain_ratio"]
        lines.append(f"- {advice['suggestion']}" + (f" (predicted gain {gain:.0%})" if gain else ""))
        lines.append(f"  {advice['how']}")
    return "\n".join(lines)
