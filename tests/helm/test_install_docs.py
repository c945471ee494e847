"""What the installation pages ask people to type: each command that can be is executed or taken by its own parser."""

import contextlib
import io
import re
import shlex
import urllib.parse
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

import coordinator.app
import exporter.exposing.app
from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.cli.main import build_parser
from lockstep.contracts import control_block, messages, ring, topics
from tests.helm.charts import CHART, ROOT, chart, merged, render

PAGES = [ROOT / "docs" / f"{name}.md" for name in (
    "install-kubernetes", "install-slurm", "install-single-node", "upgrading"
)] + [CHART / "README.md", ROOT / "deploy" / "systemd" / "README.md"]  # fmt: skip
KINDS = {"configmap": "ConfigMap", "secret": "Secret", "service": "Service"}


def commands(page: Path) -> list[list[str]]:
    """Return the words of every command in the page's code blocks; `a && b` are two, `a | b > file &` is a."""
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    parts = [re.sub(r"\$\([^)]*\)", "1000", part) for line in lines for part in line.split(" && ")]
    return [shlex.split(re.split(r" (?:[|>] |&$)", part)[0]) for part in parts]


def program(words: list[str]) -> list[str]:
    """Return the command without the variables before it."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


ALL = [(page, program(words)) for page in PAGES for words in commands(page)]


def of(name: str):
    """Return (page, words) of the commands of one program."""
    found = [(page, words) for page, words in ALL if Path(words[0]).name == name]
    assert found, name
    return found


def set_value(assignment: str) -> dict:
    """Return the values of one `--set`, dots as levels and braces as a list."""
    path, _, text = assignment.partition("=")
    value = text[1:-1].split(",") if text.startswith("{") else yaml.safe_load(text)
    for key in reversed(path.split(".")):
        value = {key: value if key != "tag" else text}
    return value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_and_link_exists(page):
    """Links of the page, and files of the repository that its commands name."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
    for words in commands(page):
        for word in words:
            if re.match(r"(deploy|docker|examples|helm)/", word):
                assert (ROOT / word).exists(), word


def test_each_installed_file_has_its_folder():
    """By a package that is there, by a command before, or by -D: a fresh Debian 12 has no /etc/sysusers.d."""
    for page in PAGES:
        there = {"/etc/systemd/system", "/etc/mosquitto", "/etc/mosquitto/conf.d"}
        for words in map(program, commands(page)):
            if words[0] == "install" and "-d" in words:
                there.add(words[-1])
            elif words[0] == "install" and "-D" not in words:
                assert {words[-1].rstrip("/"), str(Path(words[-1]).parent)} & there, (page, words)


def test_helm_takes_every_install():
    """Chart, namespace and values are what the schema allows, and render."""
    installs = [words for _, words in of("helm") if words[1] in ("install", "upgrade")]
    for words in installs:
        assert words[2:4] == ["lockstep", "helm/lockstep"]
        rest = words[4:]
        values: dict = {}
        for flag, argument in pairwise(rest):
            if flag == "--set":
                values = merged(values, set_value(argument))
            elif flag == "-f":
                values = merged(values, yaml.safe_load((ROOT / argument).read_text()))
        chart().validate_schema(values)
        assert render(values, name="lockstep")
    assert all(words[2] == "lockstep" for _, words in of("helm") if words[1] == "test")


def test_kubectl_asks_for_what_the_chart_makes():
    """Each object by its name, each key that is read."""
    items = render({}, name="lockstep")
    made = {(item["kind"], item["metadata"]["name"]): item for item in items}
    seen = 0
    for _, words in of("kubectl"):
        text = " ".join(words)
        for kind, name in re.findall(r"\b(configmap|secret|service)[ /](lockstep\S*)", text):
            item = made[KINDS[kind], name]
            path = re.search(r"jsonpath=\{\.data\.(\S+)\}", text)
            assert path is None or path[1].replace("\\", "") in item["data"]
            seen += 1
    assert seen == 3


def test_lockstep_takes_every_command_of_its_own():
    """By its parser; what is run under it is the user's."""
    for page, words in ALL:
        names = [Path(word).name for word in words]
        if names[0] == "lockstep":
            with contextlib.redirect_stderr(io.StringIO()) as stderr:
                assert build_parser().parse_args(words[1:]).execute, (page, stderr)


def test_docker_builds_name_a_dockerfile_and_compose_its_file():
    """From the repository's root."""
    for _, words in of("docker"):
        if words[1] == "build":
            assert words[-1] == "."
        if "-f" in words:
            assert (ROOT / words[words.index("-f") + 1]).is_file()


def test_paths_of_the_api_are_served():
    """Each address that curl is given is a route of the service that has this port."""
    apps = {9855: exporter.exposing.app.make_app(lambda: None), 9856: coordinator.app.make_app(None)}
    for _, words in of("curl"):
        (address,) = [word for word in words if word.startswith("http")]
        where = urllib.parse.urlsplit(address)
        assert where.path in {route.resource.canonical for route in apps[where.port].router.routes()}


def test_the_versions_of_the_upgrade_page_are_those_of_the_code():
    """A new version needs a line there: who takes it, and who does not."""
    text = (ROOT / "docs" / "upgrading.md").read_text()
    rows = {
        cells[1].strip(): cells[2].strip()
        for cells in (line.split("|") for line in text.splitlines())
        if len(cells) > 3
    }
    assert rows["messages"] == str(messages.MESSAGE_VERSION)
    assert rows["ring"] == str(ring.RING_VERSION)
    assert rows["control block"] == str(control_block.CONTROL_VERSION)
    assert rows["topics"] == f"`{topics.PREFIX}`"


def test_the_ports_are_the_same_everywhere():
    """Code, chart, Prometheus's example, compose and the pages of the README: to know one is to know all."""
    for service, form in (("exporter", ExporterConfig), ("coordinator", CoordinatorConfig)):
        port = form().http_port
        assert yaml.safe_load((CHART / "values.yaml").read_text())[service]["port"] == port
        jobs = yaml.safe_load((ROOT / "alerts" / "prometheus.example.yml").read_text())["scrape_configs"]
        (job,) = [job for job in jobs if job["job_name"] == f"lockstep-{service}"]
        assert job["static_configs"] == [{"targets": [f"localhost:{port}"]}]
        compose = yaml.safe_load((ROOT / "deploy" / "compose" / "docker-compose.yml").read_text())["services"]
        assert compose[service]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"http://127.0.0.1:{port}/" in (ROOT / "README.md").read_text()
