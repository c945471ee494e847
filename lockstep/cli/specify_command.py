"""`lockstep specify`: writes a specification from another program's configuration or from a run."""

import argparse
import json
import shlex
import sys
import tomllib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from lockstep.cli.output import write_text
from lockstep.cli.profile_command import DEFAULT_URL, read_token
from lockstep.contracts.errors import ConfigError, FileAccessError, MalformedError

_TEXT_MAX = 1 << 20
_PRESETS_NODE = 8
_PRESET = "DGX H100"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "specify",
        help="write a specification for simulate from the configuration of another program, or from a run",
        description="Prints the specification (YAML, see docs/simulator.md) of a job that the files of other programs "
        "configure, or that runs. Sources combine, e.g. the model of one and the strategy of another. In the order of "
        "the options below, later ones override earlier ones. What a run does not show is named in comments.",
    )
    parser.add_argument(
        "--from-run",
        metavar="RUN",
        default="",
        help="a run that the coordinator monitors, or a recording or step log of one",
    )
    parser.add_argument(
        "--coordinator", default=DEFAULT_URL, metavar="URL", help=f"with --from-run; default: {DEFAULT_URL}"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="with --from-run: file with the API token, if the coordinator requires one"
    )
    parser.add_argument("--hugging-face", metavar="JSON", type=Path, help="config.json of a model of Transformers")
    parser.add_argument("--torchtitan", metavar="TOML", type=Path, help="a job file of torchtitan")
    parser.add_argument("--megatron", metavar="FILE", type=Path, help="a file with the arguments of Megatron-LM")
    parser.add_argument("--deepspeed", metavar="JSON", type=Path, help="a configuration of DeepSpeed")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of the job (default: those of --from-run)")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens of a sample, with --hugging-face")
    parser.add_argument("--preset", help=f"preset of the cluster (default: that of --from-run, or {_PRESET})")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write to FILE instead")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print or write the specification.

    Raises
    ------
    LockstepError
        A file cannot be read, means what the simulator has not, or the specification would be refused.
    """
    from lockstep.simulator.imports.values import merged  # noqa: PLC0415  (services only)
    from lockstep.simulator.spec import load_spec  # noqa: PLC0415

    run, gaps = _run(arguments)
    ranks = arguments.ranks or _ranks(run)
    if not ranks or ranks < 1:
        raise ConfigError(f"--ranks: got {arguments.ranks}, expected at least 1")
    given = _document(arguments, ranks, run.get("model"))
    document = merged({name: value for name, value in run.items() if name != "model" or "model" not in given}, given)
    if arguments.preset or ("cluster" not in document and not arguments.from_run):
        document["cluster"] = _cluster(arguments.preset or _PRESET, ranks)
    order = ("name", "model", "batch", "strategy", "cluster", "calibration")
    if "type" in document.get("model", {}):
        gaps = [gap for gap in gaps if not gap.startswith("model:")]
    elif not arguments.from_run:
        raise ConfigError("model: got none, expected one of --from-run, --hugging-face, --torchtitan, --megatron")
    if not arguments.from_run:
        document = {"batch": ranks, "strategy": {"dp": ranks}} | document
    if "batch" in document:
        gaps = [gap for gap in gaps if not gap.startswith("batch")]
    named = sorted(document.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    text = "".join(f"# unknown: {gap}\n" for gap in gaps)
    text += "".join(f"{name}: {json.dumps(value)}\n" for name, value in named)
    if {"model", "batch", "cluster"} <= document.keys():
        load_spec(text, "the specification that was made").forecast()
    for gap in gaps:
        print(f"unknown: {gap}", file=sys.stderr)
    if arguments.output is None:
        print(text, end="")
    else:
        write_text(arguments.output, text, "--output")
    return 0


def _cluster(preset: str, ranks: int) -> dict[str, Any]:
    from lockstep.simulator.spec.machine import SIZED  # noqa: PLC0415

    return {"preset": preset} | ({"nodes": -(-ranks // _PRESETS_NODE)} if preset in SIZED else {})


def _ranks(document: Mapping[str, Any]) -> int:
    """Return the ranks of the strategy of a run's document, 0 if it has none."""
    strategy = document.get("strategy", {})
    return prod(strategy.get(name, 1) for name in ("tp", "cp", "dp", "pp")) if strategy else 0


