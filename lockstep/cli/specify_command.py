"""`lockstep specify`: converts another program's configuration to a specification."""

import argparse
import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.cli.output import write_text
from lockstep.contracts.errors import ConfigError, FileAccessError, MalformedError

_TEXT_MAX = 1 << 20
_PRESETS_NODE = 8


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "specify",
        help="write a specification for simulate from the configuration of another program",
        description="Prints the specification (YAML, see docs/simulator.md) of a job that the files of other programs "
        "configure. Sources combine, e.g. the model of one and the strategy of another. In the order of the options "
        "below, later ones override earlier ones.",
    )
    parser.add_argument("--hugging-face", metavar="JSON", type=Path, help="config.json of a model of Transformers")
    parser.add_argument("--torchtitan", metavar="TOML", type=Path, help="a job file of torchtitan")
    parser.add_argument("--megatron", metavar="FILE", type=Path, help="a file with the arguments of Megatron-LM")
    parser.add_argument("--deepspeed", metavar="JSON", type=Path, help="a configuration of DeepSpeed")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="ranks of the job")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens of a sample, with --hugging-face")
    parser.add_argument("--preset", default="DGX H100", help="preset of the cluster (default: DGX H100)")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write to FILE instead")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print or write the specification.

    Raises
    ------
    LockstepError
        A file cannot be read, means what the simulator has not, or the specification would be refused.
    """
    from lockstep.simulator.spec import load_spec  # noqa: PLC0415  (services only)
    from lockstep.simulator.spec.machine import SIZED  # noqa: PLC0415

    if arguments.ranks < 1:
        raise ConfigError(f"--ranks: got {arguments.ranks}, expected at least 1")
    cluster: dict[str, Any] = {"preset": arguments.preset}
    if arguments.preset in SIZED:
        cluster["nodes"] = -(-arguments.ranks // _PRESETS_NODE)
    document = _document(arguments)
    if "type" not in document.get("model", {}):
        raise ConfigError("model: got none, expected one of --hugging-face, --torchtitan, --megatron")
    document = {"model": {}, "batch": arguments.ranks, "strategy": {"dp": arguments.ranks}} | document
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in (document | {"cluster": cluster}).items())
    load_spec(text, "the specification that was made").forecast()
    if arguments.output is None:
        print(text, end="")
    else:
        write_text(arguments.output, text, "--output")
    return 0


def _document(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep.simulator.imports.deepspeed import document_of_deepspeed  # noqa: PLC0415
    from lockstep.simulator.imports.hugging_face import model_of_hugging_face  # noqa: PLC0415
    from lockstep.simulator.imports.megatron import document_of_megatron  # noqa: PLC0415
    from lockstep.simulator.imports.torchtitan import document_of_torchtitan  # noqa: PLC0415
    from lockstep.simulator.imports.values import merged  # noqa: PLC0415

    found: dict[str, Any] = {}
    ranks = arguments.ranks
    if arguments.hugging_face is not None:
        config = _json(arguments.hugging_face)
        model = model_of_hugging_face(config, str(arguments.hugging_face), sequence=arguments.sequence)
        found = merged(found, {"model": model})
    if arguments.torchtitan is not None:
        path = arguments.torchtitan
        made = document_of_torchtitan(_toml(path), str(path), ranks=ranks, model=found.get("model"))
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
