"""What holds for all tests."""

from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support import servers
from tests.support.users import shared_root

__all__ = ["shared_root"]

settings.register_profile("lockstep", deadline=None)  # seconds show what else the machine does, not what is right
settings.load_profile("lockstep")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test start servers only if it is marked so: those without a mark are the pure tier."""
    servers.may_start = item.get_closest_marker("servers") is not None
    return (yield)
