"""`lockstep fuse`: lists and traces, tables and JSON."""

import json

import pytest

from lockstep.cli.main import main
from tests.trace.traces import RECORDING

LIST = {
    "gradients": [{"ready_seconds": ready, "bytes": size} for ready, size in ((0.01, 4e6), (0.012, 4e6), (0.02, 1e6))],
    "link": {"latency_seconds": 1e-3, "bytes_per_second": 1e9},
}


@pytest.fixture
def run_fuse(tmp_path, capsys):
    def run(document, *options):
        file = tmp_path / "gradients.json"
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        status = main(["fuse", str(file), *options])
        return status, capsys.readouterr()

    return run


def test_a_list_gives_all_five_ways(run_fuse):
    """Unfused, one bucket, fixed, greedy and exact, by hand: 5 ms for 4 MB, one after the other."""
    status, output = run_fuse(LIST, "--json")
    assert status == 0
    found = json.loads(output.out)
    ends = {plan["name"]: plan["end_seconds"] for plan in found["plans"]}
    assert ends["unfused"] == pytest.approx(max(0.010 + 0.005 + 0.005, 0.020) + 0.002)
    assert ends["one bucket"] == pytest.approx(0.020 + 0.010)
    assert ends["buckets of 25 MiB"] == ends["one bucket"]
    assert ends["exact"] == min(ends.values())
    assert "greedy (Hermes)" in ends
    assert sum(found["suggested_buckets_bytes"]) == pytest.approx(9e6)
    assert found["last_ready_seconds"] == 0.02
    assert found["measured_end_seconds"] is None


def test_a_person_reads_the_suggestion(run_fuse):
    """A line for each way, the buckets to use, and DDP's option."""
    status, output = run_fuse(LIST, "--bucket", "5e6")
    assert status == 0
    for name in ("unfused", "one bucket", "buckets of 4.77 MiB", "greedy (Hermes)", "exact"):
        assert any(line.startswith(name) for line in output.out.splitlines())
    assert "suggested: buckets of" in output.out
    assert "bucket_cap_mb=" in output.out
    assert "before the trace saw it" not in output.out


def test_a_trace_needs_a_link_that_it_cannot_show(capsys):
    """Where sizes are too alike the command states that; with latency and bandwidth given it answers."""
    assert main(["fuse", str(RECORDING)]) == 2
    assert "cannot distinguish latency from bandwidth" in capsys.readouterr().err
    assert main(["fuse", str(RECORDING), "--latency", "1e-4", "--bandwidth", "1e8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gradients"] == 5
    assert found["measured_end_seconds"] > found["last_ready_seconds"]
    assert found["link"]["source"] == "as given"


def test_an_option_replaces_half_of_the_link(run_fuse):
    """Latency as given, bandwidth as the list states."""
    _, output = run_fuse(LIST, "--latency", "0", "--json")
    link = json.loads(output.out)["link"]
    assert (link["latency_seconds"], link["bytes_per_second"]) == (0.0, 1e9)


@pytest.mark.parametrize(
    ("document", "options", "expected_text"),
    [
        ({"gradients": []}, [], "got 0 entries, expected a list of 1 to 2000"),
        ({"gradients": [{}] * 2001}, [], "got 2001 entries"),
        ({"gradients": "all"}, [], "got str"),
        ({"gradients": [{"ready_seconds": 1}]}, [], "gradients[0].bytes"),
        ({"gradients": [{"ready_seconds": -1, "bytes": 1}]}, [], "gradients[0].ready_seconds"),
        ({"gradients": [{"ready_seconds": True, "bytes": 1}]}, [], "got True"),
        ('{"gradients": [{"ready_seconds": NaN, "bytes": 1}]}', [], "got nan"),
        ({**LIST, "gradients": LIST["gradients"][::-1]}, [], "gradients[1].ready_seconds"),
        ({**LIST, "link": None}, [], "has none: give --latency and --bandwidth"),
        ({**LIST, "link": {"latency_seconds": 0, "bytes_per_second": 0}}, [], "expected a number above 0"),
        ({**LIST, "link": [1]}, [], "link.bytes_per_second"),
        (LIST, ["--bandwidth", "0"], "--bandwidth: got 0.0"),
        (LIST, ["--bandwidth", "nan"], "--bandwidth: got nan"),
        (LIST, ["--latency", "-1"], "--latency: got -1.0"),
        (LIST, ["--bucket", "0"], "--bucket: got 0.0"),
        ("[" * 100_000, [], "gradients.json"),
        ("{}", [], "traceEvents"),
        ({"ranks": [], "findings": []}, [], "got a summary, which has no single sums, expected the folder"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_what_is_wrong_is_named(run_fuse, document, options, expected_text):
    """A wrong list or option is one line on stderr and status 2."""
    status, output = run_fuse(document, *options)
    assert status == 2
    assert expected_text in output.err
    assert output.out == ""


def test_a_folder_of_an_analysis(tmp_path, capsys):
    """What `analyze --out` has written will do: the columns are the trace."""
    assert main(["analyze", "--processes", "1", "--out", str(tmp_path / "out"), str(RECORDING)]) == 0
    capsys.readouterr()
    options = ["--latency", "1e-4", "--bandwidth", "1e8", "--json"]
    found = []
    for path in (RECORDING, tmp_path / "out"):
        assert main(["fuse", str(path), *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_a_rank_of_a_folder(tmp_path, capsys):
    """A rank that is not there is named with those that are."""
    (tmp_path / "rank7.json.gz").write_bytes(RECORDING.read_bytes())
    assert main(["fuse", str(tmp_path), "--rank", "3", "--latency", "1e-4", "--bandwidth", "1e8"]) == 2
    assert "--rank: got 3, expected one of [2]" in capsys.readouterr().err


def test_a_path_that_is_not_there(tmp_path, capsys):
    """It is named."""
    assert main(["fuse", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
