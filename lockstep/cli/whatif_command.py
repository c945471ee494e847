"""`lockstep whatif`: predicts a step after a repair, a change, or another distribution over ranks."""

import argparse
import json
import sys
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cli.profile_command import DEFAULT_URL, read_token
from lockstep.cli.run_cost import add_cost_options, cost_of
from lockstep.cli.simulate_command import read_spec
from lockstep.contracts.errors import ConfigError, LockstepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lockstep.simulator.spec import JobSpec
    from lockstep.simulator.whatif import Alternative, Change, OnDone

_DEGREES = ("tp", "cp", "ep", "dp", "pp", "virtual", "zero")
_CHANGES_MAX = 10_000


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "whatif",
        help="predict the gain of repairing a link or a rank, or of running a job in another way",
        description="Simulates the job that SPEC describes and alternatives to it, and sorts them by predicted step "
        "time (by time per token if the batch differs), with the gain over the present job. Alternatives that run out "
        "of memory come last. Without options, it repairs every degraded link and rank, one at a time and all "
        "together. With --run, the job is a monitored run, with the model that the coordinator fitted to its healthy "
        "steps; without other options, it varies batch, micro-batches, buckets and degrees.",
        epilog="Options combine: an alternative takes one value of each. Commas separate values: "
        "`--heal rank/5,network/2` gives two alternatives, `--heal rank/5 --heal network/2` gives one.",
    )
    parser.add_argument(
        "spec", metavar="SPEC", type=Path, nargs="?", help="YAML file of model, strategy, cluster and batch"
    )
    parser.add_argument("--run", metavar="NAME", default="", help="a monitored run, instead of SPEC")
    parser.add_argument("--coordinator", default=DEFAULT_URL, metavar="URL", help=f"with --run; default: {DEFAULT_URL}")
    parser.add_argument(
        "--token-file", metavar="FILE", help="with --run: file with the API token, if the coordinator requires one"
    )
    parser.add_argument(
        "--heal",
        action="append",
        default=[],
        metavar="NAMES",
        help="links (LEVEL/CHILD) or ranks (rank/NUMBER), or all, or each: one at a time and all together",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUES", help="e.g. strategy.micro_batches=8,16,32"
    )
    parser.add_argument(
        "--degrees",
        action="append",
        default=[],
        metavar="DEGREES",
        help="e.g. tp=4,pp=2; dp takes the remaining ranks if not named; repeat it for another alternative",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="try degrees, micro-batches, ZeRO, sequence parallelism, recomputation and buckets for the same number of "
        "ranks, and show the best of each layout",
    )
    parser.add_argument(
        "--limit", type=int, default=1000, metavar="N", help="most layouts that a search tries (default: 1000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="S", help="longest time of a search (default: 120)"
    )
    add_cost_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Simulate the alternatives and print them.

    Raises
    ------
    LockstepError
        The specification or an option cannot be used.
    """
    from lockstep.cli.simulation.alternatives import alternatives_json, alternatives_text  # noqa: PLC0415
    from lockstep.simulator.search import search  # noqa: PLC0415  (services only)
    from lockstep.simulator.whatif import evaluate, ranked  # noqa: PLC0415

    if not 1 <= arguments.limit <= _CHANGES_MAX:
        raise ConfigError(f"--limit: got {arguments.limit}, expected 1 to {_CHANGES_MAX}")
    if not arguments.seconds > 0:
        raise ConfigError(f"--seconds: got {arguments.seconds}, expected a time above 0")
    cost = cost_of(arguments)
    spec, notes = _job(arguments)
    now = spec.forecast()
    changes = _changes(spec, arguments)
    _check_fields(spec, changes)
    found: list[Alternative] = []
    is_whole = True
    with _progress() as on_done:
        if changes:
            found = evaluate(spec, changes, now=now, on_done=on_done)
        if arguments.search:
            more, is_whole = search(
                spec, now=now, limit=arguments.limit, seconds_max=arguments.seconds, on_done=on_done
            )
            found = ranked([*found, *more])
    if not is_whole:
        bounds = f"{arguments.limit} layouts and {arguments.seconds:g} s"
        notes.append(f"not all layouts were tried within {bounds}: see --limit, --seconds")
    if arguments.json:
        print(json.dumps(alternatives_json(now, found, is_whole=is_whole, notes=notes, cost=cost)))
    else:
        print(alternatives_text(spec, now, found, notes, cost))
    return 0


def _job(arguments: argparse.Namespace) -> "tuple[JobSpec, list[str]]":
    """Return the job of SPEC or of the monitored run, and notes on it."""
    if (arguments.spec is None) != bool(arguments.run):
        got = "neither" if arguments.spec is None else "both"
        raise ConfigError(f"SPEC, --run: got {got}, expected one of them")
    if arguments.spec is not None:
        return read_spec(arguments.spec), []
    from lockstep.cli.monitored_run import read_monitored_run  # noqa: PLC0415  (services only)

    found = read_monitored_run(arguments.coordinator, arguments.run, read_token(arguments.token_file))
    return found.spec, list(found.notes)


def _changes(spec: "JobSpec", arguments: argparse.Namespace) -> "list[Change]":
    """Return the alternatives that the options name."""
    from lockstep.simulator.whatif import Change, attributions, variations  # noqa: PLC0415

    options: list[Sequence[Change]] = [_heals(spec, names) for names in arguments.heal]
    options += [_sets(text) for text in arguments.set]
    if arguments.degrees:
        options.append([_degrees(spec, text) for text in arguments.degrees])
    if not options:
        found = [] if arguments.search else attributions(spec) + (variations(spec) if arguments.run else [])
        if not found and not arguments.search:
            expected = "one of --heal, --set, --degrees, --search"
            raise ConfigError(f"change of {spec.name}: got none, and nothing is degraded, expected {expected}")
        return found
    count = 1
    for option in options:
        count *= len(option)
    if count > _CHANGES_MAX:
        raise ConfigError(f"alternatives: got {count}, expected at most {_CHANGES_MAX}")
    return [
        Change(
            name=", ".join(each.name for each in chosen),
            heal=tuple(dict.fromkeys(name for each in chosen for name in each.heal)),
            values={path: value for each in chosen for path, value in each.values.items()},
        )
        for chosen in product(*options)
    ]


def _heals(spec: "JobSpec", names: str) -> "list[Change]":
    from lockstep.simulator.whatif import Change, attributions  # noqa: PLC0415

    if names == "each":
        return attributions(spec) or [Change(name="nothing is degraded")]
    found = []
    for name in names.split(","):
        heal = spec.sick() if name == "all" else (name,)
        spec.healed(*heal)  # an unknown name is an error of the command, not of an alternative
        found.append(Change(name=f"heal {name}", heal=heal))
    return found


def _check_fields(spec: "JobSpec", changes: "Sequence[Change]") -> None:
    """Refuse changes that all name an unknown field: that is an error of the command, not of an alternative."""
    from lockstep.simulator.spec.check import UnknownKeyError  # noqa: PLC0415

    unknown = None
    for change in changes:
        try:
            change.of(spec)
        except UnknownKeyError as error:
            unknown = unknown or error
            continue
        except LockstepError:
            pass  # the alternative reports it
        return
    if unknown is not None:
        raise unknown


def _sets(text: str) -> "list[Change]":
    from lockstep.contracts.yaml_text import parse_value  # noqa: PLC0415
    from lockstep.simulator.whatif import Change  # noqa: PLC0415

    path, is_given, values = text.partition("=")
    if not is_given or not path or not values:
        raise ConfigError(f"--set: got {text!r}, expected PATH=VALUE, e.g. batch=512")
    return [
        Change(name=f"{path}={_plain(value)}", values={path: value}) for value in parse_value(f"[{values}]", "--set")
    ]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _degrees(spec: "JobSpec", text: str) -> "Change":
    from lockstep.simulator.whatif import Change  # noqa: PLC0415

    given: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name not in _DEGREES or name in given or not number.isascii() or not number.isdecimal():
            raise ConfigError(f"--degrees {text}: got {part!r}, expected one of {', '.join(_DEGREES)}, each =NUMBER")
        given[name] = int(number[:9])
    used = 1
    for name in ("tp", "cp", "pp"):
        used *= given.get(name, getattr(spec.degrees, name))
    ranks = spec.degrees.ranks
    if "dp" not in given:
        if not used or ranks % used:
            raise ConfigError(f"--degrees {text}: got {used} ranks without dp, expected a divisor of {ranks}")
        given["dp"] = ranks // used
    if given.get("pp", spec.degrees.pp) == 1:
        given.setdefault("virtual", 1)
    return Change(name=text, values={f"strategy.{name}": value for name, value in given.items()})


@contextmanager
def _progress() -> "Iterator[OnDone]":
    """Yield the receiver of progress reports: a bar on a terminal, otherwise a no-op."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.console import Console  # noqa: PLC0415  (drawing only)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("alternatives"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("alternatives", total=None)
        yield lambda done, count: progress.update(task, completed=done, total=count)
