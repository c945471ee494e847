import gzip

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend import tables
from lockstep.trace.ascend.kernels import load_kernels
from lockstep.trace.ascend.tables import CsvTable

_HEADER = "Name,Start Time(us),Duration(us)"


def _write(folder, text, name="kernel_details.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_quoted_cells_may_hold_commas_and_lines(tmp_path):
    """Stacks stand in one cell over several lines; a byte order mark, CRLF and a last line without an end are read."""
    path = _write(tmp_path, '\ufeffName,Stack\r\nmm,"a.py(1): f;\r\nb.py(2): g"\r\nadd,"x,y"')
    (rows,) = CsvTable(path, required=[("Name",)])
    assert rows.cells == {"Name": ("mm", "add"), "Stack": ("a.py(1): f;\r\nb.py(2): g", "x,y")}


def test_chunks_change_nothing(tmp_path, monkeypatch):
    """Lines are put together across the chunks of the file, blocks across nothing."""
    path = _write(tmp_path, "Name,n\n" + "".join(f"name {i},{i}\n" for i in range(500)))
    monkeypatch.setattr(tables, "BLOCK_ROWS", 7)
    blocks = list(CsvTable(path, required=[("Name",)]))
    assert [cell for rows in blocks for cell in rows.cells["n"]] == [str(i) for i in range(500)]
    assert max(rows.count for rows in blocks) == 7


def test_rows_that_are_cut_are_dropped_and_counted(tmp_path):
    """A short row, a row without time and one with a negative length cost themselves only."""
    path = _write(tmp_path, f"{_HEADER}\na,1736405443881410.320\t,50.621\nb,17\nc,N/A,1\nd,1.0,-2\n\ne,2.000,1\n")
    kernels = load_kernels(path)
    assert [kernels.text("name", row) for row in range(len(kernels))] == ["a", "e"]
    assert kernels.dropped_count == 3
    assert (kernels.start_ns[0], kernels.duration_ns[0]) == (1_736_405_443_881_410_320, 50_621)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Name,Start Time(us)\n", "'Duration(us)' or 'Task Duration(us)'"),
        ("", "'Name' or 'Op Name'"),
        ("\x00\x01", "'Name' or 'Op Name'"),
    ],
)
def test_a_wrong_header_is_refused_by_name(tmp_path, text, missing):
    """The error names which column is missing in which file."""
    path = _write(tmp_path, text)
    with pytest.raises(MalformedError, match=r"header in .*expected a column") as caught:
        load_kernels(path)
    assert caught.value.where == str(path)
    assert missing in str(caught.value)


def test_a_line_that_never_ends_is_refused(tmp_path):
    """No line is longer than its limit, whether it ends or not, packed or not."""
    for tail in (b"", b"\n"):
        path = _write(tmp_path, gzip.compress(f"{_HEADER}\n".encode() + b"x" * (tables.LINE_MAX_CHARS + 1) + tail))
        with pytest.raises(MalformedError, match="line in "):
            load_kernels(path)


def test_a_cell_that_never_ends_is_refused(tmp_path):
    """An opened quote takes the rest of the file into one cell, up to the reader's limit."""
    path = _write(tmp_path, _HEADER + '\n"' + "x" * 70 + "\n" * 200_000)
    with pytest.raises(MalformedError, match=r"CSV in .*field larger"):
        load_kernels(path)


def test_too_many_rows_and_bytes_are_refused(tmp_path, monkeypatch):
    """Limits hold before memory is taken."""
    path = _write(tmp_path, f"{_HEADER}\n" + "a,1.0,1\n" * 30)
    monkeypatch.setattr(tables, "ROWS_MAX", 20)
    with pytest.raises(MalformedError, match="rows in "):
        load_kernels(path)
    with pytest.raises(MalformedError, match="size in "):
        load_kernels(path, max_bytes=100)
    with pytest.raises(MalformedError, match="a readable file"):
        load_kernels(tmp_path / "nothing.csv")
