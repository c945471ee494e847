"""The names that profilers go through: ours while the agent is there, torch's again afterwards."""

import pytest
import torch

from lockstep.agent.capture.session import SESSION

pytestmark = pytest.mark.torch

NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")


@pytest.fixture
def around(request):
    """Hold what stood there before the agent, and check it after the agent is gone."""
    before = [getattr(torch.autograd.profiler, name) for name in NAMES]
    watched = request.getfixturevalue("watched")
    yield before
    watched.agent.remove()
    assert [getattr(torch.autograd.profiler, name) for name in NAMES] == before


def test_profiler_of_the_user_is_noted_from_its_preparation_to_its_end(around):
    """Also in the warm-up of a schedule, and whatever is emitted goes on unchanged."""
    assert all(
        getattr(torch.autograd.profiler, name).__wrapped__ is was for name, was in zip(NAMES, around, strict=True)
    )
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    theirs.prepare_trace()
    assert not SESSION.claim(lambda _why: None)
    theirs.start_trace()
    assert not SESSION.claim(lambda _why: None)
    torch.ones(2).sum()
    theirs.stop_trace()
    assert "aten::sum" in {event.key for event in theirs.key_averages()}
    assert SESSION.claim(lambda _why: None)
    SESSION.release()


def test_profiler_that_cannot_begin_leaves_the_session_free(around):
    """What raises reaches the user, and keeps no capture out."""
    with pytest.raises(TypeError):
        torch.autograd.profiler._enable_profiler("no configuration")
    assert SESSION.claim(lambda _why: None)
    SESSION.release()
