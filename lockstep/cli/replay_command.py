"""`lockstep replay STEPLOG`: the incidents that a coordinator raised on a recording, or would raise on a step log."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.contracts.domains import DEFAULT_ORDER, Domain, Topology, check_order
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.html.units import counted, format_ns, format_ranks, format_step

if TYPE_CHECKING:
    from coordinator.record.steplog import StepLog


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "replay",
        help="replay a recording or a step log and print its incidents",
        description="Runs the coordinator's own state machine on a recording (`--record`) or a step log (Parquet, one "
        "row per rank and step) and prints the incidents that it reported live, or would have reported.",
        epilog="A step log has these columns of integers: rank, step, start_ns, duration_ns, compute_ns, host_ns, "
        "data_ns, gc_ns, and KIND_wait_ns for every kind of domain of the job (tp, cp, ep, dp, pp, world). Optional "
        "are KIND_transfer_ns, KIND_bytes, tokens, samples, work, model_flops, flags, received_ns, and the text "
        "column run. A step log with impossible values is refused, unless --lenient is given. A recording contains "
        "its domains, nodes and thresholds. It holds all input as it came: impossible values are counted and "
        "skipped, as they were live.",
    )
    parser.add_argument("steplog", metavar="STEPLOG", help="Parquet file, or directory of the parts of one log")
    parser.add_argument(
        "--domains", default="", metavar="DEGREES", help="parallel degrees, e.g. tp=8,cp=1,ep=1,dp=16,pp=4"
    )
    parser.add_argument("--order", default=DEFAULT_ORDER, help="order of the degrees, fastest varying first")
    parser.add_argument(
        "--groups", metavar="FILE", help="YAML or JSON: lists of ranks by kind of domain, instead of degrees"
    )
    parser.add_argument(
        "--ranks-per-node", type=int, default=8, metavar="N", help="ranks of one host of a step log (default: 8)"
    )
    parser.add_argument(
        "--lenient", action="store_true", help="count and skip impossible values in a step log, as a coordinator does"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line instead of a table")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the incidents of every run in the log, in the order of their opening.

    Raises
    ------
    LockstepError
        The log or the domains cannot be used; nothing was printed.
    """
    from coordinator.record.recording import parts_of  # noqa: PLC0415  (needs the coordinator's packages)

    if arguments.ranks_per_node < 1:
        raise ConfigError(f"--ranks-per-node: got {arguments.ranks_per_node}, expected at least 1")
    check_order(arguments.order, where="--order")
    groups = read_groups(Path(arguments.groups)) if arguments.groups else []
    log = Path(arguments.steplog)
    if not log.exists():
        raise ConfigError(f"step log {log}: got no such file or folder, expected a recording or step log")
    parts = parts_of(log)
    lines, quiet = _of_recording(parts, arguments, groups) if parts else _of_step_log(arguments, groups)
    for line in lines:
        print(json.dumps(line) if arguments.json else _text(line))
    for text in () if arguments.json else quiet:
        print(text)
    return 0


def _of_recording(
    parts: list[Path], arguments: argparse.Namespace, groups: list[Domain]
) -> tuple[list[dict[str, Any]], list[str]]:
    from coordinator.record.backtest import to_line, topology_of  # noqa: PLC0415
    from coordinator.record.recording import read_parts  # noqa: PLC0415
    from coordinator.record.replay import replay  # noqa: PLC0415

    def shape(world_size: int) -> Topology:
        return topology_of(world_size, arguments.domains, order=arguments.order, groups=groups)

    replayed = replay(read_parts(parts), shape if arguments.domains or groups else None)
    _warn("recording", replayed.rejected)
    lines = [to_line(each, nodes=replayed.nodes.get(each.run)) for each in replayed.incidents.values()]
    return lines, [] if lines else [f"no incidents in {counted(replayed.evaluated_steps, 'step')}"]


def _of_step_log(arguments: argparse.Namespace, groups: list[Domain]) -> tuple[list[dict[str, Any]], list[str]]:
    from coordinator.record import steplog  # noqa: PLC0415
    from coordinator.record.backtest import backtest, to_line, topology_of, world_size_of  # noqa: PLC0415
    from coordinator.settings.policy import Policy  # noqa: PLC0415

    lines: list[dict[str, Any]] = []
    quiet = []
    skipped: Counter[str] | None = Counter() if arguments.lenient else None
    for log in steplog.read(Path(arguments.steplog), skipped):
        world = world_size_of(arguments.domains, log)
        topology = topology_of(world, arguments.domains, order=arguments.order, groups=groups)
        replayed = backtest(log, topology, Policy(), ranks_per_node=arguments.ranks_per_node, lenient=arguments.lenient)
        _warn(f"run {log.run}", replayed.rejected)
        _warn_of_waits(log, topology)
        lines += [to_line(each, ranks_per_node=arguments.ranks_per_node) for each in replayed.incidents.values()]
        if not replayed.incidents:
            quiet.append(_quiet_text(log, replayed.evaluated_steps))
    _warn("unreadable, by column", skipped or {})
    return lines, quiet or ([] if lines else ["no incidents: the log has no rows"])


