"""Every module and every function of the product is reached from what starts it: commands, workers, agent, Python API."""

import ast
import re
from functools import cache

from tests.test_architecture import imports_of, module_of, source_files

_STARTS = re.compile(
    r"lockstep\.cli\.(\w+_command|main|generate)"  # the console script and `make generate`
    r"|lockstep\.agent\.(site\.sitecustomize|bootstrap)"  # what a training process loads
    r"|lockstep\.agent\.adapters\.\w+"  # what a user's script imports
    r"|lockstep\.trackers\.\w+_tracker|lockstep"  # chosen by name; the Python API
)
_ON_THEIR_OWN = frozenset(
    {
        # Formulas that docs/intracard.md holds against measurements: `make bench-intracard`.
        *("ring_bandwidth", "csc_bandwidth", "ring_bandwidth_small", "csc_bandwidth_small", "bandwidth_large"),
        # Writers of what a node or an agent in C wrote, for tests, fuzzing and benchmarks of the readers.
        *("pack_block", "pack_issue", "facts_to_json", "join_columns", "split_columns"),
        # The layout of a ring's header, whole.
        *("WORD_ISSUES", "STATE_NONE"),
        # What `python -m benchmarks.metrics_cost` and `python -m benchmarks.memory_growth` measure.
        *("BUDGETS", "rises"),
        # The published model itself, which tests check equation by equation.
        *("fusion_gain_ratio", "ideal_performance", "component_table", "average_run_length"),
        *("fair_rates", "hierarchical_seconds"),
        # Benchmarks and tests of the simulator start with it, for a forecast that is computed.
        "clear_cache",
        # The labels of other exporters' metrics: queries are linted with them, and benchmarks make such series.
        "LABELS",
        # The inverse of what a rank announces: tests read back with it.
        "unpack_ranks",
    }
)
"""What only benchmarks and tests use, by the reason why the product has it."""


def _starts(module: str, text: str) -> bool:
    return bool(_STARTS.fullmatch(module)) or module.endswith("__main__") or 'if __name__ == "__main__"' in text


@cache
def _definitions() -> list[tuple[str, str, set[str]]]:
    """Return module, name and the names used within, of each function, class and constant at the top of a module."""
    found = []
    for path in source_files():
        rest: set[str] = set()
        for node in ast.parse(path.read_text()).body:
            used = _names(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.append((module_of(path), node.name, used - {node.name}))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                name = target.id if isinstance(target, ast.Name) else ""
                found.append((module_of(path), name, used - {name}))
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                rest |= used
        found.append((module_of(path), "", rest))
    return found


def _names(node: ast.AST) -> set[str]:
    """Return the identifiers in a piece of code, those in its short texts included: names of methods, dotted paths."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            names.add(each.id)
        elif isinstance(each, ast.Attribute):
            names.add(each.attr)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and "\n" not in each.value:
            names |= set(re.findall(r"\w+", each.value))
    return names


def test_every_module_is_reached():
    """No module is imported by tests alone; a package's own file is loaded with what lies in it."""
    modules = {module_of(path): path for path in source_files()}
    waiting = [name for name, path in modules.items() if _starts(name, path.read_text())]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in reached or name not in modules:
            continue
        reached.add(name)
        waiting += [*imports_of(modules[name]), name.rpartition(".")[0]]
    assert sorted(modules.keys() - reached - {"lockstep.agent.site"}) == []


def test_every_definition_is_reached():
    """What nothing in the product names, but itself, is used by tests alone."""
    waiting = {"", "main", "add", "__all__", "__getattr__", "LockstepCallback", *_ON_THEIR_OWN}
    reached: set[str] = set()
    by_name: dict[str, set[str]] = {}
    for _, name, used in _definitions():
        by_name.setdefault(name, set()).update(used)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting |= by_name.get(name, set())
    unused = {f"{module}.{name}" for module, name, _ in _definitions() if name and name not in reached}
    assert sorted(unused) == []
    defined = {name for _, name, _ in _definitions()}
    assert defined >= _ON_THEIR_OWN
