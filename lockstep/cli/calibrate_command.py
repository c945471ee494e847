"""`lockstep calibrate SPEC`: fits the simulator to measurements, for `simulate`, `whatif` and the coordinator."""

import argparse
import csv
import json
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.cli.output import write_text
from lockstep.cli.simulate_command import read_spec
from lockstep.contracts.errors import ConfigError, FileAccessError, LockstepError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstep.simulator.calibration.calibrate import Observation
    from lockstep.simulator.calibration.measured import OperatorTimes
    from lockstep.simulator.spec import JobSpec

STEP_COLUMN = "step_seconds"
_ROWS_MAX = 10_000
_SECONDS_MAX = 3600
_LOCAL_RANKS_MAX = 64


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "calibrate",
        help="fit the simulator to measured steps, and write the result for simulate, whatif and the coordinator",
        description="Fits device and links of the job that SPEC (YAML, see docs/simulator.md) describes to measured "
        "steps, and prints the section `calibration` with the error on steps that were held out of the fit.",
        epilog="A specification reads the file with `calibration: {file: FILE}`.",
    )
    parser.add_argument("spec", metavar="SPEC", type=Path, help="YAML file of model, strategy, cluster and batch")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--runs",
        metavar="CSV",
        type=Path,
        help=f"measured runs: a column {STEP_COLUMN}, others named by path of the specification (strategy.tp, batch); "
        "an empty cell leaves SPEC's value",
    )
    source.add_argument(
        "--steps", metavar="LOG", type=Path, help="a recording or step log (Parquet) of healthy steps of this job"
    )
    source.add_argument(
        "--operators",
        action="store_true",
        help="measure operators on this machine's device with PyTorch: products, memory, attention, all-reduces",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="with --operators (default: cuda)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="with --operators: about how long (default: 60)"
    )
    parser.add_argument(
        "--local-ranks",
        type=int,
        default=1,
        metavar="N",
        help="with --operators: processes of this host whose all-reduces are measured (default: 1, none)",
    )
    parser.add_argument("--run", default="", metavar="NAME", help="the run to read if the log holds several")
    parser.add_argument(
        "--traces",
        metavar="TRACE",
        type=Path,
        nargs="+",
        default=[],
        help="with --steps: traces of healthy ranks, which separate matrix products from other operators",
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the section to FILE instead")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Fit, and print or write the section.

    Raises
    ------
    LockstepError
        Specification or measurements cannot be used, are not of one job, or are too few.
    """
    spec = read_spec(arguments.spec)
    if arguments.runs is not None:
        if arguments.traces or arguments.run:
            raise ConfigError("--traces, --run: got one of them with --runs, expected --steps with them")
        found = _of_runs(spec, arguments.runs)
    elif arguments.operators:
        found = _of_operators(spec, arguments)
    else:
        found = _of_steps(spec, arguments.steps, arguments.run, arguments.traces)
    text = yaml_text(found)
    if arguments.output is None:
        print(text, end="")
        return 0
    write_text(arguments.output, text, "--output")
    band = found.get("error_band_ratio")
    of_steps = "" if band is None else f"the forecast of steps held out of the fit is within +-{band:.1%}"
    print(f"{arguments.output}: {of_steps or found['source']}")
    return 0


def yaml_text(found: dict[str, Any]) -> str:
    """Return the section as YAML, one field per line."""
    lines = []
    for name, value in found.items():
        if not isinstance(value, dict):
            lines.append(f"{name}: {json.dumps(value)}")
            continue
        lines.append(f"{name}:" if value else f"{name}: {{}}")
        for key, each in value.items():
            inner = ", ".join(f"{ratio}: {number}" for ratio, number in each.items()) if isinstance(each, dict) else ""
            lines.append(f"  {json.dumps(key) if inner else key}: {f'{{{inner}}}' if inner else json.dumps(each)}")
    return "\n".join(lines) + "\n"


def _of_operators(spec: "JobSpec", arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the section of operators that are measured here; it has no band, which steps alone have."""
    from lockstep.cli.operator_timing import measure_device  # noqa: PLC0415
    from lockstep.simulator.calibration.device_fit import fit_device  # noqa: PLC0415
    from lockstep.simulator.calibration.document import calibration_document  # noqa: PLC0415

    if spec.calibration is not None:
        raise ConfigError(
            f"calibration of {spec.name}: got one, expected a specification without, to measure its device"
        )
    if not 0 < arguments.seconds <= _SECONDS_MAX:
        raise ConfigError(f"--seconds: got {arguments.seconds}, expected above 0 and at most {_SECONDS_MAX}")
    if not 1 <= arguments.local_ranks <= _LOCAL_RANKS_MAX:
        raise ConfigError(f"--local-ranks: got {arguments.local_ranks}, expected 1 to {_LOCAL_RANKS_MAX}")
    measured = measure_device(
        arguments.device,
        seconds=arguments.seconds,
        width=spec.model.precision.activation,
        local_ranks=arguments.local_ranks,
    )
    found = fit_device(spec.cluster, measured)
    errors = ", ".join(f"{kind} +-{error:.0%}" for kind, error in found.held_out_errors.items())
    source = f"operators on {arguments.device}; error of those held out: {errors}"
    return calibration_document(found.parameters, error_band_ratio=None, source=source)


def _of_runs(spec: "JobSpec", path: Path) -> dict[str, Any]:
    from lockstep.simulator.calibration.calibrate import calibrate, select_names  # noqa: PLC0415
    from lockstep.simulator.calibration.document import calibration_document  # noqa: PLC0415

    if spec.calibration is not None:
        raise ConfigError(
            f"calibration of {spec.name}: got one, expected a specification without, as it is fitted again"
        )
    rows = list(_observations(spec, path))
    names = select_names(rows, spec.cluster)
    found = calibrate(rows, spec.cluster, names=names)
    source = f"{path.name}: {len(rows)} configurations, every second one held out"
    return calibration_document(found.parameters, error_band_ratio=found.error_band_ratio, source=source)


def _observations(spec: "JobSpec", path: Path) -> "Iterator[Observation]":
    """Yield each configuration with its median step, so that none is fitted and held out at once."""
    from lockstep.simulator.calibration.calibrate import Observation  # noqa: PLC0415

    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:  # spreadsheets write a mark of the byte order
            reader = csv.DictReader(stream)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            rows = [(reader.line_num, row) for _, row in zip(range(_ROWS_MAX + 1), reader, strict=False)]
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"--runs {path}", error) from None
    if len(rows) > _ROWS_MAX or len(rows) < 2:  # noqa: PLR2004  # one fitted, one held out
        raise MalformedError("runs", where=str(path), got=f"{len(rows)} rows", expected=f"2 to {_ROWS_MAX}")
    if STEP_COLUMN not in (reader.fieldnames or ()):
        raise MalformedError("columns", where=str(path), got=reader.fieldnames, expected=STEP_COLUMN)
    measured: dict[str, tuple[JobSpec, list[float]]] = {}
    for number, row in rows:
        where = f"{path}, line {number}"
        if None in row:
            expected = f"{len(reader.fieldnames)} cells"
            raise MalformedError("row", where=where, got=f"{len(row[None])} more cells", expected=expected)
        changes = {name: _value(text) for name, text in row.items() if name != STEP_COLUMN and (text or "").strip()}
        seconds = _seconds(row[STEP_COLUMN], where)
        try:
            job = spec.changed_by(changes)
        except LockstepError as error:
            raise ConfigError(f"{where}: {error}") from error
        if job.cluster.shape != spec.cluster.shape:
            expected = "the specification's, of which a run takes the first devices: one machine is fitted"
            raise MalformedError("cluster", where=where, got="another one", expected=expected)
        measured.setdefault(json.dumps(job.checked, sort_keys=True), (job, []))[1].append(seconds)
    if len(measured) < 2:  # noqa: PLR2004
        expected = "at least 2, of which every second one is held out"
        raise MalformedError("runs", where=str(path), got=f"{len(rows)} of one configuration", expected=expected)
    for job, steps in measured.values():
        yield Observation(tree=job.tree(), batch=job.batch, seconds=median(steps), options=job.options)


