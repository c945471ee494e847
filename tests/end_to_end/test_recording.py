"""A real job with a real fault, recorded while it was watched: the replay reports what the API reported."""

import json
import subprocess
import sys

import pytest

from lockstep.cli.main import main

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

DECIDED = ("id", "run", "kind", "cause", "scope", "ranks", "domain", "onset_step", "detected_step")

# A process of its own: the embedded broker leaves its last sockets to the interpreter's end.
DEMONSTRATION = """
import asyncio, io, json, sys
from rich.console import Console
from lockstep.cli.demo.session import _Session
session = _Session("data", 1, 4, Console(file=io.StringIO()), sys.argv[1])
verdict = asyncio.run(session.run())
print(json.dumps({"correct": verdict.correct, "incidents": session.incidents}))
"""


def test_the_replay_of_a_recorded_demonstration_gives_the_same(tmp_path, capsys):
    """Four ranks, one of them slow to read its data: id, cause, rank, domain, onset and detection are the live ones.

    With the degrees given by hand in the place of the announced groups they are the same again.
    """
    command = [sys.executable, "-c", DEMONSTRATION, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stderr
    watched = json.loads(ended.stdout.splitlines()[-1])
    assert watched["correct"]
    assert main(["replay", str(tmp_path), "--json"]) == 0
    replayed = {line["id"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    live = {each["id"]: each for each in watched["incidents"]}
    assert live
    for iid, incident in live.items():
        assert {name: replayed[iid][name] for name in DECIDED} == {name: incident[name] for name in DECIDED}
        assert incident["evidence"][: len(replayed[iid]["evidence"])] == replayed[iid]["evidence"]
        assert incident["closed_step"] in (None, replayed[iid]["closed_step"])
        assert replayed[iid]["lost_device_seconds"] >= incident["lost_device_seconds"] - 1e-6
    assert main(["replay", str(tmp_path), "--domains", "dp=4", "--json"]) == 0
    by_hand = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ranks"] for line in by_hand] == [line["ranks"] for line in replayed.values()]
    assert [line["detected_step"] for line in by_hand] == [line["detected_step"] for line in replayed.values()]
