"""Holds the arrows of docs/architecture.md: who may import whom, and what may enter a training process."""

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.sources import Source, parse, source_of

ROOT = Path(__file__).resolve().parent.parent

# Package -> packages of ours that it may import. The most specific package of a file counts.
ARROWS = {
    "lockstep": {"lockstep.contracts", "lockstep.agent", "lockstep.notebook"},  # what users import; nothing else does
    "lockstep.contracts": set(),
    "lockstep.agent": {"lockstep.contracts"},
    "lockstep.accounting": {"lockstep.contracts"},
    "lockstep.trace": {"lockstep.contracts"},
    "lockstep.simulator": {"lockstep.contracts", "lockstep.trace"},
    "lockstep.diagnosis": {"lockstep.contracts", "lockstep.trace", "lockstep.simulator"},
    "lockstep.html": set(),
    "lockstep.analysis": {
        "lockstep.contracts",
        "lockstep.trace",
        "lockstep.simulator",
        "lockstep.diagnosis",
        "lockstep.html",
    },
    "lockstep.notebook": {
        "lockstep.contracts",
        "lockstep.trace",
        "lockstep.simulator",
        "lockstep.diagnosis",
        "lockstep.html",
        "lockstep.analysis",
        "lockstep.serving",
        "coordinator.record",
    },
    "lockstep.serving": {"lockstep.contracts"},
    "lockstep.trackers": {"lockstep.contracts", "lockstep.serving"},
    "lockstep.doctor": {"lockstep.contracts"},
    "lockstep.injection": {"lockstep.contracts", "lockstep.serving"},
    "exporter": {
        "lockstep.contracts",
        "lockstep.accounting",
        "lockstep.serving",
        "lockstep.trace",
        "lockstep.analysis",
    },
    "coordinator": {
        "lockstep.contracts",
        "lockstep.serving",
        "lockstep.trace",
        "lockstep.simulator",
        "lockstep.diagnosis",
        "lockstep.html",
    },
    "dashboards": {"lockstep.contracts"},
    "alerts": {"lockstep.contracts"},
}
# The coordinator's own packages, in the order of a datum's way. `coordinator` itself is the files at its top.
_WAY = {
    "coordinator.settings": {"lockstep.contracts", "lockstep.serving", "lockstep.simulator"},
    "coordinator.intake": {"lockstep.contracts", "coordinator.settings"},
    "coordinator.detect": {"lockstep.contracts", "coordinator.settings", "coordinator.intake"},
}
_WAY["coordinator.decide"] = {"lockstep.contracts", "lockstep.simulator", "lockstep.diagnosis", *_WAY}
_WAY["coordinator.expected"] = {"lockstep.contracts", "lockstep.simulator", "lockstep.diagnosis", *_WAY}
_WAY["coordinator.fleet"] = {*ARROWS["coordinator"], "coordinator", *_WAY}
_WAY["coordinator.evidence"] = {*ARROWS["coordinator"], "coordinator", *_WAY}
_WAY["coordinator.record"] = {*ARROWS["coordinator"], "coordinator", *_WAY}
_WAY["coordinator.page"] = {*ARROWS["coordinator"], "coordinator", *_WAY}
_WAY["coordinator.api"] = {*ARROWS["coordinator"], "coordinator", *_WAY}
_WAY["coordinator.notify"] = {*ARROWS["coordinator"], "coordinator", *_WAY}
ARROWS |= _WAY
ARROWS["coordinator"] |= set(_WAY)
# The simulator's, from the ground up; who may import the simulator may import each of them.
_SIMULATOR = {
    "lockstep.simulator.models": {"lockstep.contracts"},
    "lockstep.simulator.hardware": {"lockstep.contracts"},
}
_SIMULATOR["lockstep.simulator.strategy"] = {"lockstep.contracts", *_SIMULATOR}
_SIMULATOR["lockstep.simulator.lowering"] = {"lockstep.contracts", *_SIMULATOR}
_SIMULATOR["lockstep.simulator.execution"] = {"lockstep.contracts", *_SIMULATOR}
# The exporter's: each knows the rings and the files at the top, and no one else.
_NODE = {
    "exporter.reading": {"lockstep.contracts", "lockstep.accounting", "lockstep.serving", "exporter"},
    "exporter.host_watch": {"lockstep.contracts", "exporter", "exporter.reading"},
    "exporter.memory": {"lockstep.contracts", "exporter", "exporter.reading", "exporter.host_watch"},
    "exporter.sending": {"lockstep.contracts", "lockstep.serving", "exporter", "exporter.reading"},
    "exporter.capturing": {*ARROWS["exporter"], "exporter", "exporter.reading", "exporter.host_watch"},
    "exporter.exposing": {
        "lockstep.contracts",
        "lockstep.serving",
        "exporter",
        "exporter.reading",
        "exporter.host_watch",
        "exporter.memory",
    },
}
ARROWS["exporter"] |= set(_NODE)
for allowed in (*ARROWS.values(), *_NODE.values()):
    if "lockstep.simulator" in allowed:
        allowed.update(_SIMULATOR)
