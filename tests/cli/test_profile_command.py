"""`lockstep profile` against the coordinator's own application."""

import asyncio
import json

import pytest

from coordinator.decide import events as ev
from lockstep.cli.main import main
from lockstep.cli.profile_command import parse_ranks
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.finding import Advice
from lockstep.contracts.messages import CaptureResult, TraceSummary
from lockstep.diagnosis.verdict import Diagnosis
from tests.coordinator.conftest import until
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_runs import NOW, play
from tests.coordinator.web import TOKEN, Site

DIAGNOSIS = Diagnosis(
    function="train.py(9): forward",
    operator="",
    path=[],
    evidence=["forward takes 300.0 ms a step on rank 1"],
    advice=[Advice(suggestion="shorten it", how="so", predicted_gain_ratio=0.25, source="a table")],
    confidence="high",
)


@pytest.fixture
async def site(tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    async with Site(token_file=str(token)) as made:
        made.token_path = token
        play(made.runs, generate(Scenario(degrees="dp=4", steps=80)), 0, 50)
        yield made


def command(site, *arguments):
    token = "--token-file", str(site.token_path)
    return ["profile", "job", "--coordinator", str(site.client.make_url("/")).rstrip("/"), *token, *arguments]


async def answer(site, *, error=""):
    """Play the ranks of the request that comes, and the diagnosis that follows."""
    captures = site.runs.by_name["job"].machine.captures
    await until(lambda: captures.current is not None)
    request = captures.current.request_id
    for rank in captures.current.ranks:
        result = CaptureResult(run="job", node="n0", rank=rank, request_id=request, state="done", cost_ns=1_500_000_000)
        summary = TraceSummary(
            run="job", node="n0", rank=rank, request_id=request, window_ns=1, steps=2, trace_bytes=1, event_count=1,
            tree=[], error=error,
        )  # fmt: skip
        site.runs.take(result, NOW)
        site.runs.take(summary, NOW)
    diagnosed = ev.DiagnosedEvent(
        unix_s=NOW, cause_id="d", incident_id="", request_id=request, asked=DIAGNOSIS, function="", operator="",
        evidence=(), advice=(), confidence="",
    )  # fmt: skip
    site.runs.feed("job", diagnosed)


async def test_progress_cost_and_findings_of_the_traces(site, capsys):
    """Each rank's state as it changes, then the cost to training, the function, its evidence and the advice."""
    end, _ = await asyncio.gather(
        asyncio.to_thread(main, command(site, "--ranks", "1,2-3", "--steps", "2")), answer(site)
    )
    output = capsys.readouterr().out
    assert end == 0
    assert "2 steps from step" in output
    assert all(f"rank {rank} summarised" in output for rank in (1, 2, 3))
    assert "cost to training: 4.50 s over 3 ranks" in output
    assert "train.py(9): forward (high confidence)" in output
    assert "shorten it (predicted gain 25%)" in output


async def test_ranks_that_deliver_nothing_are_a_failure(site, capsys):
    """The reason of each is printed, and the exit status shows it."""
    end, _ = await asyncio.gather(
        asyncio.to_thread(main, command(site, "--ranks", "1")), answer(site, error="not a trace")
    )
    out, err = capsys.readouterr()
    assert end == 1
    assert "rank 1 refused: not a trace" in out
    assert "no rank delivered" in err


async def test_json_is_one_object(site, capsys):
    """For scripts: no progress, the whole end; or, without waiting, what was accepted."""
    end, _ = await asyncio.gather(asyncio.to_thread(main, command(site, "--ranks", "1", "--json")), answer(site))
    report = json.loads(capsys.readouterr().out)
    assert (end, report["ranks"][0]["state"], report["diagnosis"]["function"]) == (0, "summarised", DIAGNOSIS.function)
    assert await asyncio.to_thread(main, command(site, "--ranks", "1", "--json", "--no-wait")) == 0
    assert json.loads(capsys.readouterr().out)["request_id"] > report["request_id"]


async def test_refusals_name_their_reason(site, capsys):
    """A rank that is not there, a token that is wrong, a coordinator that is not there: one line, status 2."""
    site.token_path.write_text("wrong")
    for arguments, words in (
        (command(site, "--ranks", "1"), "Authorization"),
        (
            ["profile", "job", "--ranks", "1", "--coordinator", "http://127.0.0.1:9"],
            "coordinator at http://127.0.0.1:9",
        ),
        (["profile", "job", "--ranks", "x"], "--ranks: got 'x'"),
        (["profile", "job", "--ranks", "1", "--token-file", "/nonexistent"], "--token-file /nonexistent"),
    ):
        assert await asyncio.to_thread(main, arguments) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(("text", "ranks"), [("3", [3]), ("0, 8-10,9", [0, 8, 9, 10])])
def test_lists_of_ranks(text, ranks):
    """Ranks and ranges, each rank once."""
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "1,", "-1", "5-2", "0-64", "0-999999999999", "1,2,a", "0-40,50-80"])
def test_lists_that_are_none(text):
    """What cannot be a list of up to 64 ranks is named."""
    with pytest.raises(ConfigError, match="--ranks"):
        parse_ranks(text)
