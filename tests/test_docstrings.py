"""Comments and docstrings name files that exist, as documents do (`test_documents.py`)."""

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.support.sources import parse, source_of
from tests.test_architecture import ROOT, repository_files

NAMED = re.compile(r"(?<![\w./-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|ya?ml|sh|c|cpp|h|js))\b")
BASES = tuple(
    ROOT / name for name in ("", "lockstep", "coordinator", "exporter", "lockstep/agent", "lockstep/diagnosis")
)
"""Folders from which comments name files."""
USERS_FILES = {"train.py", "sweep.sh"}
"""Modules that belong to a user's job or to another program."""


@cache
def folders() -> frozenset[str]:
    """Return the names of folders that a path in a comment may begin with."""
    return frozenset(path.name for base in BASES for path in base.iterdir() if path.is_dir())


@cache
def modules() -> frozenset[str]:
    """Return the names of all Python files."""
    others = (path for folder in ("examples", "setup") for path in (ROOT / folder).rglob("*.py"))
    return frozenset(path.name for path in (*repository_files(), *others, ROOT / "setup.py"))


def comments_of(text: str) -> Iterator[str]:
    """Yield the comments of a source text; one in which no line names a file after a `#` has none worth the search."""
    if any(NAMED.search(after) for _, _, after in (line.partition("#") for line in text.splitlines())):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


def stale_names(text: str, docstrings: Iterable[str], folder: Path) -> set[str]:
    """Return the files that comments and docstrings of a source file in `folder` name and that do not exist."""
    found = {name for each in (*comments_of(text), *docstrings) for name in NAMED.findall(each)} - USERS_FILES
    return {name for name in found if not _exists(name, folder)}


def _exists(name: str, folder: Path) -> bool:
    first, slash, _ = name.partition("/")
    if not slash:
        return not name.endswith(".py") or name in modules()
    if first not in folders() or "NAME" in name:
        return True  # another project's file, or a pattern
    return any((base / name).exists() for base in (*BASES, folder, folder.parent))


def test_files_that_comments_and_docstrings_name_exist():
    """In the product, its benchmarks and its tests."""
    found = {
        str(path): stale_names(path.read_text(), source_of(path).docstrings, path.parent) for path in repository_files()
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_a_stale_name_is_seen():
    """In a docstring and in a comment, by path and alone; another project's files are not ours to check."""
    text = '"""As in `coordinator/detect/nothing.py`, unlike `host_rules.py`."""\n# torch/csrc/engine.h, see gone_module.py\n'
    assert stale_names(text, parse(text).docstrings, ROOT / "coordinator") == {
        "coordinator/detect/nothing.py",
        "gone_module.py",
    }