ARROWS["lockstep.simulator"] |= set(_SIMULATOR)
ARROWS |= _NODE | _SIMULATOR
ARROWS["lockstep.cli"] = {*ARROWS} - {"lockstep"}

# Distributions of others by package; agent and contracts get none but these.
THIRD_PARTY = {
    "lockstep": set(),
    "lockstep.contracts": set(),
    "lockstep.agent": {"torch"},
    "lockstep.accounting": {"numpy"},
    "lockstep.trace": {"numpy", "msgspec", "pyarrow"},
    "lockstep.simulator": {"numpy"},
    **{package: {"numpy"} for package in _SIMULATOR},
    "lockstep.diagnosis": {"numpy"},
    "lockstep.doctor": set(),
    "lockstep.html": set(),
    "lockstep.serving": {"aiohttp", "bcrypt", "mqtt5", "prometheus_client"},
    "lockstep.trackers": {"mlflow", "opentelemetry", "tensorboardX", "wandb"},
}
FILE_EXCEPTIONS = {"lockstep/contracts/codec.py": {"msgspec"}, "lockstep/contracts/yaml_text.py": {"yaml"}}


def package_of(module: str) -> str | None:
    """Return the most specific package that holds `module`."""
    packages = [package for package in ARROWS if module == package or module.startswith(package + ".")]
    return max(packages, key=len) if packages else None


def imports_of(path: Path) -> set[str]:
    """Return every module that a file imports, wherever in the file."""
    found = set()
    for node in source_of(path).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


PRODUCT = ("lockstep", "exporter", "coordinator", "dashboards", "alerts")


def source_files() -> list[Path]:
    """Return every source file of the product."""
    files = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    return sorted(files)


def wrong_arrows(name: str, imports: set[str]) -> list[str]:
    """Return the imports of the file `name` that no arrow allows."""
    module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    package = package_of(module)
    assert package is not None, f"{name} lies in no package"
    wrong = []
    for target in imports:
        other = package_of(target)
        if other is None:
            distribution = target.partition(".")[0]
            allowed = THIRD_PARTY.get(package, {distribution}) | FILE_EXCEPTIONS.get(name, set())
            if distribution not in sys.stdlib_module_names and distribution not in allowed:
                wrong.append(target)
        elif other != package and other not in ARROWS[package]:
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("package", PRODUCT)
def test_imports_follow_the_arrows(package):
    """No file imports a package that the architecture does not draw an arrow to."""
    names = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / package).rglob("*.py"))}
    found = {name: wrong_arrows(name, imports_of(path)) for name, path in names.items()}
    assert {name: imports for name, imports in found.items() if imports} == {}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("exporter/exposing/app.py", "coordinator.state"),
        ("coordinator/app.py", "exporter.reading.rings"),
        ("lockstep/contracts/ring.py", "lockstep.agent.ring"),
        ("lockstep/contracts/ring.py", "msgspec"),
        ("lockstep/agent/ring.py", "numpy"),
        ("lockstep/agent/mark_buffer.py", "lockstep.accounting.step_builder"),
        ("lockstep/accounting/step_builder.py", "lockstep.agent.account"),
        ("lockstep/trace/kineto/load.py", "lockstep.diagnosis"),
        ("lockstep/simulator/simulate.py", "lockstep.diagnosis"),
        ("lockstep/simulator/simulate.py", "pandas"),
        ("lockstep/simulator/models/model.py", "lockstep.simulator.hardware.cluster"),
        ("lockstep/simulator/lowering/plan.py", "lockstep.simulator.execution.executor"),
        ("lockstep/simulator/execution/event_simulation.py", "lockstep.simulator.forecast"),
        ("lockstep/trackers/forwarder.py", "coordinator.record.step_series"),
        ("lockstep/agent/hooks/api.py", "lockstep.trackers.forwarder"),
        ("exporter/reading/rings.py", "exporter.sending.publisher"),
        ("exporter/exposing/app.py", "exporter.capturing.captures"),
        ("coordinator/app.py", "lockstep.cli.main"),
        ("coordinator/page/cards.py", "lockstep.analysis.report"),
        ("lockstep/html/markup.py", "lockstep.analysis.summary"),
        ("lockstep/analysis/summary.py", "lockstep"),
        ("lockstep/cli/main.py", "lockstep"),
        ("lockstep/analysis/report/page.py", "lockstep.notebook.traces"),
        ("coordinator/settings/policy.py", "coordinator.detect.anomalies"),
        ("coordinator/detect/detector.py", "coordinator.decide.state"),
        ("coordinator/decide/state.py", "coordinator.store"),
    ],
)
def test_a_wrong_arrow_is_seen(name, target):
    """The check itself fails on arrows that must not be."""
    assert wrong_arrows(name, {target}) == [target]


