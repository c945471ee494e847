"""Files that people write: read whole and plain, or refused with file, line and column, whatever stands in them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.yaml_text import TextLimit, read_yaml, read_yaml_file

BOMB = "a: &a [x, x, x]\nb: [*a, *a, *a]\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file.yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("a: 1\nb: [x, 2.5, true, null]\n", {"a": 1, "b": ["x", 2.5, True, None]}),
        ("rate: 2e9\nday: 2024-13-45\n", {"rate": 2e9, "day": "2024-13-45"}),
        ("\ufeffa: 1\n", {"a": 1}),
        ("1: one\n", {"1": "one"}),
    ],
)
def test_a_file_is_read_as_plain_values(file, text, value):
    """Dates stay text, as everything that JSON has no kind for; keys are text."""
    file.write_text(text)
    assert read_yaml_file(file, "settings") == value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [1", "line 1"),
        (b"a: 1\na: 2\n", "twice"),
        (BOMB.encode(), r"line 2, column 5: got alias \*a"),
        (b"[" * 5000, "deep"),
        (b"- " * 5000 + b"1", "deep"),
        (b"a: " + b"9" * 999 + b"\nb: " + b"9" * 5000, "5000 characters"),
        (b"a: \xff\n", "UTF-8"),
        (b"a: \x00\n", "YAML"),
        (b"{[1]: 2}\n", "a key that is a list"),
        (b"a: !!float .\n", "a number"),
        (b"x\n" * (1 << 18), "bytes"),
        (b"- 1\n" * 30_000, "values"),
    ],
)
def test_what_cannot_be_used_is_a_wrong_configuration(file, content, reason):
    """Never another error, and the file's name is in the message."""
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_yaml_file(file, "settings")
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["nothing.yaml", "a\0b", "."])
def test_a_file_that_cannot_be_opened_is_a_wrong_configuration(tmp_path, name):
    """No such file, a name with a NUL, a folder."""
    with pytest.raises(ConfigError, match="settings"):
        read_yaml_file(tmp_path / name, "settings")


def test_a_limit_may_be_wider(file):
    """Lists of ranks are long."""
    file.write_text("- 1\n" * 30_000)
    assert len(read_yaml_file(file, "groups", TextLimit(text_bytes=1 << 20, values=1 << 16))) == 30_000


@given(text=st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("&*![]{}:-\n?|>%@`'\""), max_size=60))
def test_noise_is_read_or_malformed_and_nothing_else(text):
    """Whatever is typed."""
    with contextlib.suppress(MalformedError):
        read_yaml(text, "noise")
