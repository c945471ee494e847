"""No exception of ours reaches the caller, and the first one is reported once."""

import sys

import pytest

from lockstep.agent.boundary import FailureGuard, describe, warn


def test_failure_is_counted_and_printed_once(capsys):
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


def test_no_one_listens(monkeypatch):
    """A closed or absent stderr is no failure."""
    monkeypatch.setattr(sys, "stderr", None)
    warn("anything")
    assert describe(ValueError("x" * 1000)) == ("ValueError: " + "x" * 1000)[:300]


class UnprintableError(Exception):
    """An exception whose text cannot be made."""

    def __str__(self):
        """Fail."""
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("odd"), UnprintableError()])
def test_contained_failure_is_no_failure_of_the_agent(capsys, error):
    """It costs its own result only, each time, and one line names what is not known; results pass unchanged."""
    counts = []
    boundary = FailureGuard(counts.append)

    def read(batch):
        if batch is None:
            raise error
        return batch

    contained = boundary.contain(read, "tokens of a batch")
    assert [contained(None), contained(7), contained(None)] == [None, 7, None]
    assert (counts, boundary.failures) == ([], 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lockstep: tokens of a batch: not known, reading failed: {type(error).__name__}: ")


def test_guarded_failure_without_a_text_is_noted(capsys):
    """An exception whose text cannot be made reaches training no more than any other."""

    def fetch():
        raise UnprintableError

    assert FailureGuard(lambda _: None).guard(fetch)() is None
    assert "agent stopped after a failure in " in capsys.readouterr().err
