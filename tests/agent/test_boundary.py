"""No exception of ours reaches the caller, and the first one is said once."""

import sys

import pytest

from lockstep.agent.boundary import FailureGuard, describe, warn


def test_failure_is_counted_and_said_once(capsys):
    """The guarded call returns None, every failure is counted, one line names the first."""
    counts = []
    boundary = FailureGuard(counts.append)

    def fetch():
        raise ValueError("two\nlines")

    guarded = boundary.guard(fetch)
    assert guarded() is None
    assert guarded() is None
    assert counts == [1, 2]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lockstep: agent stopped after a failure in ")
    assert "ValueError: two lines; training goes on" in line


def test_failure_of_the_failure_path_does_not_escape(capsys):
    """Even what handles a failure may fail."""

    def broken(_count):
        raise OSError("gone")

    FailureGuard(broken).guard(lambda: 1 / 0)()
    assert "could not note its failure: OSError: gone" in capsys.readouterr().err


def test_result_passes_unchanged():
    """A call that does not fail is as if unguarded."""
    assert FailureGuard(lambda _: None).guard(lambda a, b: a + b)(2, 3) == 5


def test_interrupt_is_the_users():
    """KeyboardInterrupt inside a hook reaches the training script."""

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FailureGuard(lambda _: None).guard(interrupted)()


def test_nobody_listens(monkeypatch):
    """A closed or absent stderr is no failure."""
    monkeypatch.setattr(sys, "stderr", None)
    warn("anything")
    assert describe(ValueError("x" * 1000)) == ("ValueError: " + "x" * 1000)[:300]