def _run(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return what is known of the run that the option names, and what is not."""
    if not arguments.from_run:
        return {}, []
    if (path := Path(arguments.from_run)).exists():
        return _recorded(path)
    from lockstep.cli.monitored_run import read_run_document  # noqa: PLC0415  (services only)

    return read_run_document(arguments.coordinator, arguments.from_run, read_token(arguments.token_file))


def _recorded(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what the announcements of a recording, or the ranks of a step log, show of its run."""
    from coordinator.record.recorded_runs import read_run_log  # noqa: PLC0415  (needs the coordinator's packages)
    from coordinator.record.recording import parts_of, read_parts  # noqa: PLC0415
    from lockstep.contracts.domains import Domain, from_groups, unpack_ranks  # noqa: PLC0415
    from lockstep.contracts.messages import NodeAnnouncement  # noqa: PLC0415
    from lockstep.simulator.imports.run import RunFacts, document_of_run  # noqa: PLC0415

    log = read_run_log(path)
    found = [
        entry.what
        for entry in read_parts(parts_of(path))
        if isinstance(entry.what, NodeAnnouncement) and entry.what.run == log.run
    ]
    infos = [info for each in found for info in each.ranks]
    ranks = max((info.world_size for info in infos), default=int(log.columns["rank"].max(initial=0)) + 1)
    domains = from_groups(
        (
            Domain(group.kind, group.name, unpack_ranks(group.ranks, where=str(path)))
            for each in found
            for group in each.groups
        ),
        ranks,
    ).domains
    devices = {info.facts.device for info in infos if info.facts is not None and info.facts.device}
    return document_of_run(
        RunFacts(
            ranks=ranks,
            groups=[(each.kind, each.ranks) for each in domains],
            hosts={info.rank: info.hostname for info in infos},
            device=devices.pop() if len(devices) == 1 else "",
        )
    )


def _document(arguments: argparse.Namespace, ranks: int, model: Mapping[str, Any] | None) -> dict[str, Any]:
    from lockstep.simulator.imports.deepspeed import document_of_deepspeed  # noqa: PLC0415
    from lockstep.simulator.imports.hugging_face import model_of_hugging_face  # noqa: PLC0415
    from lockstep.simulator.imports.megatron import document_of_megatron  # noqa: PLC0415
    from lockstep.simulator.imports.torchtitan import document_of_torchtitan  # noqa: PLC0415
    from lockstep.simulator.imports.values import merged  # noqa: PLC0415

    found: dict[str, Any] = {}
    if arguments.hugging_face is not None:
        config = _json(arguments.hugging_face)
        model = model_of_hugging_face(config, str(arguments.hugging_face), sequence=arguments.sequence)
        found = merged(found, {"model": model})
    if arguments.torchtitan is not None:
        path = arguments.torchtitan
        made = document_of_torchtitan(_toml(path), str(path), ranks=ranks, model=model)
        found = merged(found, made)
    if arguments.megatron is not None:
        found = merged(found, document_of_megatron(_words(arguments.megatron), ranks=ranks))
    if arguments.deepspeed is not None:
        config = _json(arguments.deepspeed)
        dp, hidden = found.get("strategy", {}).get("dp", ranks), found.get("model", {}).get("hidden")
        found = merged(found, document_of_deepspeed(config, str(arguments.deepspeed), dp=dp, hidden=hidden))
    return found


def _words(path: Path) -> list[str]:
    try:
        return shlex.split(_text(path).replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise MalformedError("arguments", where=str(path), got=error, expected="words as a shell reads them") from None


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(_TEXT_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise FileAccessError(f"{path}", error) from None
    if len(text) > _TEXT_MAX:
        raise MalformedError("text", where=str(path), got=f"over {_TEXT_MAX} characters", expected="fewer")
    return text


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise MalformedError("JSON", where=str(path), got=error, expected="an object") from None
    if not isinstance(value, dict):
        raise MalformedError("JSON", where=str(path), got=type(value).__name__, expected="an object")
    return value


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MalformedError("TOML", where=str(path), got=error, expected="a job's file") from None
