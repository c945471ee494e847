"""What holds for all tests."""

import fcntl
import gc
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

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


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """Let one process of a part compile a test file, and the others wait for it.

    All collect the same files in the same order. In a new checkout, rewriting assertions takes longer than the rest.
    """
    with compiled_once(collector.path) if isinstance(collector, pytest.Module) else nullcontext():
        return (yield)


@contextmanager
def compiled_once(path: Path) -> Iterator[None]:
    """Hold the lock of the checkout's tests while a file without bytecode is collected."""
    folder = path.parent / "__pycache__"

    def is_there() -> bool:
        return any(folder.glob(f"{path.stem}.*-pytest-*.pyc"))

    is_alone = "PYTEST_XDIST_WORKER" not in os.environ or sys.dont_write_bytecode or sys.pycache_prefix is not None
    if is_alone or is_there():
        yield
        return
    folder.mkdir(exist_ok=True)
    with (Path(__file__).parent / "__pycache__" / "collecting.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_there():
            fcntl.flock(lock, fcntl.LOCK_UN)
        yield


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: nearly all that is made lasts, and a third of the time would go into it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what collection has made out of later garbage collections.

    It lasts as long as the process: millions of objects, through which each full collection that a test asks for would
    go for half a second.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