def repository_files() -> list[Path]:
    """Return every Python file of the product, its benchmarks and its tests."""
    return [*source_files(), *sorted((ROOT / "benchmarks").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]


def module_of(path: Path) -> str:
    """Return the name by which a file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def names_of_modules() -> dict[str, set[str]]:
    """Return what each module of the repository defines or imports, outside of its functions and classes."""
    found = {}
    for path in repository_files():
        files = {path.stem for path in path.parent.iterdir()} if path.name == "__init__.py" else set()
        found[module_of(path)] = files | source_of(path).names
    return found


class _Everything(set[str]):
    def __contains__(self, _: object) -> bool:
        return True


def _names_elsewhere(module: str | None) -> set[str]:
    """Return the names of a module that is no file of ours: all of another package or a compiled one, else none."""
    if module and (ROOT / module.replace(".", "/")).with_suffix(".pyi").exists():
        return _Everything()
    ours = {name.partition(".")[0] for name in names_of_modules()}
    return set() if (module or "").partition(".")[0] in ours else _Everything()


def missing_names(source: Source) -> list[str]:
    """Return what a file imports from modules of the repository that do not have it."""
    nodes = [node for node in source.imports if isinstance(node, ast.ImportFrom)]
    modules = names_of_modules()
    return [
        f"{node.module}.{alias.name}"
        for node in nodes
        for alias in node.names
        if node.module != "lockstep" and alias.name not in modules.get(node.module or "", _names_elsewhere(node.module))
    ]


def test_every_name_that_is_imported_exists():
    """Benchmarks and lazy imports as well, which no other test may ever run."""
    found = {module_of(path): missing_names(source_of(path)) for path in repository_files()}
    assert {module: names for module, names in found.items() if names} == {}
    assert missing_names(parse("from benchmarks.checks import Nothing")) == ["benchmarks.checks.Nothing"]
    assert missing_names(parse("from benchmarks.thread_time import scaled")) == [
        "benchmarks.thread_time.scaled"
    ]  # a method
    assert missing_names(parse("from coordinator.nothing import Nothing")) == ["coordinator.nothing.Nothing"]


def public_classes() -> dict[str, list[str]]:
    """Return the modules of the product that define each public class."""
    found: dict[str, list[str]] = {}
    for path in source_files():
        for name in source_of(path).classes:
            if not name.startswith("_"):
                found.setdefault(name, []).append(module_of(path))
    return found


def test_no_module_name_stands_four_times():
    """A name that many modules share finds none of them; packages' own `__init__.py` aside."""
    names = Counter(path.name for path in source_files())
    assert {name: count for name, count in names.items() if count > 3 and name != "__init__.py"} == {}


def test_no_public_class_name_stands_twice():
    """Who searches for a name finds one class."""
    assert {name: modules for name, modules in public_classes().items() if len(modules) > 1} == {}


def test_a_noun_of_the_model_has_one_class():
    """From the node to the coordinator and back: what rules find, what helps, and captures."""
    nouns = {"Finding", "Advice", "CaptureRequest", "CaptureResult"}
    assert {name for name in public_classes() if name.removesuffix("s").endswith(tuple(nouns))} - nouns == {
        "CaptureRequests"  # the exporter's requests of all its runs
    }
    assert nouns <= set(public_classes())


def modules_read_first(path: Path, modules: set[str]) -> set[str]:
    """Return the `modules` that a file names: `from package import module` needs the module, not the package."""
    found = set()
    for node in source_of(path).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules
            if names - modules:
                found.add(node.module or "")
    return found & modules - {module_of(path)}


def test_modules_import_each_other_in_no_cycle():
    """Imports for types alone and inside functions included: each module can be read after those that it names."""
    modules = {module_of(path): path for path in source_files()}
    order = TopologicalSorter({name: modules_read_first(path, modules.keys()) for name, path in modules.items()})
    order.prepare()  # raises CycleError, which holds the cycle


def test_importing_lockstep_loads_nothing_heavy():
    """What enters a training process loads the standard library only, and not torch."""
    code = "import sys, lockstep; print(' '.join(sorted({m.partition('.')[0] for m in sys.modules})))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    bare = subprocess.run(
        [sys.executable, "-c", code.replace(", lockstep", "")], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(loaded) - set(bare) - set(sys.stdlib_module_names) == {"lockstep"}
