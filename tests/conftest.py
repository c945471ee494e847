"""What holds for all tests."""

import gc
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.run import MARKS, names_mark
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose file does not name its marks: the part of a mark runs the files that name it.

    Files with a test that sets a limit of its own come first. They take longest: the processes of a part then end together.
    """
    for item in items:
        for mark in MARKS & {mark.name for mark in item.iter_markers()}:
            if not names_mark(item.path, mark):
                raise pytest.UsageError(
                    f"{item.nodeid} is marked {mark}: its file or conftest.py must name mark.{mark}"
                )
    longest = {item.path for item in items if item.get_closest_marker("timeout")}
    items.sort(key=lambda item: item.path not in longest)


def pytest_collection_finish() -> None:
    """Leave what collection has made out of later garbage collections.

    It lasts as long as the process: millions of objects, through which each full collection that a test asks for would
    go for half a second.
    """
    gc.collect()
    gc.freeze()
