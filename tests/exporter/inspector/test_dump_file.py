"""A file that a plugin appends to is read line by line, and holds no memory but that of what is new."""

import os
from pathlib import Path

import pytest

from exporter.inspector import dump_file
from exporter.inspector.dump_file import KEPT_MAX_BYTES, DumpFile
from lockstep.contracts.errors import MalformedError

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "worker-0-pid100.log"
    path.touch()
    return path


def append(path: Path, text: bytes) -> None:
    """Write as the plugin does: at its own offset, which a reader does not move."""
    with path.open("ab") as file:
        file.write(text)


def test_whole_lines_once(path: Path):
    """A line whose end is to come is read when it is there."""
    file = DumpFile(path, os.geteuid())
    append(path, b"one\ntw")
    assert file.read().lines == (b"one",)
    assert file.read().lines == ()
    append(path, b"o\nthree\n")
    assert file.read().lines == (b"two", b"three")


def test_what_was_read_holds_no_memory(path: Path):
    """Of a megabyte that was read, less than two pages are left; the size stays, as the writer's offset does."""
    file = DumpFile(path, os.geteuid())
    for _ in range(10):
        append(path, b"x" * 100 + b"\n" + b"y" * (100 * 1024) + b"\n")
        file.read()
    assert path.stat().st_blocks * 512 <= 2 * PAGE
    assert path.stat().st_size > 1_000_000


def test_an_exporter_that_starts_again_goes_on(path: Path):
    """Where the first page with data is; the rest of a page that was read is zeros."""
    append(path, b"a" * 3 * PAGE + b"\nnew\n")
    DumpFile(path, os.geteuid()).read()
    append(path, b"newer\n")
    assert [line for line in DumpFile(path, os.geteuid()).read().lines if line] == [b"newer"]


def test_more_than_is_kept_is_dropped_and_counted(path: Path):
    """Whatever a plugin writes, the file's memory is bounded; the line in whose midst reading goes on is dropped."""
    file = DumpFile(path, os.geteuid())
    count = KEPT_MAX_BYTES // 1000 + 500
    append(path, (b"z" * 999 + b"\n") * count)
    read = dropped = 0
    while True:
        new = file.read()
        read, dropped = read + len(new.lines), dropped + new.dropped_bytes
        assert all(len(line) == 999 for line in new.lines)
        if not new.lines:
            break
    assert dropped >= 500_000
    assert read * 1000 + dropped == 1000 * count
    assert path.stat().st_blocks * 512 <= 2 * PAGE


def test_a_line_without_end_is_given_up(path: Path):
    """Longer than any line of the plugin's; the next one is read."""
    file = DumpFile(path, os.geteuid())
    append(path, b"w" * (dump_file.READ_MAX_BYTES + 10))
    assert file.read().dropped_bytes == dump_file.READ_MAX_BYTES
    append(path, b"\nnext\n")
    new = file.read()
    assert (new.lines, new.dropped_bytes) == ((b"next",), 11)


def test_a_file_that_was_truncated_or_replaced_is_read_from_its_start(path: Path):
    """A process of the same number opened it again."""
    file = DumpFile(path, os.geteuid())
    append(path, b"before\n")
    file.read()
    path.write_bytes(b"two\n")
    assert file.read().lines == (b"two",)


@pytest.mark.parametrize("kind", ["another user", "pipe", "link", "hard link", "directory"])
def test_what_is_no_file_of_the_ranks_user(path: Path, kind: str):
    """Nothing is opened that blocks, and nothing is emptied that another has a name for."""
    owner = os.geteuid()
    if kind == "another user":
        owner += 1
    elif kind == "hard link":
        os.link(path, path.with_name("theirs"))
    else:
        path.unlink()
        made = {"pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("/etc/hosts"), "directory": path.mkdir}
        made[kind]()
    with pytest.raises((MalformedError, OSError)):
        DumpFile(path, owner).read()
