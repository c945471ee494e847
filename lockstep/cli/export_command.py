"""`lockstep export`: writes files for Prometheus, Alertmanager, Grafana and the broker from the installed package."""

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli import access_rules
from lockstep.cli.markdown import markdown_table
from lockstep.contracts.errors import ConfigError, FileAccessError
from lockstep.contracts.version import VERSION

if TYPE_CHECKING:
    from alerts.overrides import SitePolicy
    from alerts.policy import Site

_DASHBOARDS, _RULES, _RUNBOOKS = "dashboards", "rules", "runbooks"
_ALERTMANAGER, _PROMETHEUS, _ACL, _ALL = "alertmanager", "prometheus", "acl", "all"
_ALERTS, _MAN = "alerts", "man"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "export",
        help="write dashboards, rules, runbooks, example configurations and man pages; print the table of alerts",
        description="Writes files for other programs into a folder: Grafana dashboards (JSON), recording and alerting "
        "rules, a runbook for each alert, an example configuration for Alertmanager and for Prometheus, access rules "
        "for mosquitto, and man pages of this command line. `alerts` is a table of every alert: severity, waiting "
        "time, thresholds, receiver, links, and when it resolves.",
        epilog="Example:\n"
        "  lockstep export rules /etc/prometheus/rules --grafana-url https://grafana.lan --set slow_ratio=0.2",
    )
    parser.add_argument("what", choices=[*_WRITERS, _ALL])
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        nargs="?",
        help="folder, created if missing; without it, `alerts` prints its table",
    )
    parser.add_argument("--force", action="store_true", help="replace files in DIR that have other content")
    rules = parser.add_argument_group("rules")
    rules.add_argument(
        "--operator", action="store_true", help="write rules as a PrometheusRule for prometheus-operator"
    )
    rules.add_argument("--grafana-url", metavar="URL", help="address of Grafana, for links of alerts to dashboards")
    rules.add_argument(
        "--coordinator-url", metavar="URL", help="address of the coordinator's pages, for links of alerts to incidents"
    )
    rules.add_argument("--runbooks-url", metavar="URL", help="address of the runbooks, for links of alerts")
    rules.add_argument(
        "--run-labels", metavar="LABELS", help='labels that identify a run; for several clusters "cluster, run"'
    )
    rules.add_argument("--exporter-job", metavar="JOB", help="scrape job of the exporters")
    rules.add_argument("--coordinator-job", metavar="JOB", help="scrape job of the coordinator")
    rules.add_argument("--policy", metavar="FILE", type=Path, help="the site's own thresholds and alerts (YAML)")
    rules.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a threshold or waiting time by its name in alerts/policy.py, or a setting of one alert: "
        "ALERT.severity=warning, ALERT.for=15m, ALERT.enabled=false; overrides the policy file",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Write the files and print their names.

    Raises
    ------
    ConfigError
        A folder or file cannot be written, an existing file has other content, or a threshold is unknown.
    """
    if arguments.folder is None:
        if arguments.what != _ALERTS:
            raise ConfigError(f"DIR: got none, expected a folder to write {arguments.what} into")
        print(_alert_table(arguments), end="")
        return 0
    chosen = list(_WRITERS) if arguments.what == _ALL else [arguments.what]
    files = {name: text for what in chosen for name, text in _WRITERS[what](arguments).items()}
    _refuse_changes(arguments.folder, files, is_forced=arguments.force)
    for name, text in files.items():
        path = arguments.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise FileAccessError(f"{path}", error, expected="a file that can be written") from error
        print(path)
    return 0


def _refuse_changes(folder: Path, files: dict[str, str], *, is_forced: bool) -> None:
    """Raise before anything is written if a file would lose edits."""
    if is_forced:
        return
    for name, text in files.items():
        path = folder / name
        if path.is_file() and path.read_text(errors="replace") != text:
            raise ConfigError(f"{path}: got a file with other content, expected none; --force replaces it")


def _dashboards(_arguments: argparse.Namespace) -> dict[str, str]:
    import dashboards  # noqa: PLC0415  (a training image has no such package)

    rendered = Path(dashboards.__file__).parent / "rendered"
    return {f"lockstep-{path.stem}.json": path.read_text() for path in sorted(rendered.glob("*.json"))}


def _rules(arguments: argparse.Namespace) -> dict[str, str]:
    from alerts import rules  # noqa: PLC0415  (needs the extra for services)

    site, policy = _site(arguments), _policy(arguments)
    if arguments.operator:
        return {"lockstep.prometheusrule.yaml": rules.render_operator(site, policy)}
    return {"lockstep.rules.yaml": rules.render(site, policy)}


def _alert_table(arguments: argparse.Namespace) -> str:
    from alerts import table  # noqa: PLC0415  (needs the extra for services)

    return markdown_table(table.COLUMNS, [row.cells() for row in table.rows(_site(arguments), _policy(arguments))])


def _site(arguments: argparse.Namespace) -> "Site":
    from alerts.policy import Site  # noqa: PLC0415  (needs the extra for services)

    given = {field.name: getattr(arguments, field.name) for field in fields(Site)}
    return replace(Site(), **{name: value for name, value in given.items() if value is not None})


def _policy(arguments: argparse.Namespace) -> "SitePolicy":
    from alerts import overrides, rules  # noqa: PLC0415  (needs the extra for services)

    names = rules.alert_names()
    policy = overrides.read_policy_file(arguments.policy, names) if arguments.policy else overrides.SitePolicy()
    for item in arguments.set:
        name, _, value = item.partition("=")
        alert, dot, setting = name.partition(".")
        if dot:
            policy = overrides.with_override(policy, alert, setting, value, names=names, where="--set")
        else:
            policy = overrides.with_threshold(policy, name, value, where="--set")
    return policy


def _runbooks(_arguments: argparse.Namespace) -> dict[str, str]:
    from alerts import rules  # noqa: PLC0415

    return {f"runbooks/{path.name}": path.read_text() for path in sorted(rules.RUNBOOKS.glob("*.md"))}


def _example(name: str) -> Callable[[argparse.Namespace], dict[str, str]]:
    def read(_arguments: argparse.Namespace) -> dict[str, str]:
        import alerts  # noqa: PLC0415

        file = f"{name}.example.yml"
        text = (Path(alerts.__file__).parent / file).read_text()
        # Rules are exported next to the example, not into a folder.
        return {file: text.replace("rendered/lockstep.rules.yaml", "lockstep.rules.yaml")}

    return read


def _man(_arguments: argparse.Namespace) -> dict[str, str]:
    from lockstep.cli.command_line.man_pages import man_pages  # noqa: PLC0415
    from lockstep.cli.command_line.parser_tree import read_parser  # noqa: PLC0415
    from lockstep.cli.main import build_parser  # noqa: PLC0415  (a cycle otherwise)

    pages = man_pages(read_parser(build_parser()), VERSION)
    return {f"man/man1/{name}": text for name, text in pages.items()}


def _alertmanager(arguments: argparse.Namespace) -> dict[str, str]:
    import alerts  # noqa: PLC0415

    name = "lockstep.tmpl"
    return {**_example("alertmanager")(arguments), name: (Path(alerts.__file__).parent / name).read_text()}


_WRITERS: dict[str, Callable[[argparse.Namespace], dict[str, str]]] = {
    _DASHBOARDS: _dashboards,
    _RULES: _rules,
    _RUNBOOKS: _runbooks,
    _ALERTS: lambda arguments: {"alerts.md": _alert_table(arguments)},
    _ALERTMANAGER: _alertmanager,
    _PROMETHEUS: _example("prometheus"),
    _ACL: lambda _arguments: {"mosquitto.acl": access_rules.render()},
    _MAN: _man,
}
