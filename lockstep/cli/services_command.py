"""`lockstep exporter`, `lockstep coordinator`, and `lockstep up`, which runs both on one machine."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.settings import build_config

C = TypeVar("C")
_PORT_MAX, _PORT_DIGITS = 65535, 5
_Service = Callable[[asyncio.Event], Awaitable[None]]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three sub-commands."""
    _add_service(commands, "exporter", "run the exporter of this node", _exporter)
    _add_service(commands, "coordinator", "run the coordinator of a cluster", _coordinator)
    _add_up(commands)


def _add_service(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    help_: str,
    execute: Callable[[argparse.Namespace], int],
) -> None:
    keys = f"Every setting has a default; `lockstep {name} --print-config` lists them."
    description = f"Runs {help_.removeprefix('run ')}. {keys}"
    parser = commands.add_parser(name, help=help_, description=description)
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting; wins over the environment (LOCKSTEP_" + name.upper() + "_KEY), which wins over the file",
    )
    parser.add_argument("--print-config", action="store_true", help="print the settings in force and exit")
    parser.set_defaults(execute=execute)
    parser.add_argument(
        "--web.config.file",
        dest="set",
        action="append",
        metavar="FILE",
        type="web_config_file={}".format,
        help="TLS and passwords in the form of Prometheus' exporter-toolkit; short for --set web_config_file=FILE",
    )
    if name == "coordinator":
        parser.add_argument(
            "--record",
            dest="set",
            action="append",
            metavar="DIR",
            type="record_directory={}".format,
            help="record all input for `lockstep replay DIR`; short for --set record_directory=DIR",
        )


def _add_up(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    up = commands.add_parser(
        "up",
        help="exporter and coordinator in one process, on loopback",
        description="Runs all services of one machine until SIGINT or SIGTERM. `lockstep run` then monitors a "
        "training command.",
    )
    up.add_argument(
        "--root", metavar="DIR", help="directory shared with the training processes (default: /dev/shm/lockstep)"
    )
    up.add_argument(
        "--state-directory", metavar="DIR", help="directory that stores incidents (default: in memory only)"
    )
    up.add_argument("--record", metavar="DIR", help="record all input for `lockstep replay DIR`")
    up.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token that captures and changes require (default: none)",
    )
    up.add_argument(
        "--exporter-port", type=port_number, metavar="PORT", help="port of the exporter's /metrics (default: 9855)"
    )
    up.add_argument(
        "--coordinator-port",
        type=port_number,
        metavar="PORT",
        help="port of the coordinator's metrics, API and page (default: 9856)",
    )
    up.set_defaults(execute=_up)


def port_number(text: str) -> int:
    """Parse a port as an argparse type: a service's own message would name `http_port` without the service."""
    if not text.isascii() or not text.isdecimal() or len(text) > _PORT_DIGITS or int(text) > _PORT_MAX:
        raise argparse.ArgumentTypeError(f"got {text!r:.50}, expected 0 (any) to {_PORT_MAX}")
    return int(text)


def read_config(form: type[C], arguments: argparse.Namespace, prefix: str) -> C:
    """Build the configuration of a service from `--config`, the environment and `--set`.

    Raises
    ------
    ConfigError
        The file cannot be read or is not a mapping, or a key or value is wrong.
    """
    settings = {}
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set: got {pair!r}, expected KEY=VALUE")
        settings[key] = value
    file = _read_file(arguments.config) if arguments.config else {}
    return build_config(
        form, file=file, file_name=str(arguments.config), environment=os.environ, prefix=prefix, flags=settings
    )


def _read_file(name: str) -> dict[str, Any]:
    from lockstep.contracts.yaml_text import read_yaml_file  # noqa: PLC0415  (services only)

    value = read_yaml_file(Path(name), "configuration file")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"configuration file {name}: got {type(value).__name__}, expected keys and values")
    return value


def _exporter(arguments: argparse.Namespace) -> int:
    from exporter.config import ExporterConfig  # noqa: PLC0415  (needs the extra)
    from exporter.runtime import Exporter  # noqa: PLC0415

    config = read_config(ExporterConfig, arguments, "LOCKSTEP_EXPORTER_")
    config.validate()
    return _print_config(config) if arguments.print_config else serve(Exporter(config).run)


def _coordinator(arguments: argparse.Namespace) -> int:
    from coordinator.runtime import Coordinator  # noqa: PLC0415
    from coordinator.settings.config import CoordinatorConfig  # noqa: PLC0415  (needs the extra)

    def read() -> CoordinatorConfig:
        return read_config(CoordinatorConfig, arguments, "LOCKSTEP_COORDINATOR_")

    config = read()
    config.validate()
    if arguments.print_config:
        return _print_config(config)
    coordinator = Coordinator(config, reread=read)
    return serve(coordinator.run, on_hangup=coordinator.request_reload)


def _up(arguments: argparse.Namespace) -> int:
    from lockstep.cli.up import LocalServices  # noqa: PLC0415  (needs the extras)

    up = LocalServices(
        root=arguments.root,
        state_directory=arguments.state_directory,
        exporter_port=arguments.exporter_port,
        coordinator_port=arguments.coordinator_port,
        record_directory=arguments.record,
        api_token_file=arguments.token_file,
    )

    async def announce_and_run(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(up.run(stop), name="up")
            await up.started.wait()
            print(f"exporter    http://127.0.0.1:{up.exporter_port}/metrics")
            print(f"coordinator http://127.0.0.1:{up.coordinator_port}/")
            print(f"monitor a job with: lockstep run --root {up.root} -- torchrun train.py", flush=True)

    return serve(announce_and_run)


def _print_config(config: Any) -> int:
    for field in fields(config):
        print(f"{field.name}: {getattr(config, field.name)!r}")
    return 0


def serve(service: _Service, *, on_hangup: Callable[[], None] | None = None) -> int:
    """Run a service until SIGINT or SIGTERM; return the exit status. SIGHUP also ends it without `on_hangup`."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)

    async def until_signal() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        if on_hangup is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
        await service(stop)

    try:
        asyncio.run(until_signal())
    except* ConfigError as group:  # raised within task groups: a port in use, a directory that cannot be written
        raise first_leaf(group) from None
    return 0


def first_leaf(group: BaseExceptionGroup[ConfigError]) -> ConfigError:
    """Return the first error of a group of groups."""
    first = group.exceptions[0]
    return first_leaf(first) if isinstance(first, BaseExceptionGroup) else first
