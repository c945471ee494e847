"""A training whose steps no hook sees reports it once, with what to call."""

import pytest
import torch

import lockstep
from exporter.shared_directory import prepare_root
from lockstep.agent import stepless, unwatched
from lockstep.contracts.paths import unwatched_directory

pytestmark = pytest.mark.torch


@pytest.fixture
def impatient(tmp_path, monkeypatch, rank_environment):
    """Have the agent wait for no time, and a node whose exporter prepared its directories; return those of marks."""
    prepare_root(tmp_path)
    monkeypatch.setattr(stepless, "PATIENCE_NS", 0)
    unwatched._marked.clear()
    yield unwatched_directory(tmp_path)
    unwatched.withdraw()


def backwards(count, after=lambda: None):
    weight = torch.ones(4, requires_grad=True)
    for _ in range(count):
        (weight * weight).sum().backward()
        with torch.no_grad():
            weight -= 0.01 * weight.grad
            weight.grad = None
        after()


def reasons(directory):
    return [path.read_text().splitlines()[0] for path in directory.iterdir()]


def test_steps_by_hand_are_reported_once(impatient, watched, capsys):
    """The line and the mark name what is missing and what to call."""
    watched.agent.marks.poll_interval_ns = 0
    backwards(30 * stepless.BACKWARDS_MIN)
    assert capsys.readouterr().err.count("call lockstep.step_end()") == 1
    assert reasons(impatient) == ["steps"]
    assert watched.agent.alive


def test_a_call_where_steps_end_withdraws_it(impatient, watched):
    """Steps are seen from the first call on, and the process is watched."""
    watched.agent.marks.poll_interval_ns = 0
    backwards(30 * stepless.BACKWARDS_MIN)
    assert os_locks() == 1
    backwards(200, lockstep.step_end)
    assert os_locks() == 0
    assert watched.ring().step_count >= 200


def test_a_training_with_an_optimizer_is_not_reported(impatient, watched, capsys):
    """Nor is a step of many backwards."""
    watched.agent.marks.poll_interval_ns = 0
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(3):
        for _ in range(stepless.BACKWARDS_MIN - 1):
            weight.sum().backward()
        optimizer.step()
    assert reasons(impatient) == []
    assert "step_end" not in capsys.readouterr().err


def os_locks():
    return sum(file >= 0 for file in unwatched._marked.values())
