"""The Dockerfiles, as far as they can be checked without a Docker engine."""

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch

import pytest
import yaml
from packaging.requirements import Requirement

import lockstep
from lockstep.cli.main import build_parser
from tests.helm.charts import CHART, ROOT, pick, pod_of, render

DOCKER = ROOT / "docker"
SERVICES = ("exporter", "coordinator")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions(name):
    """Return (word, rest) of each instruction, continuation lines joined."""
    text = (DOCKER / f"{name}.Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("name", [*SERVICES, "agent"])
def test_an_image_is_not_root_and_has_no_moving_base(name):
    """The last stage has a numeric user; every base has a version, and takes a digest as an argument."""
    steps = instructions(name)
    assert [rest for word, rest in steps if word == "USER"] == ["65532:65532"]
    for word, rest in steps:
        if word == "ARG":
            assert re.fullmatch(r"[A-Z]+=[a-z]+:\d+\.\d+\.\d+[\w.-]*", rest)
        if word == "FROM":
            assert rest.startswith("${")
        if word == "COPY" and "--from" not in rest:
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest


def test_only_what_is_copied_is_sent_to_the_builder():
    """Each source of a COPY is let through; an environment next to it is not."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]
    assert lines[0] == "*"
    through = [line[1:] for line in lines if line.startswith("!")]
    sources = {
        source
        for name in (*SERVICES, "agent", "hooks")
        for word, rest in instructions(name)
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    for source in sources:
        assert any(fnmatch(source, pattern) for pattern in through), source
    assert {pattern for pattern in through if "*" not in pattern} == {one for one in sources if "/" not in one}


@pytest.mark.parametrize("name", SERVICES)
def test_a_services_image_starts_what_the_chart_starts(name):
    """Entry point, port and health check are the service's own."""
    steps = dict(instructions(name))
    (command,) = json.loads(steps["ENTRYPOINT"])
    assert command in PROJECT["project"]["scripts"]
    (argument,) = json.loads(steps["CMD"])
    assert build_parser().parse_args([argument]).execute
    item = pick(render({}), "DaemonSet" if name == "exporter" else "StatefulSet")
    container = pod_of(item)["containers"][0]
    assert container["command"] == [command]
    assert container["ports"][0]["containerPort"] == int(steps["EXPOSE"])
    assert f":{steps['EXPOSE']}/-/healthy" in steps["HEALTHCHECK"]
    code = json.loads(steps["HEALTHCHECK"].partition("CMD ")[2])[2]
    compile(code, "healthcheck", "exec")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(json.loads(steps["VOLUME"])) <= mounts


@pytest.mark.parametrize("name", SERVICES)
def test_requirements_are_pinned_by_hash_and_are_those_of_the_project(name):
    """Each package has a version that the extra takes, and hashes; pip refuses any other file."""
    text = (DOCKER / f"requirements-{name}.txt").read_text().replace("\\\n", " ")
    pinned = {}
    for line in text.splitlines():
        if line and not line.lstrip().startswith("#"):
            package, *hashes = shlex.split(line)
            assert hashes, line
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)
            wanted, _, version = package.partition("==")
            pinned[wanted] = version
    for line in PROJECT["project"]["optional-dependencies"][name]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[requirement.name]), line


def test_the_build_system_is_the_projects():
    """The images build without isolation, with the same setuptools by hash."""
    (wanted,) = PROJECT["build-system"]["requires"]
    assert wanted in (DOCKER / "requirements-build.in").read_text()
    assert wanted in (DOCKER / "requirements-build.txt").read_text()


def test_versions_agree():
    """The chart installs the images of this version, and examples name them."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert version == lockstep.__version__
    for path in [
        *(ROOT / "examples" / "kubernetes").glob("*.yaml"),
        ROOT / "deploy" / "compose" / "docker-compose.yml",
    ]:
        for found in re.findall(r"lockstep/(?:agent|exporter|coordinator):(\S+)", path.read_text()):
            assert found == version, path
