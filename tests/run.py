"""Runs the tests part by part, each to its end: `python -m tests.run TIER`, as `make test`, `test-all`, `test-live` and `test-frameworks` do.

A part that fails does not keep the next from running. At the end there is one summary, with the closing line of pytest
for each part, and the exit status is 1 if a part failed.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFUSED = 77
"""Exit status of setup/just_booted.sh where the kernel makes no time namespace."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_MARKS_OF_FILE = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)", re.MULTILINE)
_CORES = len(os.sched_getaffinity(0))
_WAITING = ("--numprocesses", str(_CORES + 1))  # one process more than cores: subprocesses are waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Tests that run together: pytest's marker expression, its flags, and a command that runs it in another world.

    Each of its tests has one of `marks`: files that name none of them are not imported, and those of each mark take
    turns. `paths` are the tests to choose from, empty for all. `module` is run instead of pytest. Where the other world
    is refused, `instead` runs. `limit_s` is that of each test that sets none, 0 for that of the project.
    """

    name: str
    marked: str = ""
    marks: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    instead: "Part | None" = None
    limit_s: int = 0


_OWN_TIER = "not frameworks"
PURE = Part(name="pure", marked=f"not torch and not servers and not alone and {_OWN_TIER}", flags=_WAITING)
JUST_BOOTED = Part(
    name="pure, just booted",
    marked=PURE.marked,
    flags=PURE.flags,
    prefix=("sh", str(ROOT / "setup/just_booted.sh")),
    instead=PURE,
)
SMOKE = Part(name="smoke", marked="smoke", marks=("smoke",))
REAL = Part(
    name="torch and servers",
    marked=f"(torch or servers) and not alone and {_OWN_TIER}",
    marks=("torch", "servers"),
    flags=_WAITING,
)
"""Ranks compute while servers are waited for, which takes three quarters of the time of such a test."""
ALONE = Part(name="alone", marked=f"alone and {_OWN_TIER}", marks=("alone",))
FRAMEWORKS = Part(name="frameworks", marked="frameworks", marks=("frameworks",))
_LIVE = {
    "endings": ("end_to_end/test_run_endings.py", "end_to_end/test_demo_endings.py", "agent/safety/test_endings.py"),
    "hangs": (
        "end_to_end/test_hang.py",
        "coordinator/detect/hangs/test_collectives.py",
        *(f"exporter/capturing/test_{name}.py" for name in ("stacks", "stack_dumps", "stack_request_pipe", "py_spy")),
    ),
    "captures": (
        "end_to_end/test_page.py",
        *(f"agent/capture/test_{name}.py" for name in ("session", "pair", "busy")),
    ),
    "pages": (
        *(f"end_to_end/test_{name}.py" for name in ("pages", "alert_loop", "alert_loop_victoria", "metrics_live")),
        *(f"alerts/test_{name}.py" for name in ("examples", "inhibition", "notifications", "function_found", "outage")),
        "coordinator/notify/test_live.py",
    ),
}
"""What is tested with real processes and servers, by subject: how runs end, where they hang, captures, and who is paged."""
_LIVE_LIMIT_S = 900  # a test of seconds takes minutes where strangers have the cores
LIVE = tuple(
    Part(name=name, marked=_OWN_TIER, paths=tuple(f"tests/{path}" for path in paths), limit_s=_LIVE_LIMIT_S)
    for name, paths in _LIVE.items()
)
TABLES = (
    Part(name="table of endings", module=("benchmarks.run_endings",)),
    Part(name="table of alerts", module=("lockstep.cli.main", "export", "alerts")),
)
TIERS = {
    "quick": (PURE, SMOKE),
    "all": (JUST_BOOTED, REAL, ALONE),
    "live": (*LIVE, *TABLES),
    "frameworks": (FRAMEWORKS,),
}
MARKS = frozenset(mark for parts in TIERS.values() for part in parts for mark in part.marks)
"""Marks that are enough to choose the files of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a part: `failures` are pytest's lines that name them, `closing` is its last line."""

    part: Part
    status: int
    failures: tuple[str, ...] = ()
    closing: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether it ran and did not pass; a part without any test did not pass."""
        return self.status not in (0, REFUSED)


def files_with_marks(marks: Sequence[str]) -> list[str]:
    """Return the test files that name a mark, each once, those of one mark after those of another in turn.

    A minute of each process goes into importing all of them.
    """
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    by_mark = ([str(path.relative_to(ROOT)) for path in paths if names_mark(path, mark)] for mark in marks)
    in_turn = chain.from_iterable(zip_longest(*by_mark))
    return list(dict.fromkeys(filter(None, in_turn)))


def files_without_choice(marked: str) -> list[str]:
    """Return the test files none of whose tests an expression chooses: all have a mark that it excludes.

    They need not be imported. Some take seconds for torch and what is made of it while tests are collected.
    """
    excluded = re.findall(r"not (\w+)", marked)
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        marks = " ".join(_MARKS_OF_FILE.findall(path.read_text()))
        if any(re.search(rf"mark\.{mark}\b", marks) for mark in excluded):
            found.append(str(path.relative_to(ROOT)))
    return found


@cache
def names_mark(path: Path, mark: str) -> bool:
    """Whether the text of a test file, or of the conftest.py next to it, names a mark.

    tests/conftest.py refuses a test that has a mark which its file does not name.
    """
    texts = (each.read_text() for each in (path, path.with_name("conftest.py")) if each.exists())
    return any(f"mark.{mark}" in text for text in texts)


def environment() -> dict[str, str]:
    """Return the environment of a part, where Python writes bytecode and programs in Go collect their garbage later.

    Without bytecode each process of a part compiles all tests with their assertions again, and each rank and server the
    modules that it imports. Prometheus and promtool live for seconds and spend a third of them on their garbage.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"GOGC": "400", **environ}


