"""Pages for people: their links lead somewhere, the files that they name exist, and `lockstep` takes their commands."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from lockstep.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "alerts/runbooks/*.md",
        "deploy/**/*.md",
        "helm/lockstep/*.md",
        "tests/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|ya?ml|toml|md|json|sh|service|conf|acl|sbatch|Dockerfile))`")
FOLDERS = {path.name: path for folder in (ROOT / "lockstep", ROOT) for path in folder.iterdir() if path.is_dir()}


def prose(page: Path) -> str:
    """Return the page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return what headings are called in links, as GitHub makes it of them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.strip()).replace(" ", "-") for heading in plain}


def commands(page: Path) -> list[list[str]]:
    """Return the words of every `lockstep` command in blocks of code, without what the shell does around it."""
    lines = [line.removeprefix("$ ") for _, block in FENCE.findall(page.read_text()) for line in block.splitlines()]
    found = [re.split(r" (?:[|>] |&$|&? *# )", f"{line.strip()} ")[0].strip() for line in lines]
    return [shlex.split(line.removesuffix(" &")) for line in found if line.startswith("lockstep ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_files_are_there(page):
    """Links within the repository with their anchors, and files that are named by their path."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        target, _, anchor = link.partition("#")
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert not anchor or path.suffix != ".md" or anchor in anchors(path), link
    for name in NAMED.findall(prose(page)):
        folder, _, rest = name.partition("/")
        assert folder not in FOLDERS or (FOLDERS[folder] / rest).exists() or (page.parent / name).exists(), name


ALL = [(page.name, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), ALL, ids=[f"{page}-{words[1]}" for page, words in ALL])
def test_the_command_line_takes_what_pages_print(page, words):
    """By its parser: no flag that is gone, no command that was renamed. What is run under it is the user's."""
    is_synopsis = any(word.startswith("[--") for word in words)
    asked = [words[1], "--help"] if is_synopsis else words[1:]
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        build_parser().parse_args(asked)
    assert errors.getvalue() == "", page
    flags = re.findall(r"--[\w.-]+", " ".join(words)) if is_synopsis else []
    assert [flag for flag in flags if flag not in output.getvalue()] == []


def test_every_page_of_docs_is_reached_from_the_readme():
    """Nothing that is written for people is found by luck."""
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        links = re.findall(r"\]\(([^)\s#]+\.md)", prose(page))
        new = {(page.parent / link).resolve() for link in links if not link.startswith("http")} - seen
        seen |= new
        todo += new
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} <= seen
    assert len(ALL) > 30


def test_the_menu_of_the_site_has_every_page():
    """`make docs` checks the same; here it needs no MkDocs."""
    menu = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert pages <= menu
    generated = {name for name in menu - pages if not name.startswith(("reference/", "repository/"))}
    assert generated == {"index.md"}


def test_first_pages_are_short():
    """Who comes here for the first time reads them whole."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    assert len((ROOT / "docs" / "architecture.md").read_text().split()) <= 1500


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("[!i]*.md")), ids=lambda page: page.stem)
def test_a_decision_has_what_was_rejected_and_why(page):
    """Each row has its three cells."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 3, row
        assert all(cells), row
