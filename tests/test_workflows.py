"""The workflows of CI and release: what they run exists here, and what they use from others cannot move."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
STEPS = [
    (path.stem, job_name, step)
    for path in WORKFLOWS
    for job_name, job in yaml.safe_load(path.read_text())["jobs"].items()
    for step in job["steps"]
]
COMMANDS = [(f"{workflow}-{job}", step["run"]) for workflow, job, step in STEPS if "run" in step]
PACKAGES = "apt-get update -qq && apt-get install -y -qq --no-install-recommends "
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize(("job", "command"), COMMANDS, ids=[f"{job}: {command[:40]}" for job, command in COMMANDS])
def test_a_step_runs_what_exists_here(job, command):
    """A target of the Makefile whose commands make can print, a script of the repository, or Debian packages."""
    if command.startswith(PACKAGES):
        return
    words = re.sub(r"\$\{\{[^}]*}}", "v0.0.0", command).split()
    if words[0] != "make":
        assert (ROOT / words[0]).stat().st_mode & 0o100, command
        return
    assert words[1] in TARGETS, command
    planned = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (planned.returncode, bool(planned.stdout.strip())) == (0, True), planned.stderr


def test_what_ci_runs_is_in_the_makefile():
    """The script that both workflows run, and every target that the documents name."""
    script = (ROOT / ".ci" / "run").read_text()
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {target for page in pages for target in re.findall(r"`make ([\w-]+)", page.read_text())}
    assert set(re.findall(r"make ([\w-]+)", script)) | named <= TARGETS
    assert {"check", "test-all"} <= set(re.findall(r"make ([\w-]+)", script))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_rights_are_few(path):
    """Others' actions by commit with the version in a comment; a job that may write states that itself."""
    text = path.read_text()
    for used in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), used
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_nothing_is_published_before_the_tests_passed():
    """Both publishing jobs wait for the job that runs .ci/run on the tag."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    publishing = {name: job for name, job in jobs.items() if name.startswith("publish")}
    assert set(publishing) == {"publish-wheels", "publish-images-and-chart"}
    assert all("test" in job["needs"] for job in publishing.values())
    assert ".ci/run" in [step.get("run") for step in jobs["test"]["steps"]]


@pytest.mark.parametrize(
    ("tag", "words"), [("v9.9.9", "tag: got 'v9.9.9', expected v"), ("", "tag: got ''")], ids=["other", "none"]
)
def test_a_tag_that_is_not_the_version_is_refused(tag, words):
    """Before anything is built."""
    refused = subprocess.run(
        ["make", "release-check", f"TAG={tag}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert words in refused.stderr
