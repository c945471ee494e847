"""MkDocs hooks: the README as first page, repository files that pages link to, and the generated reference.

Pages link to each other and to files as GitHub shows them. A link that leaves docs/ leads to a copy below the site's
repository/, so that the site needs no other host, and MkDocs checks every link and anchor.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from lockstep.cli.command_line.parser_tree import Command, CommandArgument, read_parser
from lockstep.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[1]
COPIES = "repository"
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_PYTHON = {
    "In a training": ("lockstep/__init__.py", "lockstep/agent/api.py"),
    "In a notebook or script": (
        "lockstep/notebook/traces.py",
        "lockstep/notebook/analyses.py",
        "lockstep/notebook/step_logs.py",
        "lockstep/notebook/coordinators.py",
    ),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the first page, the reference, and every repository file that a page leads to."""
    pages = {
        "reference/command-line.md": command_line_page(),
        "reference/python.md": python_page(),
        "reference/http-api.md": http_api_page(),
    }
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text("utf-8")))
    for path in sorted(linked_files()):
        source = ROOT / path
        if source.is_dir():
            files.append(File.generated(config, f"{COPIES}/{path}/index.md", content=_folder_page(source)))
        elif path.endswith(".md"):
            files.append(File.generated(config, f"{COPIES}/{path}", content=source.read_text("utf-8")))
        else:
            files.append(File.generated(config, f"{COPIES}/{path}", abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links to the site's paths."""
    source = repository_path(page.file.src_uri)
    return rewrite(markdown, lambda target: _site_link(page.file.src_uri, source, target))


def repository_path(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    if uri == "index.md":
        return "README.md"
    return uri.removeprefix(f"{COPIES}/") if uri.startswith(f"{COPIES}/") else f"docs/{uri}"


def site_uri(path: str) -> str:
    """Return the site's path for a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"{COPIES}/{path}/index.md" if path != "docs" else "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{COPIES}/{path}"


def rewrite(markdown: str, link: Any) -> str:
    """Return a page in which `link` has replaced each link outside code blocks."""
    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(lambda m: f"{m[1]}{link(m[2])}{m[3]}", markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(lambda m: f"{m[1]}{link(m[2])}{m[3]}", markdown[at:])])


def linked_files() -> set[str]:
    """Return the files and folders outside docs/ that pages lead to, directly or through other such pages."""
    found: set[str] = set()
    todo = ["README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    while todo:
        page = todo.pop()
        for target in links(page):
            is_known = target in found or target in {"README.md", "docs"} or target.startswith("docs/")
            if not is_known and (ROOT / target).exists():
                found.add(target)
                todo += [target] if target.endswith(".md") else []
                if (ROOT / target).is_dir():
                    todo.append(target)
    return found


def links(page: str) -> Iterator[str]:
    """Yield the repository paths that a page links to; for a folder, its files."""
    path = ROOT / page
    if path.is_dir():
        yield from (file.relative_to(ROOT).as_posix() for file in _files(path))
        return
    for match in _LINK.finditer(_FENCE.sub("", path.read_text("utf-8"))):
        if not _is_elsewhere(match[2]):
            yield _resolved(page, match[2])


def _files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]


def _is_elsewhere(target: str) -> bool:
    return target.startswith(("http:", "https:", "mailto:"))


def _resolved(page: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _site_link(uri: str, source: str, target: str) -> str:
    if _is_elsewhere(target) or uri.startswith("reference/"):
        return target
    return posixpath.relpath(site_uri(_resolved(source, target)), posixpath.dirname(uri) or ".")


def _folder_page(folder: Path) -> str:
    """Return a list of a folder's files."""
    name = folder.relative_to(ROOT).as_posix()
    files = _files(folder)
    rows = [f"- [{file.name}]({file.name})" for file in files]
    title = "Runbooks" if folder.name == "runbooks" else name
    return "\n".join([f"# {title}", "", *rows, ""])


def command_line_page() -> str:
    """Return the reference of the command line, generated from the parsers."""
    program = read_parser(build_parser())
    parts = ["# Command line\n\nGenerated from the parsers; `lockstep COMMAND --help` prints the same.\n"]
    return "\n".join([*parts, *(_command(command) for command in program.commands)])


def _command(command: Command) -> str:
    lines = [f"## `{command.name}`", "", _plain(command.description), ""]
    for title, arguments in command.groups:
        rows = [f"| {_name(one)} | {_plain(one.help)} |" for one in arguments if "--help" not in one.flags]
        if rows:
            lines += [f"**{_plain(title).capitalize()}**", "", "| | |", "|---|---|", *rows, ""]
    return "\n".join([*lines, _notes(command.epilog)])


def _notes(epilog: str) -> str:
    """Return the text after the options; lines that begin with two spaces are examples."""
    parts = groupby(epilog.splitlines(), lambda line: line.startswith("  "))
    return "".join(
        "```\n" + "\n".join(line.strip() for line in lines) + "\n```\n\n"
        if is_example
        else _plain(" ".join(lines)) + "\n\n"
        for is_example, lines in parts
    )


def _name(argument: CommandArgument) -> str:
    value = argument.value.replace("|", "\\|")
    return ", ".join(f"`{flag} {value}`".replace(" `", "`") for flag in argument.flags) or f"`{value}`"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def python_page() -> str:
    """Return the reference of the Python API, generated from the signatures and docstrings that `lockstep` exports."""
    names = set(_constants(ast.parse((ROOT / "lockstep/__init__.py").read_text("utf-8")), "__all__"))
    parts = ["# Python\n\nGenerated from the docstrings. Everything is imported from `lockstep`.\n"]
    for title, files in _PYTHON.items():
        parts.append(f"## {title}\n")
        for file in files:
            parts += [
                _definition(node)
                for node in ast.parse((ROOT / file).read_text("utf-8")).body
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
            ]
    return "\n".join(parts)


def _constants(tree: ast.Module, name: str) -> list[str]:
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    ]
    return list(ast.literal_eval(value))


def _definition(node: ast.FunctionDef | ast.ClassDef) -> str:
    signature = f"({ast.unparse(node.args)})" if isinstance(node, ast.FunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if isinstance(node, ast.FunctionDef) and node.returns else ""
    text = ast.get_docstring(node) or ""
    body = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    return f"### `{node.name}`\n\n```python\nlockstep.{node.name}{signature}{returns}\n```\n\n{body}\n"


def http_api_page() -> str:
    """Return the table of the coordinator's API, generated from its OpenAPI description."""
    description = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    lines = [
        "# HTTP API",
        "",
        "The coordinator serves its OpenAPI description at `/api/v1/openapi.json`.",
        "Operations marked with a token need `Authorization: Bearer TOKEN`.",
        "",
        "| operation | what it does | query | token |",
        "|---|---|---|---|",
    ]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            asked = [f"`{one['name']}`" for one in operation.get("parameters", ()) if one["in"] == "query"]
            needs = "yes" if operation.get("security") else ""
            lines.append(
                f"| `{method.upper()} {path}` | {_plain(operation['summary'])} | {', '.join(asked)} | {needs} |"
            )
    return "\n".join([*lines, ""])
