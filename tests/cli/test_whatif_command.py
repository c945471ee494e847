"""`lockstep whatif`: its options, its table and its JSON."""

import json
import sys

import pytest

from lockstep.cli.main import main

SPEC = """\
name: few
model: {type: gpt, layers: 2, hidden: 256, heads: 4, sequence: 256, vocabulary: 1024}
batch: 8
strategy: {tp: 2, dp: 2, micro_batches: 2}
cluster:
  device: {name: A100}
  levels: [{name: NVLink, fanout: 4, bytes_per_second: 300e9}]
  health: {links: {NVLink/0: 0.1}, ranks: {3: 0.5}}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return str(file)


def run_whatif(capsys, *arguments):
    assert main(["whatif", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_options_every_sick_element_is_healed(path, capsys):
    """A person sees now, each repair with its gain, and all together first."""
    assert main(["whatif", path]) == 0
    output = capsys.readouterr()
    lines = [line.split() for line in output.out.splitlines()]
    assert ["now"] in [line[:1] for line in lines]
    assert [line[1:3] for line in lines if line[:1] == ["1"]] == [["heal", "all"]]
    assert all(line[-1].startswith(("+", "-")) and line[-1].endswith("%") for line in lines if line[1:2] == ["heal"])
    assert "not calibrated" in output.out
    assert output.err == ""  # no bar where there is no terminal


def test_json_has_changes_and_gains(path, capsys):
    """Alternatives in order, each with what is changed, its gain, and the forecast by simulate's keys."""
    found = run_whatif(capsys, path)
    assert main(["simulate", path, "--json"]) == 0
    assert found["now"] == json.loads(capsys.readouterr().out)
    assert found["alternatives"][0]["heal"] == ["NVLink/0", "rank/3"]
    times = [each["step_seconds"] for each in found["alternatives"]]
    assert times == sorted(times)
    now = found["now"]["step_seconds"]
    assert [each["gain_ratio"] for each in found["alternatives"]] == pytest.approx([1 - each / now for each in times])
    assert found["refused"] == []
    assert found["all_tried"] is True


def test_options_combine_and_commas_separate(path, capsys):
    """Two heals by comma and two batches are four alternatives; heals given twice are one."""
    four = run_whatif(capsys, path, "--heal", "rank/3,NVLink/0", "--set", "batch=8,16")
    names = {each["name"] for each in four["alternatives"]}
    assert names == {f"heal {what}, batch={batch}" for what in ("rank/3", "NVLink/0") for batch in (8, 16)}
    (both,) = run_whatif(capsys, path, "--heal", "rank/3", "--heal", "NVLink/0")["alternatives"]
    (everything,) = run_whatif(capsys, path, "--heal", "all")["alternatives"]
    assert both["heal"] == ["rank/3", "NVLink/0"]
    assert both["step_seconds"] == everything["step_seconds"]
    each = run_whatif(capsys, path, "--heal", "each", "--set", "batch=16")["alternatives"]
    assert len(each) == 3


def test_degrees_take_the_ranks_that_are_left(path, capsys):
    """Where dp is not named it follows; again given, each is an alternative; what cannot be states why."""
    found = run_whatif(capsys, path, "--degrees", "tp=4", "--degrees", "tp=1,pp=2", "--degrees", "tp=1,dp=4,pp=4")
    sets = {each["name"]: each["set"] for each in found["alternatives"]}
    assert sets["tp=4"]["strategy.dp"] == 1
    assert sets["tp=1,pp=2"]["strategy.dp"] == 2
    (refused,) = found["refused"]
    assert refused["name"] == "tp=1,dp=4,pp=4"
    assert "expected at most the 4 devices" in refused["why"]
    assert main(["whatif", path, "--degrees", "tp=1,dp=4,pp=4"]) == 0
    assert "impossible: strategy" in capsys.readouterr().out


def test_a_field_of_another_model_needs_that_model(path, capsys):
    """What is no field of the job's model may be one of the model that another option names."""
    options = ("--set", "model.type=gpt,llama", "--set", "model.ffn=256")
    found = run_whatif(capsys, path, *options)
    assert [each["name"] for each in found["alternatives"]] == ["model.type=llama, model.ffn=256"]
    assert [each["name"] for each in found["refused"]] == ["model.type=gpt, model.ffn=256"]


def test_a_search_lists_spreads(path, capsys):
    """It finds spreads of the same ranks, and states when it did not try all."""
    found = run_whatif(capsys, path, "--search")
    assert found["all_tried"] is True
    assert len(found["alternatives"]) == 5  # the best of each way to divide four ranks
    assert main(["whatif", path, "--search", "--limit", "3"]) == 0
    assert "not all layouts were tried within 3 layouts and 120 s" in capsys.readouterr().out


def test_what_a_run_costs(path, capsys):
    """Device hours of the tokens of a run, and money by the price of one; four ranks for every second of a step."""
    found = run_whatif(capsys, path, "--set", "batch=16", "--tokens", "2e12", "--price", "2.5")
    now = found["now"]
    hours = 2e12 / (8 * 256) * now["step_seconds"] * 4 / 3600
    assert now["cost"] == {"tokens": 2e12, "device_hours": pytest.approx(hours), "price": pytest.approx(2.5 * hours)}
    assert found["alternatives"][0]["cost"]["device_hours"] < now["cost"]["device_hours"]
    assert main(["whatif", path, "--set", "batch=16", "--price", "2"]) == 0
    assert "cost: device hours of a billion tokens, and their price at 2 an hour" in capsys.readouterr().out
    assert main(["simulate", path, "--tokens", "2e12"]) == 0
    assert "device hours of 2e+12 tokens" in capsys.readouterr().out
    assert main(["whatif", path, "--price", "-1"]) == 2
    assert "--price: got -1.0, expected a number above 0" in capsys.readouterr().err


def test_a_terminal_sees_a_bar(path, capsys, monkeypatch):
    """On a terminal progress goes to stderr, and standard output stays clean."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    found = run_whatif(capsys, path)
    assert len(found["alternatives"]) == 3


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        (["--heal", "rank/2"], "expected 'rank/3'"),
        (["--heal", "NVLink/9"], "expected 'NVLink/0'"),
        (["--set", "batch"], "expected PATH=VALUE"),
        (["--set", "batch=[1"], "--set"),
        (["--set", "strategy.micro_batchs=2,4"], "got the unknown key 'micro_batchs', expected 'micro_batches'"),
        (["--degrees", "dq=2"], "got 'dq=2', expected one of tp, cp"),
        (["--degrees", "tp=3"], "without dp, expected a divisor of 4"),
        (["--degrees", "tp=0"], "without dp"),
        (["--search", "--limit", "0"], "--limit: got 0"),
        (["--set", "batch=" + ",".join(["8"] * 200), "--set", "name=" + ",".join(["a"] * 200)], "got 40000, expected"),
    ],
)
def test_a_wrong_option_is_named(path, options, expected_text, capsys):
    """One line on stderr, status 2, nothing on standard output."""
    assert main(["whatif", path, *options]) == 2
    output = capsys.readouterr()
    assert expected_text in output.err
    assert output.out == ""


def test_a_healthy_job_needs_a_question(path, tmp_path, capsys):
    """With nothing sick and nothing asked there is nothing to print."""
    file = tmp_path / "healthy.yaml"
    file.write_text(SPEC[: SPEC.index("  health")])
    assert main(["whatif", str(file)]) == 2
    assert "expected one of --heal, --set, --degrees, --search" in capsys.readouterr().err
