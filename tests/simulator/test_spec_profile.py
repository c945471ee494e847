"""A profile's operators: from a CSV file next to the specification, refused by line."""

import pytest

from lockstep.contracts.errors import MalformedError
from tests.simulator.test_spec import spec

PROFILE = """\
model: {type: operators, file: profile.csv, tokens: 1}
batch: 8
strategy: {dp: 8}
cluster: {preset: HC1}
"""
HEADER = "name,flops,moved_elements,parameters,stored_bytes\n"


def test_operators_come_from_a_file_next_to_it(tmp_path):
    """A profile's CSV, or the same rows in the specification, make the same job."""
    (tmp_path / "profile.csv").write_text(f"{HEADER}a,1e12,1e6,1e7,1e6\nb,2e12,1e6,2e7,1e6\n")
    found = spec(text=PROFILE, folder=tmp_path)
    assert found.model.parameters == 3e7
    keys = HEADER.strip().split(",")
    rows = [dict(zip(keys, row, strict=True)) for row in (["a", 1e12, 1e6, 1e7, 1e6], ["b", 2e12, 1e6, 2e7, 1e6])]
    inline = spec(("file: profile.csv", f"operators: {rows}"), text=PROFILE)
    assert inline.forecast() == found.forecast()


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("name,flops\n", "line 1: got"),
        (HEADER + "a,1,1,1\n", "line 2: got 4 columns, expected 5"),
        (HEADER + "a,1,1,1,1\nb,1,x,1,1\n", "moved_elements in profile.csv, line 3: got 'x'"),
        (HEADER + "a,1,1,nan,1\n", "parameters in profile.csv, line 2"),
        (HEADER + "a,1,1,1,1\na,1,1,1,1\n", "'a' twice"),
        (HEADER, "none"),
        (HEADER + "a,1,1,1,1\n" * 1025, "at most 1024 operators"),
    ],
)
def test_a_wrong_profile_is_named(text, expected_text, tmp_path):
    """What is wrong in the file is reported with its line."""
    (tmp_path / "profile.csv").write_text(text)
    with pytest.raises(MalformedError, match=expected_text):
        spec(text=PROFILE, folder=tmp_path)


def test_only_files_next_to_the_specification_are_read(tmp_path):
    """A path that leaves the folder is refused, and so is any file where none may be read."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "profile.csv").write_text(f"{HEADER}a,1,1,1,1\n")
    for file in ("../profile.csv", str(tmp_path / "profile.csv")):
        with pytest.raises(MalformedError, match="next to the specification"):
            spec(("profile.csv", file), text=PROFILE, folder=tmp_path / "inner")
    with pytest.raises(MalformedError, match="files are not read here"):
        spec(text=PROFILE)
