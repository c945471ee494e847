from pathlib import Path

from exporter.reading.positions import Position, load_positions, save_positions


def test_positions_survive(tmp_path: Path):
    """What was saved is loaded."""
    positions = {"run": {0: Position(1, 2, 3), 7: Position(4, 5, 6)}}
    save_positions(tmp_path / "positions.json", positions)
    assert load_positions(tmp_path / "positions.json") == positions


def test_a_damaged_file_is_no_positions(tmp_path: Path, caplog):
    """Damage means reading from the oldest record, said in the log; a missing file is silent."""
    path = tmp_path / "positions.json"
    assert load_positions(path) == {}
    assert not caplog.records
    for damage in (b"", b"{", b'{"run": {"a": [1, 2, 3]}}', b'{"run": {"0": [1]}}', b"\xff\xfe"):
        path.write_bytes(damage)
        assert load_positions(path) == {}
    assert len(caplog.records) == 5
