"""What is compared is what was done: parts add up, failures are reported, missed targets are too."""

import subprocess
import sys

import pytest

from benchmarks import trace_bench
from benchmarks.trace_bench import (
    ALL_WORK,
    CARRIED,
    PEER,
    PEER_WORK,
    Cost,
    Targets,
    best,
    install_peer,
    main,
    measured,
    report,
    side_by_side,
)
from benchmarks.trace_parts import Part, parts_of
from benchmarks.traces_made import write_repeated
from lockstep.trace.kineto.load import load_trace


def _cost(load_s, peak_mb, *more, failure=""):
    return Cost([Part("imports", 1.0, 40.0), Part("load", load_s, peak_mb), *more], failure)


def _finished(load_s, peak_mb):
    return _cost(load_s, peak_mb, Part("breakdown", 0.0, peak_mb))


@pytest.mark.parametrize("work", ["peer", "all"])
def test_every_part_of_ours_is_printed(work, tmp_path):
    """In order, on a trace that the repository carries, made longer; with CPU time and a peak that only grows."""
    write_repeated(CARRIED, tmp_path / "trace.json", 1_000_000)
    cost = measured([sys.executable, "-m", "benchmarks.trace_ours", work, str(tmp_path / "trace.json")])
    analyses = ["breakdown", "critical path"] if work == "peer" else ["analysis"]
    assert ([each.part for each in cost.parts], cost.failure) == (["imports", "load", *analyses], "")
    assert cost.cpu_s == pytest.approx(sum(each.cpu_s for each in cost.parts[1:]))
    assert all(each.cpu_s > 0 for each in cost.parts)
    assert cost.peak_mb == cost.parts[-1].peak_mb >= cost.parts[0].peak_mb > 10


def test_copies_of_a_trace_follow_each_other(tmp_path):
    """All events are there as often as copies, each copy after the one before."""
    once, thrice = tmp_path / "once.json", tmp_path / "thrice.json"
    assert write_repeated(CARRIED, once, 1) == 1
    assert write_repeated(CARRIED, thrice, 2 * once.stat().st_size) == 3
    one, three = load_trace(once), load_trace(thrice)
    assert (len(three), three.dropped_count) == (3 * len(one), 0)
    assert three.start_ns.max() - three.start_ns.min() > 3 * (one.start_ns.max() - one.start_ns.min())
    assert len(set(three.correlation.tolist())) == 3 * (len(set(one.correlation.tolist())) - 1) + 1


def test_parts_are_read_whatever_else_is_printed():
    """Peers print warnings and tables of their own."""
    text = 'x\n{"part": "load", "cpu_s": 1.5, "peak_mb": 70.0}\n{"other": 1}\n'
    assert parts_of(text) == [Part("load", 1.5, 70.0)]


def test_a_process_that_fails_keeps_what_it_did():
    """Its last words state why."""
    line = '{"part": "imports", "cpu_s": 0.1, "peak_mb": 20.0}'
    cost = measured([sys.executable, "-c", f"print({line!r}); raise ValueError('no step')"])
    assert (len(cost.parts), cost.failure, cost.has_loaded) == (1, "ValueError: no step", False)


def test_the_fastest_run_counts_of_those_that_got_furthest():
    """One that fails early is fast for no good reason."""
    slow, fast, failed = _finished(3.0, 90.0), _finished(2.0, 95.0), _cost(1.0, 90.0, failure="killed")
    assert best([slow, fast, failed]) is fast


@pytest.mark.parametrize(
    ("ours", "targets", "met"),
    [
        ((0.5, 80.0), Targets(10, 4), True),
        ((0.6, 80.0), Targets(10, 4), False),
        ((0.5, 90.0), Targets(10, 4), False),
        ((0.6, 90.0), Targets(None, None), True),
    ],
)
def test_a_missed_target_is_printed(ours, targets, met, capsys):
    """By CPU seconds without imports, and by peak; a size without targets misses none."""
    costs = {PEER: _finished(5.0, 320.0), PEER_WORK: _finished(0.1, 10.0), ALL_WORK: _finished(*ours)}
    assert report(costs, 50_000_000, targets) is met
    printed = capsys.readouterr().out
    assert ("MISSED" in printed) is not met
    assert "500" in printed  # MB/s: 50 MB in 0.1 s


