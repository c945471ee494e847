"""Names are those of the field: everyday words that carry no meaning for search are no identifiers, nor in any text."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.contracts.metrics import CATALOGUE
from tests.support.sources import Source, parse, source_of
from tests.test_architecture import ROOT
from tests.test_documents import PAGES, prose

EVERYDAY = frozenset(
    "told tell tells say says said hear hears heard beside anew whoever nobody house room rooms door".split()  # noqa: SIM905
)
LEFT = {
    "lockstep/agent/capture/trace_file.py": {"tell"},  # of Python's files
    "benchmarks/trace_ascend.py": {"tell"},
}
"""Names that still have such words; the list only shrinks."""
LEFT_FOLDERS = ("tests/coordinator/decide/", "tests/coordinator/detect/")
"""Folders of tests whose names still have such words; the list only shrinks."""
PYTHON = ("alerts", "benchmarks", "coordinator", "dashboards", "examples", "exporter", "lockstep", "setup")
"""Folders whose identifiers, comments, docstrings and texts have none; of tests, all but their data."""
OTHER_SOURCES = {
    folder: suffixes
    for folders, suffixes in (
        (
            ("alerts", "deploy", "docker", "examples", "helm", "setup"),
            (".sh", ".tmpl", ".tpl", ".yaml", ".yml", "Dockerfile"),
        ),
        (("coordinator", "lockstep"), (".c", ".cpp", ".css", ".h", ".js", ".toml")),
        (("benchmarks",), (".toml",)),
        (("tests/alerts",), (".yaml",)),
    )
    for folder in folders
}
"""Sources that are not Python: all of their lines."""
LEFT_TEXTS = {"slow beside a frozen counter", "slow beside a mad clock"}
"""Names of held-out cases are part of their seeds; the list only shrinks."""
EVERYDAY_IN_TEXT = re.compile(
    r"\b(told|tells?|telling|says?|said|saying|heard|hears?|beside|anew|whoever|nobody|mend(?:s|ed|ing)?)\b",
    re.IGNORECASE,
)

_DETECTION = {
    "judge": "detector",
    "judged": "evaluated",
    "judgement": "step_result",
    "gate": "limit",
    "gates": "limits",
    "pool": "noise_group",
    "pools": "noise_groups",
    "family": "series_group",
    "families": "series_groups",
    "excesses": "deviations",
    "beyond": "outlier_share",
    "recall": "load_state_dict",
    "recalled": "from_state_dict",
    "standstill": "stall",
    "desk": "manager",
    "scattered": "unsynchronised",
    "silicon": "static device variation",
}
FIELD_TERMS = {
    "coordinator/detect": {**_DETECTION, "finding": "anomaly", "findings": "anomalies"},
    "coordinator/evidence": {"finding": "deviation", "findings": "deviations"},
    "coordinator/decide": _DETECTION,
    "coordinator/settings": _DETECTION,
    "coordinator/step_detection.py": _DETECTION,
    "coordinator/record": {"holes": "gaps", "unbooked": "unaccounted time", "rerun": "replay"},
    "coordinator/expected": {"regained": "predicted gain"},
    "exporter": {
        "appetite": "TraceSizeEstimator",
        "position": "offset",
        "positions": "offsets",
        "runtrack": "RunState",
        "ranktrack": "RankState",
        "track": "rank_state",
        "tracks": "run_state",
    },
    "coordinator/intake/streams.py": {"position": "offset", "positions": "offsets"},
    "coordinator/api": {"ask": "request", "asked": "requested"},
    "dashboards": {
        "finish": "postprocess",
        "foreign": "external metrics",
        "itself": "self-monitoring",
        "house": "builders",
    },
    "lockstep/cli": {"act": "execute"},
    "lockstep/trackers": {"position": "ForwardState"},
    "lockstep/accounting": {"draft": "StepBuilder", "shares": "StepBreakdown"},
    "lockstep/analysis": {"answers": "RuleRunner"},
    "lockstep/diagnosis/localisation": {"odd": "outliers"},
    "lockstep/trace": {"about": "metadata", "rare": "collective_args"},
    "lockstep/simulator": {
        "coarse": "fused pass",
        "family": "group set",
        "outline": "pass summary",
        "script": "op list",
    },
}
"""By folder or file: words that were identifiers there, or parts of them, and the field's term in their place."""


def everyday_names(text: str) -> set[str]:
    """Return the identifiers of a source text of which an everyday word is a part."""
    if not any(word in text.lower() for word in EVERYDAY):
        return set()  # most; to find the identifiers takes longer
    names = {
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.NAME
    }
    return {name for name in names if EVERYDAY & set(re.findall(r"[A-Z]?[a-z]+", name.replace("_", " ").lower()))} | {
        name for name in names if EVERYDAY & {part.lower() for part in re.findall(r"[A-Z][a-z]+", name)}
    }


def everyday_lines(text: str) -> list[str]:
    """Return the lines of a source text whose comment or string has an everyday word."""
    if not EVERYDAY_IN_TEXT.search(text):
        return []
    kinds = (tokenize.COMMENT, tokenize.STRING)
    tokens = (each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type in kinds)
    lines = (
        line for token in tokens if token.string.strip("\"'") not in LEFT_TEXTS for line in token.string.splitlines()
    )
    return [line for line in lines if EVERYDAY_IN_TEXT.search(line)]


