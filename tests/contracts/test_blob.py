"""JSON regions in shared files."""

import struct
import zlib

import pytest
from hypothesis import given

from lockstep.contracts.blob import HEAD_BYTES, read_blob, read_generation, write_blob
from lockstep.contracts.errors import LocalError
from tests.strategies import json_values


@given(value=json_values)
def test_round_trip(value):
    """What is written is read, with its generation."""
    region = memoryview(bytearray(4096))
    write_blob(region, 64, 4000, 7, value)
    assert read_blob(region, 64, 4000) == (7, value)
    assert read_generation(region, 64) == 7


def test_never_written_is_nothing():
    """A region of zeros holds nothing."""
    assert read_blob(memoryview(bytearray(100)), 0, 100) is None


def test_too_large_keeps_the_old_value():
    """A value that does not fit is refused, and what was there stays."""
    region = memoryview(bytearray(64))
    write_blob(region, 0, 64, 1, "old")
    with pytest.raises(LocalError, match="at most 48"):
        write_blob(region, 0, 64, 2, "x" * 64)
    assert read_blob(region, 0, 64) == (1, "old")


def test_a_writer_killed_between_its_stores_is_seen():
    """New payload under the old head reads as nothing, never as half a value."""
    region = memoryview(bytearray(256))
    write_blob(region, 0, 256, 1, {"steps": 3})
    region[HEAD_BYTES : HEAD_BYTES + 11] = b'{"steps":9}'
    assert read_blob(region, 0, 256) is None


def test_a_length_beyond_the_region_is_seen():
    """A hostile length does not read outside the region."""
    region = memoryview(bytearray(256))
    write_blob(region, 0, 256, 1, "a")
    region[8:12] = (1 << 31).to_bytes(4, "little")
    assert read_blob(region, 0, 256) is None


def test_nesting_beyond_reason_is_null():
    """JSON nested deeper than a parser goes reads as null, which no reader accepts."""
    region = memoryview(bytearray(1 << 16))
    payload = b"[" * 60_000
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<QI", 1, len(payload))))
    region[: HEAD_BYTES + len(payload)] = struct.pack("<QII", 1, len(payload), crc) + payload
    assert read_blob(region, 0, 1 << 16) == (1, None)


@pytest.mark.parametrize("text", ["\ud800", "\udfff of a file name", "a\udc80b"])
def test_half_a_surrogate_pair_reads_as_a_question_mark(text):
    """What comes out of a shared region can be encoded again, whatever a file name was."""
    region = memoryview(bytearray(256))
    write_blob(region, 0, 256, 1, {"reason": text, text: "\U0001f600"})
    found = read_blob(region, 0, 256)
    assert found is not None
    clean = "".join("?" if 0xD800 <= ord(letter) <= 0xDFFF else letter for letter in text)
    assert found == (1, {"reason": clean, clean: "\U0001f600"})


@pytest.mark.parametrize("payload", [b'"\xed\xa0\x80"', b'"\xff"', '"x"'.encode("utf-16"), b"9" * 5000])
def test_what_is_no_json_in_utf_8_is_null(payload):
    """Raw surrogates, other encodings and numbers beyond reason read as null, which no reader accepts."""
    region = memoryview(bytearray(1 << 13))
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<QI", 1, len(payload))))
    region[: HEAD_BYTES + len(payload)] = struct.pack("<QII", 1, len(payload), crc) + payload
    assert read_blob(region, 0, 1 << 13) == (1, None)
