"""`lockstep doctor`."""

import json

import pytest

from lockstep.cli.main import main
from tests.doctor.test_checks import HEALTHY

FACTS = HEALTHY | {"facts_version": 1, "versions": {"torch": "2.9"}}


def write(path, **changed):
    path.write_text(json.dumps(FACTS | changed))
    return str(path)


def test_this_node_is_evaluated(capsys):
    """Every check has its line; the status shows whether one warns."""
    end = main(["doctor"])
    output = capsys.readouterr().out
    assert "shared memory: " in output
    assert end == int("WARN" in output or "FAIL" in output)


def test_facts_travel_and_are_compared(tmp_path, capsys):
    """A node writes its facts; two healthy nodes with different versions are a failure that names both."""
    assert main(["doctor", "--facts", str(tmp_path / "own.json")]) == 0
    assert json.loads((tmp_path / "own.json").read_text())["facts_version"] == 1
    one, other = write(tmp_path / "a"), write(tmp_path / "b", host="n1", versions={"torch": "2.8"})
    assert main(["doctor", one]) == 0
    assert main(["doctor", one, other]) == 1
    output = capsys.readouterr().out
    assert "FAIL version of torch: 2.9 on 1 nodes, 2.8 on n1" in output
    assert "n0: nothing found" in output


def test_json_has_all_of_it(tmp_path, capsys):
    """For scripts: all checks of every node, worst first."""
    slow = write(tmp_path / "a", environment={"NCCL_DEBUG": "INFO"})
    assert main(["doctor", "--json", slow]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["nodes"]["n0"][0]["name"] == "log level"
    assert report["between_nodes"] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON written by --facts"),
        ("[]", "got list"),
        ('{"host": "a", "facts_version": 9}', "facts_version"),
        ('{"host": "' + "a" * (2 << 20) + '"}', "got a larger file"),
    ],
)
def test_files_that_hold_no_facts_are_named(tmp_path, capsys, text, words):
    """One line with the file's name, status 2."""
    path = tmp_path / "facts.json"
    path.write_text(text)
    assert main(["doctor", str(path)]) == 2
    output = capsys.readouterr().err
    assert words in output
    assert str(path) in output


def test_a_file_that_is_not_there_is_named(capsys):
    """As every mistake of the command line."""
    assert main(["doctor", "/nonexistent"]) == 2
    assert "facts file /nonexistent" in capsys.readouterr().err
    assert main(["doctor", "--facts", "/nonexistent/a"]) == 2
    assert "--facts /nonexistent/a" in capsys.readouterr().err
