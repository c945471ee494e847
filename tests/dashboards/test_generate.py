"""`python -m lockstep.cli.generate`: what is committed is what the sources render."""

import re

import pytest

from alerts import rules
from lockstep.cli import generate
from lockstep.contracts.metrics import CATALOGUE


def test_the_repository_is_generated():
    """No generated file differs from what its sources render."""
    assert generate.differing_files(generate.generated_files()) == []
    assert generate.main(["--check"]) == 0


def test_rendering_twice_gives_the_same_bytes():
    """Nothing generated depends on time, order of a set or where the checkout lies."""
    files = generate.generated_files()
    assert files == generate.generated_files()
    assert not [path for path, text in files.items() if str(generate.ROOT) in text]


def test_check_names_what_differs_and_writes_nothing(tmp_path, monkeypatch, capsys):
    """A changed and a missing file are named with exit status 1; without --check they are written and all is well."""
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    files = {tmp_path / "same.md": "a\n", tmp_path / "changed.md": "b\n", tmp_path / "new" / "file.md": "c\n"}
    monkeypatch.setattr(generate, "generated_files", lambda: files)
    (tmp_path / "same.md").write_text("a\n")
    (tmp_path / "changed.md").write_text("by hand\n")
    assert generate.main(["--check"]) == 1
    assert re.findall(r"^\S+", capsys.readouterr().err, re.MULTILINE) == ["changed.md", "new/file.md"]
    assert (tmp_path / "changed.md").read_text() == "by hand\n"
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


@pytest.fixture(scope="module")
def page():
    """Return docs/metrics.md by its headings."""
    parts = re.split(r"^## (.*)$", generate.metrics_page(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_the_page_of_metrics_has_every_metric(page, metric):
    """One line of the part of its source per metric, with type, labels and help."""
    part = page[generate._SOURCES[metric.source][0]]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| `{metric.name}` |")]
    assert f"| {metric.type} |" in line
    assert all(f"`{label}`" in line for label in metric.labels)
    assert all(value in line for value in metric.values)
    assert metric.help in line


def test_the_page_of_metrics_has_rules_and_runbooks(page):
    """Recorded series and alerts stand there as well, and the links lead to files."""
    assert all(f"| `{rule.record}` |" in page["Recorded series"] for rule in rules.recordings())
    linked = re.findall(r"^\| \[(\w+)\]\(", page["Alerts"], re.MULTILINE)
    assert sorted(linked) == sorted(alert.name for alert in rules.alerts())
    links = re.findall(r"\]\(([^)]*)\)", "".join(page.values()))
    assert all((generate.ROOT / "docs" / link).is_file() for link in links)
