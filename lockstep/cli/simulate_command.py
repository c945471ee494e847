"""`lockstep simulate SPEC`: predicts a step's length, where its time goes, and whether the job fits in memory."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.output import write_text
from lockstep.cli.run_cost import add_cost_options, cost_of
from lockstep.contracts.errors import FileAccessError, MalformedError

if TYPE_CHECKING:
    from lockstep.simulator.spec import JobSpec


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "simulate",
        help="predict what a step of a job should take, where its time goes, and whether the job fits in memory",
        description="Simulates one step of the job that SPEC describes (YAML, see docs/simulator.md): step time, "
        "tokens/s, MFU, communication, bubble, and peak memory of every pipeline stage.",
    )
    parser.add_argument("spec", metavar="SPEC", type=Path, help="YAML file of model, strategy, cluster and batch")
    add_cost_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write the timeline as a Chrome trace (Perfetto)")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="write the timeline as an SVG picture")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Simulate, print, and write the requested files.

    Raises
    ------
    LockstepError
        The specification cannot be used, the job cannot be simulated, or a file cannot be written.
    """
    from lockstep.cli.simulation.text import forecast_json, text_of  # noqa: PLC0415  (services only)

    cost = cost_of(arguments)
    spec = read_spec(arguments.spec)
    found = spec.forecast()
    if arguments.trace is not None or arguments.picture is not None:
        _write_timeline(spec, arguments.trace, arguments.picture)
    found_json = forecast_json(found) | {"cost": cost.as_dict(found)}
    print(json.dumps(found_json) if arguments.json else text_of(spec, found, cost))
    return 0


def read_spec(path: Path) -> "JobSpec":
    """Return the job that a file describes; files that it names are relative to it.

    Raises
    ------
    LockstepError
        It cannot be read or used; the message names line and column.
    """
    from lockstep.contracts.yaml_text import PAGE  # noqa: PLC0415
    from lockstep.simulator.spec import load_spec  # noqa: PLC0415  (services only)

    try:
        with path.open("rb") as file:
            text = file.read(PAGE.text_bytes + 1).decode("utf-8")
    except OSError as error:
        raise FileAccessError(f"specification {path}", error) from None
    except UnicodeDecodeError as error:
        raise MalformedError("text", where=str(path), got=error, expected="UTF-8") from None
    return load_spec(text, str(path), folder=path.parent)


def _write_timeline(spec: "JobSpec", trace: Path | None, picture: Path | None) -> None:
    from lockstep.cli.simulation.chrome import chrome_trace  # noqa: PLC0415
    from lockstep.cli.simulation.picture import timeline_picture  # noqa: PLC0415
    from lockstep.simulator.step_timeline import simulated_timeline  # noqa: PLC0415

    rows, step_s = simulated_timeline(spec)
    if trace is not None:
        write_text(trace, chrome_trace(rows, spec.name) + "\n", "--trace")
    if picture is not None:
        write_text(picture, timeline_picture(rows, step_s, spec.name) + "\n", "--picture")
