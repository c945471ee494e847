"""Names say what a thing is in the field: everyday words that carry no meaning for search are no identifiers."""

import io
import re
import tokenize

import pytest

from lockstep.contracts.metrics import CATALOGUE
from tests.test_architecture import ROOT, source_files
from tests.test_documents import PAGES, prose

EVERYDAY = frozenset(
    "told tell tells say says said heard beside anew whoever nobody house room rooms door".split()  # noqa: SIM905
)
LEFT = {
    "lockstep/agent/capture/trace_file.py": {"tell"},  # of Python's files
}
"""Names that still have such words; the list only shrinks."""
IN_PLAIN_ENGLISH = (
    *("alerts", "dashboards", "lockstep/analysis", "lockstep/cli", "lockstep/diagnosis", "lockstep/doctor"),
    *("lockstep/html", "lockstep/injection", "lockstep/notebook", "lockstep/trace", "lockstep/trackers"),
)
"""Packages whose comments, docstrings and texts have none of `EVERYDAY_IN_TEXT` either; the list only grows."""
LEFT_PAGES = {"CHANGELOG.md", "evidence.md"}
"""Pages that still have such words: what was released is not written again; the list only shrinks."""
EVERYDAY_IN_TEXT = re.compile(
    r"\b(told|tells?|telling|says?|said|saying|heard|hears?|beside|anew|whoever|nobody)\b", re.IGNORECASE
)


def everyday_names(text: str) -> set[str]:
    """Return the identifiers of a source text of which an everyday word is a part."""
    names = {
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME
    }
    return {name for name in names if EVERYDAY & set(re.findall(r"[A-Z]?[a-z]+", name.replace("_", " ").lower()))} | {
        name for name in names if EVERYDAY & {part.lower() for part in re.findall(r"[A-Z][a-z]+", name)}
    }


def everyday_lines(text: str) -> list[str]:
    """Return the lines of a source text whose comment or string has an everyday word."""
    kinds = (tokenize.COMMENT, tokenize.STRING)
    tokens = (each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type in kinds)
    return [line for token in tokens for line in token.string.splitlines() if EVERYDAY_IN_TEXT.search(line)]


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_identifier_is_an_everyday_word(path):
    """In any source file of the product."""
    assert everyday_names(path.read_text()) == LEFT.get(str(path.relative_to(ROOT)), set())


@pytest.mark.parametrize("package", IN_PLAIN_ENGLISH)
def test_no_text_of_a_package_has_an_everyday_word(package):
    """In comments, docstrings and messages."""
    found = {path.name: everyday_lines(path.read_text()) for path in sorted((ROOT / package).rglob("*.py"))}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_has_an_everyday_word(page):
    """In READMEs, docs, runbooks and the chart's page, whose table is that of the values."""
    found = [line for line in prose(page).splitlines() if EVERYDAY_IN_TEXT.search(line)]
    assert found == [] or page.name in LEFT_PAGES


def test_no_metric_has_an_everyday_word():
    """In any HELP text."""
    assert [metric.name for metric in CATALOGUE if EVERYDAY_IN_TEXT.search(metric.help)] == []


def test_an_everyday_word_in_a_text_is_seen():
    """In a comment and in a docstring; not in a longer word."""
    assert everyday_lines('"""What it\nsays."""\nessay = 1  # told\n') == ['says."""', "# told"]


def test_a_relapse_is_seen():
    """In functions, classes and parts of names; words that only contain such a word are others."""
    assert everyday_names("def told_ns(saidness): return ToldText, essay, mushroom") == {"told_ns", "ToldText"}