def command(part: Part) -> list[str]:
    """Return what runs a part."""
    if part.module:
        return [sys.executable, "-m", *part.module]
    distribution = ["--dist", "loadfile", "--no-loadscope-reorder"] if part.flags else []
    limit = ["--timeout", str(part.limit_s)] if part.limit_s else []
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        part.marked,
        *part.flags,
        *distribution,
        "--tb=short",
        "--durations",
        "15",
        *limit,
    ]
    needless = files_without_choice(part.marked)
    if part.marks:
        chosen = [path for path in files_with_marks(part.marks) if path not in needless]
    else:
        chosen = [*part.paths] or [f"--ignore={path}" for path in needless]
    return [*part.prefix, *pytest, *colour, *chosen]


def run(part: Part) -> Result:
    """Run a part and pass its output on."""
    sys.stdout.write(f"\n{part.name}: {part.marked or ' '.join(part.module)}\n")
    failures: list[str] = []
    closing = ""
    with subprocess.Popen(
        command(part), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            plain = _COLOUR.sub("", line).strip()
            if plain.startswith(("FAILED tests/", "ERROR tests/")):
                failures.append(plain)
            closing = plain or closing
    return Result(part=part, status=process.returncode, failures=tuple(failures), closing=closing)


def run_or_instead(part: Part) -> list[Result]:
    """Run a part, and where its world is refused what runs instead."""
    result = run(part)
    return [result, run(part.instead)] if result.status == REFUSED and part.instead else [result]


def summary(results: Sequence[Result]) -> str:
    """Return what became of each part; pytest's own lines come last."""
    lines = ["", "Summary"]
    for result in results:
        state = "FAILED" if result.has_failed else "NOT RUN: no time namespace here" if result.status else "passed"
        lines += [f"  {result.part.name:<18} {state}", *(f"    {line}" for line in result.failures)]
    closing = (result.closing for result in results if result.status != REFUSED and not result.part.module)
    return "\n".join([*lines, *closing])


def main(arguments: Sequence[str]) -> int:
    """Run the parts of a tier; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__.splitlines()[0])
    parser.add_argument("tier", choices=TIERS)
    tier = TIERS[parser.parse_args(arguments).tier]
    try:
        results = [result for part in tier for result in run_or_instead(part)]
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{summary(results)}\n")
    return int(any(result.has_failed for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