def _quiet_text(log: "StepLog", steps: int) -> str:
    """Return what was evaluated without an incident; the length of a step shows columns of another unit."""
    columns = log.columns
    usual = format_ns(median(columns["duration_ns"].tolist()))
    ranks = counted(len(set(columns["rank"].tolist())), "rank")
    return f"{log.run}: no incidents in {counted(steps, 'step')} of {ranks}, {usual} each at the median"


def _warn_of_waits(log: "StepLog", topology: Topology) -> None:
    """Name the waits that no domain of the job explains; their groups are unknown, so all ranks count as peers."""
    known = {domain.kind for domain in topology.domains} | {"world"}
    others = [kind for kind in DOMAIN_KINDS if kind not in known and _has_waits(log, kind)]
    if others:
        print(
            f"lockstep: run {log.run}: waits of {', '.join(others)}, but no such domains, so ranks that do other work "
            "may count as peers; expected degrees in --domains, or --groups",
            file=sys.stderr,
        )


def _has_waits(log: "StepLog", kind: str) -> bool:
    waits_ns = log.columns.get(f"{kind}_wait_ns")
    return waits_ns is not None and bool((waits_ns > 0).any())


def read_groups(file: Path) -> list[Domain]:
    """Return the groups of a file that maps kinds to lists of ranks, `{dp: [[0, 2], [1, 3]]}`.

    Raises
    ------
    ConfigError
        It cannot be read, or is not such a mapping; the message names kind and place.
    """
    from lockstep.contracts.yaml_text import TextLimit, read_yaml_file  # noqa: PLC0415  (services only)

    value = read_yaml_file(file, "groups file", TextLimit(text_bytes=16 << 20, values=1 << 20))  # lists of ranks
    if not isinstance(value, dict) or not set(value) <= set(DOMAIN_KINDS):
        raise ConfigError(f"groups file {file}: got {value!r:.100}, expected lists of ranks by kind of {DOMAIN_KINDS}")
    for kind, groups in value.items():
        if not isinstance(groups, list):
            raise ConfigError(f"groups file {file}: {kind}: got {groups!r:.100}, expected lists of ranks")
    made = [_group(kind, place, ranks, file) for kind, groups in value.items() for place, ranks in enumerate(groups)]
    taken: dict[tuple[str, int], str] = {}
    for group in made:
        for rank in group.ranks:
            other = taken.setdefault((group.kind, rank), group.name)
            if other != group.name:
                raise ConfigError(
                    f"groups file {file}: got rank {rank} in {other} and {group.name}, expected one group"
                )
    return made


def _group(kind: str, place: int, ranks: Any, file: Path) -> Domain:
    is_list = isinstance(ranks, list) and bool(ranks) and all(type(rank) is int for rank in ranks)
    if not is_list or len(set(ranks)) != len(ranks) or not 0 <= min(ranks) <= max(ranks) < WORLD_SIZE_MAX:
        raise ConfigError(f"groups file {file}: {kind}[{place}]: got {ranks!r:.100}, expected a list of ranks")
    return Domain(kind, f"{kind}{place}", tuple(sorted(ranks)))


def _warn(what: str, counts: Mapping[str, int]) -> None:
    refused = ", ".join(f"{reason}: {count}" for reason, count in counts.items() if count)
    if refused:
        print(f"lockstep: {what}: rows refused, as in live operation: {refused}", file=sys.stderr)


def _text(line: dict[str, Any]) -> str:
    where = f" in {line['domain']['kind']} domain {line['domain']['id']}" if line["domain"] else ""
    until = "open" if line["closed_step"] is None else f"closed at step {line['closed_step']}"
    ratio = line["slowdown_ratio"]  # of a hang: time without a step over the length of a step
    extent = f"no step for as long as {ratio:,.0f} steps" if line["kind"] == "hang" else f"{ratio:+.1%}"
    head = (
        f"{line['run']}: {line['kind']} by {line['cause']}, {_subject(line['scope'], line['ranks'])}{where}: "
        f"{extent}, from {format_step(line['onset_step'])}, found at {format_step(line['detected_step'])}, "
        f"{until}, {line['lost_device_seconds']:.1f} device seconds lost"
    )
    return "\n".join((head, *(f"    {each}" for each in line["evidence"])))


def _subject(scope: str, ranks: list[int]) -> str:
    """Return what an incident is about: "rank 3", "ranks 1, 5", "node of ranks 8-15", "job"."""
    named = f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"
    if not ranks:
        return scope
    return named if scope == "rank" else f"{scope} of {named}"