def test_a_peer_that_fails_late_is_compared_and_reported(capsys):
    """Its critical path fails on some traces: what it did counts."""
    costs = {PEER: _finished(5.0, 320.0)._replace(failure="AssertionError"), PEER_WORK: _finished(0.1, 10.0)}
    assert report({**costs, ALL_WORK: _finished(0.1, 10.0)}, 1, Targets(10, 4))
    assert "did not finish: AssertionError" in capsys.readouterr().out


def test_a_peer_that_cannot_load_is_no_comparison(tmp_path, monkeypatch, capsys):
    """Status 2 and its reason, rather than a ratio to nothing; the trace is removed."""
    failed = _cost(1.0, 90.0, failure="KeyError: 'stream'")
    costs = {PEER: failed, PEER_WORK: _finished(1.0, 1.0), ALL_WORK: _finished(1.0, 1.0)}
    monkeypatch.setattr(trace_bench, "compare", lambda *_: costs)
    assert side_by_side(CARRIED, 0, tmp_path, tmp_path, packed=True, limit_s=1) == 2
    assert "KeyError: 'stream'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_process_at_its_limit_is_ended_and_what_it_cost_is_known():
    """What it had reported is kept, the rest of its CPU time is a part without an end; memory is counted as well."""
    line = '{"part": "imports", "cpu_s": 0.01, "peak_mb": 1.0}'
    program = f"print({line!r}, flush=True); held = bytearray(60_000_000)\nwhile True: pass"
    cost = measured([sys.executable, "-c", program], limit_s=1)
    assert [each.part for each in cost.parts] == ["imports", "not finished"]
    assert (cost.is_bound, cost.failure) == (True, "ended at its limit of 1 s")
    assert cost.cpu_s > 0.5  # not 1: the kernel counts towards a limit in ticks, whole ones even on a shared core
    assert cost.peak_mb > 60


def test_a_process_within_its_limit_is_measured_as_without():
    """Failures stay failures."""
    cost = measured([sys.executable, "-c", "raise ValueError('no step')"], limit_s=60)
    assert (cost.parts, cost.failure, cost.is_bound) == ([], "ValueError: no step", False)


@pytest.mark.parametrize(("load_s", "status"), [(5.0, 0), (4.9, 1)])
def test_a_peer_that_was_ended_is_compared_by_what_it_had_cost(load_s, status, tmp_path, monkeypatch, capsys):
    """Its figures and ratios are reported as lower bounds and held to the targets as they are."""
    peer = Cost([Part("imports", 1.0, 40.0), Part("not finished", load_s, 320.0)], "ended", is_bound=True)
    costs = {PEER: peer, PEER_WORK: _finished(0.1, 10.0), ALL_WORK: _finished(0.5, 80.0)}
    monkeypatch.setattr(trace_bench, "compare", lambda *_: costs)
    monkeypatch.setitem(trace_bench.TARGETS, 0, Targets(10, 4))
    assert side_by_side(CARRIED, 0, tmp_path, tmp_path, packed=False, limit_s=1) == status
    printed = capsys.readouterr().out
    for shown in (f">{load_s:.2f}", ">320", f">{load_s / 0.5:.1f}", ">4.0", "did not finish: ended"):
        assert shown in printed


def test_a_peer_that_cannot_be_installed_is_status_2(tmp_path, capsys):
    """With its name, the folder and the installer's last words; nothing is compared."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "venv"
    with pytest.raises(SystemExit, match="2"):
        install_peer(folder)
    stderr_text = capsys.readouterr().err
    assert PEER in stderr_text
    assert str(folder) in stderr_text
    assert main(["--alone", "--venv", str(folder)]) == 2


def test_an_installed_peer_is_taken_as_it_is(tmp_path, monkeypatch):
    """No second installation, unless it is another version."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    asked = []

    def answer(*arguments):
        asked.append(arguments)
        return subprocess.CompletedProcess(arguments, 0, PEER.partition("==")[2] + "\n", "")

    monkeypatch.setattr(trace_bench, "_run", answer)
    assert install_peer(tmp_path) == python
    assert len(asked) == 1
