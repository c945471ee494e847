"""`lockstep fuse PATH`: computes which gradients to send together, and when communication would then end."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.contracts.errors import ConfigError, FileAccessError, MalformedError, NoTraceError

if TYPE_CHECKING:
    from lockstep.diagnosis.gradient_fusion import StepGradients, SummingLink

_LIST_BYTES_MAX = 4 * 2**20
_HUGE = 1e15


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "fuse",
        help="compute which gradients to send together, and when communication would then end",
        description="Reads the gradients of a step from a trace, a folder of traces, or a list. It predicts when "
        "their communication ends: each by itself, all in one bucket, in buckets of fixed size as in DDP, in those of "
        "Hermes's greedy search, and in the best segmentation.",
        epilog='A list is JSON: {"gradients": [{"ready_seconds": 0.010, "bytes": 4e6}, ...], "link": '
        '{"latency_seconds": 1e-4, "bytes_per_second": 1e10}}, in the order of backward. The bandwidth counts the '
        "bytes of gradients, not those on the wire.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="a trace, a folder of traces, or a list of gradients")
    parser.add_argument(
        "--rank", type=int, metavar="N", help="rank of a folder whose gradients to read (default: the first)"
    )
    parser.add_argument(
        "--latency", type=float, metavar="SECONDS", help="latency of an all-reduce, instead of the trace's or list's"
    )
    parser.add_argument(
        "--bandwidth", type=float, metavar="BYTES_PER_SECOND", help="bandwidth of an all-reduce, likewise"
    )
    parser.add_argument(
        "--bucket", type=float, default=25 * 2**20, metavar="BYTES", help="size of fixed buckets (default: 25 MiB)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Predict and print.

    Raises
    ------
    LockstepError
        PATH contains no gradients, the link is unknown, or an option cannot be used.
    """
    from lockstep.cli.simulation.fusion_text import fusion_text  # noqa: PLC0415  (services only)
    from lockstep.diagnosis.fusion_plans import plans_of  # noqa: PLC0415

    for name in ("latency", "bandwidth", "bucket"):
        value = getattr(arguments, name)
        if value is not None and not (0 if name == "latency" else 1) <= value <= _HUGE:
            raise ConfigError(f"--{name}: got {value}, expected a number above 0")
    gradients = _read_list(arguments.path) or _read_traces(arguments.path, arguments.rank)
    link = _link(gradients, arguments.latency, arguments.bandwidth)
    plans = plans_of(gradients, link, bucket_bytes=arguments.bucket)
    print(json.dumps(plans.as_json()) if arguments.json else fusion_text(gradients, plans))
    return 0


def _link(gradients: "StepGradients", latency_s: float | None, bandwidth: float | None) -> "SummingLink":
    from lockstep.diagnosis.gradient_fusion import SummingLink  # noqa: PLC0415

    known = gradients.link
    if known is None and (latency_s is None or bandwidth is None):
        raise ConfigError(f"link: {gradients.why}: give --latency and --bandwidth")
    if known is not None and latency_s is None and bandwidth is None:
        return known
    return SummingLink(
        latency_s=known.latency_s if latency_s is None and known else latency_s or 0.0,
        bytes_per_second=known.bytes_per_second if bandwidth is None and known else bandwidth or 1.0,
        source="as given"
        if known is None or None not in (latency_s, bandwidth)
        else f"as given, the rest {known.source}",
    )


def _read_list(path: Path) -> "StepGradients | None":
    """Return the gradients of a list, or None if the file is something else."""
    try:
        if not path.is_file() or path.stat().st_size > _LIST_BYTES_MAX or path.suffix == ".gz":
            return None
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise FileAccessError(f"path {path}", error) from None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    if {"ranks", "findings"} <= document.keys():
        expected = "the folder it lies in, with the columns of the traces"
        raise MalformedError("gradients", where=str(path), got="a summary, which has no single sums", expected=expected)
    if "gradients" not in document:
        return None
    return _gradients(document, str(path))


def _gradients(document: dict[str, Any], where: str) -> "StepGradients":
    from lockstep.diagnosis.gradient_fusion import GRADIENTS_MAX, StepGradients, SummingLink  # noqa: PLC0415

    listed = document["gradients"]
    if not isinstance(listed, list) or not 0 < len(listed) <= GRADIENTS_MAX:
        got = f"{len(listed)} entries" if isinstance(listed, list) else type(listed).__name__
        raise MalformedError("gradients", where=where, got=got, expected=f"a list of 1 to {GRADIENTS_MAX}")
    ready_s, volumes = [], []
    for index, each in enumerate(listed):
        ready_s.append(_number(each, "ready_seconds", f"gradients[{index}]", where))
        volumes.append(_number(each, "bytes", f"gradients[{index}]", where))
        if index and ready_s[index] < ready_s[index - 1]:
            expected = f"at least {ready_s[index - 1]}, when the one before is"
            raise MalformedError(
                f"gradients[{index}].ready_seconds", where=where, got=ready_s[index], expected=expected
            )
    link = None
    if document.get("link") is not None:
        bandwidth = _number(document["link"], "bytes_per_second", "link", where)
        if not bandwidth:
            raise MalformedError("link.bytes_per_second", where=where, got=bandwidth, expected="a number above 0")
        latency_s = _number(document["link"], "latency_seconds", "link", where)
        link = SummingLink(latency_s=latency_s, bytes_per_second=bandwidth, source="as given")
    return StepGradients(ready_s=tuple(ready_s), volume_bytes=tuple(volumes), link=link, why=f"{where} has none")


def _number(value: Any, key: str, what: str, where: str) -> float:
    number = value.get(key) if isinstance(value, dict) else None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= _HUGE:
        raise MalformedError(f"{what}.{key}", where=where, got=number, expected="a number of at least 0")
    return float(number)


def _read_traces(path: Path, rank: int | None) -> "StepGradients":
    from lockstep.analysis.sources import find_sources, load_source, rank_of  # noqa: PLC0415  (services only)
    from lockstep.diagnosis.communication_causes.collectives import collectives_of  # noqa: PLC0415
    from lockstep.diagnosis.gradient_fusion import gradients_of  # noqa: PLC0415

    found = find_sources([path])
    if not found.sources:
        raise NoTraceError([str(each.error) for each in found.skipped])
    chosen, others, known = None, [], []
    for place, source in enumerate(found.sources[:_RANKS_MAX]):
        columns = load_source(source).columns
        number = rank_of(source, columns)
        number = number if number >= 0 else place
        known.append(number)
        others.append(collectives_of(columns, rank=number))
        if chosen is None and rank in (None, number):
            chosen = columns
    if chosen is None:
        raise ConfigError(f"--rank: got {rank}, expected one of {known}")
    return gradients_of(chosen, others, where=str(path))


_RANKS_MAX = 16
"""Traces of a folder that are read: the link of a few ranks represents all."""
