"""Names say what a thing is in the field: everyday words that carry no meaning for search are no identifiers."""

import io
import re
import tokenize

import pytest

from tests.test_architecture import ROOT, source_files

EVERYDAY = frozenset(
    "told tell tells say says said heard beside anew whoever nobody house room rooms door".split()  # noqa: SIM905
)
LEFT = {
    "coordinator/detect/ranks/excess.py": {"beside"},
    "coordinator/detect/ranks/groups.py": {"beside"},
    "coordinator/detect/ranks/pools.py": {"beside"},
    "coordinator/detect/ranks/slow_rank.py": {"beside", "nobody"},
    "coordinator/detect/run_findings.py": {"beside"},
    "lockstep/agent/capture/trace_file.py": {"tell"},  # of Python's files
    "lockstep/diagnosis/__init__.py": {"_Door"},
}
"""Names that still have such words; the list only shrinks."""


def everyday_names(text: str) -> set[str]:
    """Return the identifiers of a source text of which an everyday word is a part."""
    names = {
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME
    }
    return {name for name in names if EVERYDAY & set(re.findall(r"[A-Z]?[a-z]+", name.replace("_", " ").lower()))} | {
        name for name in names if EVERYDAY & {part.lower() for part in re.findall(r"[A-Z][a-z]+", name)}
    }


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_identifier_is_an_everyday_word(path):
    """In any source file of the product."""
    assert everyday_names(path.read_text()) == LEFT.get(str(path.relative_to(ROOT)), set())


def test_a_relapse_is_seen():
    """In functions, classes and parts of names; words that only contain such a word are others."""
    assert everyday_names("def told_ns(saidness): return ToldText, essay, mushroom") == {"told_ns", "ToldText"}