def _seconds(text: str | None, where: str) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = nan
    if not (isfinite(seconds) and seconds > 0):
        raise MalformedError(STEP_COLUMN, where=where, got=text, expected="seconds above 0")
    return seconds


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _of_steps(spec: "JobSpec", path: Path, run: str, traces: list[Path]) -> dict[str, Any]:
    from coordinator.record.window import read_window  # noqa: PLC0415  (needs the coordinator's packages)
    from lockstep.contracts.domains import from_degrees  # noqa: PLC0415
    from lockstep.simulator.calibration.online import Setup, fit  # noqa: PLC0415

    if not path.exists():
        raise ConfigError(f"step log {path}: got no such file or folder, expected a recording or step log")
    setup = Setup.of(spec)
    topology = from_degrees(setup.degrees, spec.degrees.ranks)
    model = fit(setup, read_window(path, topology, run=run), operators=_operators(traces))
    return model.calibration | {"source": f"{path.name}: {model.steps} steps, the second half held out"}


def _operators(traces: list[Path]) -> "OperatorTimes | None":
    from lockstep.simulator.calibration.measured import mean_times, operator_times  # noqa: PLC0415
    from lockstep.trace.summarise import summarise_trace  # noqa: PLC0415

    found = []
    for rank, path in enumerate(traces):
        summary = summarise_trace(path, run="", node="", rank=rank, request_id=0, steps=1)
        times = operator_times(summary)
        if times is None:
            got = summary.error or "one sort of operators"
            raise MalformedError("trace", where=str(path), got=got, expected="products of matrices and other operators")
        found.append(times)
    return replace(mean_times(found), ranks=()) if found else None  # their ranks are unknown
