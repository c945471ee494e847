"""Python files of the repository as the tests about them need them: each is parsed once in a process."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SCOPES = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a source text imports wherever, what it defines outside of functions and classes, and its docstrings.

    `constants` are the upper-case names of its assignments, but for type variables. `docstrings` are all texts that
    stand as statements.
    """

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    names: frozenset[str]
    classes: tuple[str, ...]
    constants: tuple[str, ...]
    docstrings: tuple[str, ...]


@cache
def source_of(path: Path) -> Source:
    """Return what a file has."""
    return parse(path.read_text())


def parse(text: str) -> Source:
    """Return what a source text has."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    values = (node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    return Source(
        imports=tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)),
        names=frozenset(name for node in _at_module_level(tree) for name in _names(node)),
        classes=tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef)),
        constants=tuple(name for node in tree.body for name in _constants(node)),
        docstrings=tuple(value.value for value in values if isinstance(value.value, str)),
    )


def _at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _at_module_level(child)


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, _SCOPES):
        return {node.name}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return set()


def _constants(node: ast.stmt) -> list[str]:
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar":
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]
