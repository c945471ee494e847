"""`lockstep doctor`: finds what in a node's environment slows a job, and what differs between nodes."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.contracts.errors import ConfigError, FileAccessError, MalformedError
from lockstep.doctor.checks import check_all
from lockstep.doctor.facts import FACTS_VERSION, read_facts
from lockstep.doctor.fleet_facts import compare
from lockstep.doctor.verdict import FAIL, OK, ORDER, WARN, Check

_FILE_MAX_BYTES = 1 << 20
_PROBLEM = 1
_MARKS = {OK: "ok  ", WARN: "WARN", FAIL: "FAIL"}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "doctor",
        help="check what in a node's environment slows a job",
        description="Checks this node's environment: log levels, debugging switches, CPU governor and affinity, "
        "/dev/shm, limits, quotas, settings of the collective library, throttled clocks, memory errors, InfiniBand "
        "ports, NVLink. With FILES, written by --facts on several nodes, it checks those nodes and lists what differs "
        "between them. It changes nothing, and queries devices through nvidia-smi only. The exit status is 1 if "
        "something slows or stops a job.",
        epilog="To check all nodes of a Slurm job:\n"
        "  srun --ntasks-per-node=1 sh -c 'lockstep doctor --facts facts-$(hostname).json'\n"
        "  lockstep doctor facts-*.json",
    )
    parser.add_argument("files", nargs="*", metavar="FILES", help="facts of nodes to check and compare")
    parser.add_argument(
        "--pid", type=int, action="append", default=[], metavar="PID", help="check the settings of this running rank"
    )
    parser.add_argument(
        "--facts", metavar="FILE", help="write this node's facts to FILE (- is standard output) and exit"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Check and print; return 1 if a check warns or fails.

    Raises
    ------
    ConfigError
        A file cannot be read or written, or a process cannot be checked.
    MalformedError
        A file does not contain facts.
    """
    for pid in arguments.pid:
        _check_pid(pid)
    if arguments.facts is not None:
        _write(arguments.facts, read_facts(pids=arguments.pid))
        return 0
    nodes = [read_file(Path(name)) for name in arguments.files] or [read_facts(pids=arguments.pid)]
    by_host = {str(facts["host"]): _by_weight(check_all(facts)) for facts in nodes}
    between = _by_weight(compare(nodes)) if len(nodes) > 1 else []
    if arguments.json:
        report = {"nodes": {host: [asdict(c) for c in checks] for host, checks in by_host.items()}}
        print(json.dumps(report | {"between_nodes": [asdict(check) for check in between]}))
    else:
        _print(by_host, between)
    everything = [*between, *(check for checks in by_host.values() for check in checks)]
    return _PROBLEM if any(check.verdict in (WARN, FAIL) for check in everything) else 0


def _check_pid(pid: int) -> None:
    """Refuse a process whose environment cannot be read, because the checks would use this process's instead."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            file.read(1)
    except PermissionError:
        raise ConfigError(f"--pid: got {pid} of another user, expected one of this user, or root's rights") from None
    except OSError:
        raise ConfigError(f"--pid: got {pid}, expected a running process") from None


def read_file(path: Path) -> dict[str, Any]:
    """Return the facts in a file.

    Raises
    ------
    ConfigError
        It cannot be read.
    MalformedError
        It contains no facts, or those of another version.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise FileAccessError(f"facts file {path}", error) from None
    if len(text) > _FILE_MAX_BYTES:
        raise MalformedError("facts", where=str(path), got="a larger file", expected=f"at most {_FILE_MAX_BYTES} bytes")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError("facts", where=str(path), got=error, expected="JSON written by --facts") from None
    if not isinstance(facts, dict) or "host" not in facts:
        raise MalformedError("facts", where=str(path), got=type(facts).__name__, expected="JSON written by --facts")
    if facts.get("facts_version") != FACTS_VERSION:
        raise MalformedError(
            "facts_version", where=str(path), got=facts.get("facts_version"), expected=str(FACTS_VERSION)
        )
    return facts


def _write(name: str, facts: dict[str, Any]) -> None:
    text = json.dumps(facts, indent=1)
    if name == "-":
        print(text)
        return
    try:
        Path(name).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise FileAccessError(f"--facts {name}", error, expected="a file that can be written") from None


def _by_weight(checks: list[Check]) -> list[Check]:
    return sorted(checks, key=lambda check: ORDER.index(check.verdict))


def _print(by_host: dict[str, list[Check]], between: list[Check]) -> None:
    """Print the problems of every node; of a single node, print all checks."""
    for check in between:
        _print_check(check)
    for host, checks in by_host.items():
        shown = checks if len(by_host) == 1 else [check for check in checks if check.verdict in (WARN, FAIL)]
        print(f"{host}:" if shown else f"{host}: nothing found")
        for check in shown:
            _print_check(check)
    sys.stdout.flush()


def _print_check(check: Check) -> None:
    print(f"  {_MARKS.get(check.verdict, '?   ')} {check.name}: {check.found}")
    if check.advice:
        print(f"       {check.advice} ({check.source})")
