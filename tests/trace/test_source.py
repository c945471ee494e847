import gzip
import os

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.source import TraceSource
from tests.trace.traces import write

_TEXT = b'{"traceEvents": []}' * 1000


def _read(path, max_bytes=1 << 20, chunk_bytes=100):
    return b"".join(TraceSource(path, max_bytes=max_bytes, chunk_bytes=chunk_bytes))


@pytest.mark.parametrize(
    "content", [_TEXT, gzip.compress(_TEXT), gzip.compress(_TEXT[:777]) + gzip.compress(_TEXT[777:])]
)
def test_content_is_the_same_plain_packed_and_in_members(tmp_path, content):
    """A file is known by its bytes, not its name, and gzip files of several members are read to the end."""
    assert _read(write(tmp_path, content)) == _TEXT


def test_size_limit_holds_at_the_limit_and_one_beyond(tmp_path):
    """A plain file of exactly the limit is read, one byte more is refused before it is opened."""
    path = write(tmp_path, _TEXT)
    assert _read(path, max_bytes=len(_TEXT)) == _TEXT
    with pytest.raises(MalformedError, match=f"trace size in .*got {len(_TEXT)}, expected at most {len(_TEXT) - 1}"):
        _read(path, max_bytes=len(_TEXT) - 1)


def test_a_gzip_bomb_stops_at_the_limit(tmp_path):
    """A file that unpacks to a thousand times its size costs the limit and not more."""
    source = TraceSource(write(tmp_path, gzip.compress(bytes(50 << 20))), max_bytes=1 << 20)
    with pytest.raises(MalformedError, match="unpacked"):
        list(source)
    assert source.read_bytes <= (1 << 20) + (2 << 20)


@pytest.mark.parametrize("length", [3, 10, 25, -1, -8])
def test_damaged_gzip_is_named(tmp_path, length):
    """A gzip stream cut anywhere, in its head, body or trailer, is an error of the file."""
    path = write(tmp_path, gzip.compress(_TEXT)[:length])
    with pytest.raises(MalformedError, match=rf"gzip stream in {path}"):
        _read(path)


def test_what_is_no_regular_file_is_refused(tmp_path):
    """A missing file, a folder and a pipe (which would block) are refused by name."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(MalformedError, match="trace file"):
            _read(tmp_path / name)
