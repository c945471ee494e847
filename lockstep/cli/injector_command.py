"""`lockstep injector`: the admission webhook that lets training pods join without a change to their manifests."""

import argparse
from functools import partial
from pathlib import Path

from lockstep.cli.services_command import port_number, serve


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "injector",
        help="run the admission webhook of a Kubernetes cluster",
        description="Patches training pods so that they load the agent. The chart runs it (injection.enabled) and "
        "writes the addition and the web configuration.",
    )
    parser.add_argument(
        "--addition",
        metavar="FILE",
        type=Path,
        required=True,
        help="what to add to a pod: pod.yaml of the ConfigMap <release>-join",
    )
    parser.add_argument(
        "--web.config.file",
        dest="web_config_file",
        metavar="FILE",
        default="",
        help="TLS in the form of Prometheus' exporter-toolkit; the API server calls webhooks over HTTPS only",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="0.0.0.0",  # noqa: S104  (the API server asks from another machine)
        help="address to listen on (default: %(default)s)",
    )
    parser.add_argument(
        "--port", type=port_number, metavar="PORT", default=9857, help="port to listen on (default: %(default)s)"
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Raises
    ------
    ConfigError
        A file cannot be used, or the address cannot be bound.
    """
    from lockstep.injection.service import run_injector  # noqa: PLC0415  (needs the extra)

    return serve(
        partial(
            run_injector,
            addition_file=arguments.addition,
            web_config_file=arguments.web_config_file,
            host=arguments.host,
            port=arguments.port,
        )
    )
