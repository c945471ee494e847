import pytest

from benchmarks.simulator_measured import COMMITTED, PUBLISHED, VTRAIN, published_cluster, read_published, read_vtrain
from lockstep.contracts.errors import MalformedError
from lockstep.simulator.simulate import simulate

VTRAIN_TEXT = "\n".join((COMMITTED / VTRAIN).read_text().splitlines()[:6])
PUBLISHED_TEXT = "\n".join((COMMITTED / PUBLISHED).read_text().splitlines()[:4])
A100 = "A100-80GB-SXM"


@pytest.fixture
def read(tmp_path):
    """Return what reads a text as a table."""

    def read_text(text, reader):
        path = tmp_path / "table.csv"
        path.write_text(text)
        return reader(path)

    return read_text


def test_the_unit_stands_in_the_columns_name(read):
    """The same steps in seconds or milliseconds are the same steps, whatever stands around names and numbers."""
    plain = read(VTRAIN_TEXT, read_vtrain)
    header, *lines = VTRAIN_TEXT.splitlines()
    seconds = [", ".join((*(cells := line.split(","))[:-1], str(float(cells[-1]) / 1e3))) for line in lines]
    other = read("\n".join(["\ufeff" + header.replace("(ms)", "(s)"), *seconds]), read_vtrain)
    assert len(plain.rows) == 5
    assert [row.seconds for row in other.rows] == pytest.approx([row.seconds for row in plain.rows])
    assert plain.dropped == other.dropped == ""


def test_rows_count_once_and_bad_ones_are_reported(read):
    """A repeated row is not compared with itself; rows without a step, with half a job or none are dropped by line."""
    lines = VTRAIN_TEXT.splitlines()
    nothing = lines[1].rsplit(",", 1)[0] + ",0"
    table = read("\n".join([*lines, lines[2], nothing, "2,16,8", lines[3].replace(",1024,", ",x,", 1)]), read_vtrain)
    assert len(table.rows) == 5
    assert table.repeated == 1
    assert [text.partition(":")[0] for text in table.refused] == ["line 8", "line 9", "line 10"]
    assert table.dropped == (
        "table.csv: rows dropped: 1 repeated, 3 that cannot be read (first: line 8: step: got 0, expected above 0)"
    )


@pytest.mark.parametrize(
    ("old", "missing"), [("hidden size", "hidden size"), ("iteration time (ms)", "iteration time")]
)
def test_a_missing_column_is_named(read, old, missing):
    """A table without a column, or without a known unit, is refused by the name of what it lacks."""
    with pytest.raises(MalformedError, match=rf"columns in table\.csv: .*expected .*{missing}"):
        read(VTRAIN_TEXT.replace(old, "other"), read_vtrain)


def test_devices_are_read_apart(read):
    """Steps of H100 are another table than those of A100, on their own nodes; a device that no one knows is refused."""
    header, first, second, third = PUBLISHED_TEXT.splitlines()
    text = "\n".join([header, first, second.replace(A100, "H100-80GB-HBM3"), third.replace(A100, "TPU v4")])
    found = read(text, read_published)
    assert {name: len(table.rows) for name, table in found.items()} == {"A100": 1, "H100": 1}
    assert "gpu: got 'TPU v4', expected one of V100, A100, H100" in found["A100"].dropped
    (row,) = found["H100"].rows
    fast, slow = (
        simulate(row.tree, published_cluster(8, name), batch=row.batch, options=row.options).step_seconds
        for name in ("H100", "A100")
    )
    assert 2 < slow / fast < 989 / 312
