import os
from pathlib import Path

import pytest

from exporter.reading.read_offsets import ReadOffset, ReadOffsets
from exporter.state_file import load_state, save_state


def test_a_value_survives(tmp_path: Path):
    """What was saved is loaded, in the form that it had."""
    offsets = {"run": {0: ReadOffset(1, 2, 3), 7: ReadOffset(4, 5, 6)}}
    assert save_state(tmp_path / "offsets.json", offsets)
    assert load_state(tmp_path / "offsets.json", ReadOffsets) == offsets
    assert [path.name for path in tmp_path.iterdir()] == ["offsets.json"]


def test_a_damaged_file_is_no_value(tmp_path: Path, caplog):
    """Damage is a line in the log; a missing file is none."""
    path = tmp_path / "offsets.json"
    assert load_state(path, ReadOffsets) is None
    assert not caplog.records
    for damage in (b"", b"{", b'{"run": {"a": [1, 2, 3]}}', b'{"run": {"0": []}}', b"\xff\xfe"):
        path.write_bytes(damage)
        assert load_state(path, ReadOffsets) is None
    assert len(caplog.records) == 5


def test_a_disk_that_is_full_leaves_the_old_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    """Nothing is raised: what is not saved costs a repetition, never the exporter."""
    path = tmp_path / "term.json"
    save_state(path, 3)

    def refuse(*_):
        raise OSError("full")

    monkeypatch.setattr(os, "replace", refuse)
    assert not save_state(path, 4)
    assert load_state(path, int) == 3
    assert "full" in caplog.text
