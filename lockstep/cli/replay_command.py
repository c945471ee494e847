"""`lockstep replay STEPLOG`: the incidents that the live coordinator would have raised on a recorded log."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.contracts.domains import DEFAULT_ORDER, Domain
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from coordinator.replay import Replayed


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "replay",
        help="tell the incidents of a recorded step log",
        description="Runs the coordinator's own state machine on a step log (Parquet, one row per rank and step) and "
        "prints the incidents that it would have raised live.",
        epilog="Columns, whole numbers: rank, step, start_ns, duration_ns, compute_ns, host_ns, data_ns, gc_ns and "
        "KIND_wait_ns of every kind of domain the job has (tp, cp, ep, dp, pp, world); where known KIND_transfer_ns, "
        "KIND_bytes, tokens, flags, received_ns, and run, a name. A log that cannot be true is refused.",
    )
    parser.add_argument("steplog", metavar="STEPLOG", help="Parquet file, or directory of the parts of one log")
    parser.add_argument(
        "--domains", default="", metavar="DEGREES", help="parallel degrees, e.g. tp=8,cp=1,ep=1,dp=16,pp=4"
    )
    parser.add_argument("--order", default=DEFAULT_ORDER, help="order of the degrees, fastest varying first")
    parser.add_argument(
        "--groups", metavar="FILE", help="YAML or JSON: lists of ranks by kind of domain, instead of the degrees'"
    )
    parser.add_argument("--ranks-per-node", type=int, default=8, metavar="N", help="ranks of one host (default: 8)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.set_defaults(act=act)


def act(arguments: argparse.Namespace) -> int:
    """Print the incidents of every run in the log, in the order of their opening.

    Raises
    ------
    LockstepError
        The log or the domains cannot be used; nothing was printed then.
    """
    from coordinator import steplog  # noqa: PLC0415  (needs the coordinator's packages)
    from coordinator.policy import Policy  # noqa: PLC0415
    from coordinator.replay import replay, to_line, topology_of, world_size_of  # noqa: PLC0415

    if arguments.ranks_per_node < 1:
        raise ConfigError(f"--ranks-per-node: got {arguments.ranks_per_node}, expected at least 1")
    groups = read_groups(Path(arguments.groups)) if arguments.groups else []
    lines = []
    for log in steplog.read(Path(arguments.steplog)):
        world = world_size_of(arguments.domains, log)
        topology = topology_of(world, arguments.domains, order=arguments.order, groups=groups)
        told = replay(log, topology, Policy(), ranks_per_node=arguments.ranks_per_node)
        _warn(log.run, told)
        lines += [to_line(each, ranks_per_node=arguments.ranks_per_node) for each in told.incidents.values()]
    for line in lines:
        print(json.dumps(line) if arguments.json else _text(line))
    if not lines and not arguments.json:
        print("no incidents")
    return 0


def read_groups(file: Path) -> list[Domain]:
    """Return the groups of a file that maps kinds to lists of ranks, `{dp: [[0, 2], [1, 3]]}`.

    Raises
    ------
    ConfigError
        It cannot be read, or is no such mapping; the message names kind and place.
    """
    import yaml  # noqa: PLC0415  (services only)

    try:
        value = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"groups file {file}: {error}") from None
    if not isinstance(value, dict) or not set(value) <= set(DOMAIN_KINDS):
        raise ConfigError(f"groups file {file}: got {value!r:.100}, expected lists of ranks by kind of {DOMAIN_KINDS}")
    return [
        _group(kind, place, ranks, file) for kind, groups in value.items() for place, ranks in enumerate(groups or ())
    ]


def _group(kind: str, place: int, ranks: Any, file: Path) -> Domain:
    is_list = isinstance(ranks, list) and bool(ranks) and all(type(rank) is int for rank in ranks)
    if not is_list or len(set(ranks)) != len(ranks) or not 0 <= min(ranks) <= max(ranks) < WORLD_SIZE_MAX:
        raise ConfigError(f"groups file {file}: {kind}[{place}]: got {ranks!r:.100}, expected a list of ranks")
    return Domain(kind, f"{kind}{place}", tuple(sorted(ranks)))


def _warn(run: str, told: "Replayed") -> None:
    refused = {reason: count for reason, count in told.rejected.items() if count}
    if refused:
        print(f"lockstep: run {run}: rows refused, as they would be live: {refused}", file=sys.stderr)


def _text(line: dict[str, Any]) -> str:
    ranks = line["ranks"]
    named = ",".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")  # noqa: PLR2004
    where = f" in {line['domain']['kind']} domain {line['domain']['id']}" if line["domain"] else ""
    until = "open" if line["closed_step"] is None else f"closed at step {line['closed_step']}"
    head = (
        f"{line['run']}: {line['kind']} by {line['cause']}, {line['scope']} {named}{where}: "
        f"{line['slowdown_ratio']:+.1%}, from step {line['onset_step']}, told at step {line['detected_step']}, "
        f"{until}, {line['lost_device_seconds']:.1f} device seconds lost"
    )
    return "\n".join((head, *(f"    {each}" for each in line["evidence"])))