def everyday_prose(text: str) -> list[str]:
    """Return the lines of a test's text whose comment or docstring has an everyday word; its data may be anything."""
    if not EVERYDAY_IN_TEXT.search(text):
        return []
    comments = (each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type == tokenize.COMMENT)
    docstring_lines = [line for each in parse(text).docstrings for line in each.splitlines()]
    prose_lines = [token.string for token in comments] + docstring_lines
    return [line for line in prose_lines if EVERYDAY_IN_TEXT.search(line)]


def other_sources() -> Iterator[Path]:
    """Yield the sources that are not Python."""
    yield from (ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".dockerignore")
    for folder, suffixes in OTHER_SOURCES.items():
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.name.endswith(suffixes))


def parts_of_names(text: str) -> set[str]:
    """Return the lower-case words that the identifiers of a source text consist of."""
    tokens = (each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type == tokenize.NAME)
    return {part.lower() for token in tokens for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", token.string)}


@pytest.mark.parametrize("place", FIELD_TERMS)
def test_a_concept_has_its_name_in_the_field(place):
    """In identifiers and in the names of modules."""
    root = ROOT / place
    paths = [root] if root.is_file() else sorted(root.rglob("*.py"))
    assert paths
    found = {
        str(path.relative_to(ROOT)): sorted(FIELD_TERMS[place].keys() & (parts_of_names(path.read_text()) | stem))
        for path in paths
        for stem in [set(path.stem.split("_"))]
    }
    assert {name: words for name, words in found.items() if words} == {}
    assert parts_of_names("class ExcessGate: _pool_C = JUDGE") >= {"excess", "gate", "pool", "judge"}


@pytest.mark.parametrize("folder", [*PYTHON, "tests"])
def test_no_identifier_is_an_everyday_word(folder):
    """In any source file of the product, its benchmarks, examples, set-up and tests."""
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / folder).rglob("*.py"))}
    found = {
        name: everyday_names(path.read_text()) for name, path in paths.items() if not name.startswith(LEFT_FOLDERS)
    }
    left = {name: names for name, names in LEFT.items() if name.startswith(f"{folder}/")}
    assert {name: names for name, names in found.items() if names} == left


NUMBERS = frozenset("zero one two three four five six seven eight nine ten half quarter third hundred thousand".split())  # noqa: SIM905


def constants_without_meaning(source: Source) -> list[str]:
    """Return a source's constants that are named by a letter, or by their number; type variables may be."""
    return [
        name
        for name in source.constants
        if len(name.strip("_")) == 1 or NUMBERS.issuperset(name.strip("_").lower().split("_"))
    ]


@pytest.mark.parametrize("folder", PYTHON)
def test_no_constant_is_named_by_a_letter_or_a_number(folder):
    """`_TWO = 2` means nothing, and is wrong once it is 3."""
    found = {str(path): constants_without_meaning(source_of(path)) for path in sorted((ROOT / folder).rglob("*.py"))}
    assert {name: names for name, names in found.items() if names} == {}
    source = parse("_TWO = 2\nT = TypeVar('T')\n_P: str = 'p'\nTWO_WAYS = 2\n")
    assert constants_without_meaning(source) == ["_TWO", "_P"]


@pytest.mark.parametrize("package", PYTHON)
def test_no_text_of_a_package_has_an_everyday_word(package):
    """In comments, docstrings and messages."""
    found = {str(path): everyday_lines(path.read_text()) for path in sorted((ROOT / package).rglob("*.py"))}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_prose_of_a_test_has_an_everyday_word():
    """In comments and docstrings, but for this file, which lists the words."""
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
    found = {str(path): everyday_prose(path.read_text()) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_other_source_has_an_everyday_word():
    """In scripts, manifests, templates and native code."""
    paths = list(other_sources())
    assert len(paths) > 100
    found = {str(path): EVERYDAY_IN_TEXT.findall(path.read_text()) for path in paths}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_has_an_everyday_word(page):
    """In READMEs, docs, runbooks and the chart's page, whose table is that of the values."""
    found = [line for line in prose(page).splitlines() if EVERYDAY_IN_TEXT.search(line)]
    assert found == []


def test_no_metric_has_an_everyday_word():
    """In any HELP text."""
    assert [metric.name for metric in CATALOGUE if EVERYDAY_IN_TEXT.search(metric.help)] == []


def test_an_everyday_word_in_a_text_is_seen():
    """In a comment and in a docstring; not in a longer word, nor in a test's data."""
    assert everyday_lines('"""What it\nsays."""\nessay = 1  # told\n') == ['says."""', "# told"]
    assert everyday_prose('"""What it\nsays."""\nessay = "nobody"  # told\n') == ["# told", "says."]


def test_a_relapse_is_seen():
    """In functions, classes and parts of names; words that only contain such a word are others."""
    assert everyday_names("def told_ns(saidness): return ToldText, essay, mushroom") == {"told_ns", "ToldText"}
