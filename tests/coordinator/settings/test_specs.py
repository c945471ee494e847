"""Specifications of jobs: from files and over HTTP, and who goes before whom."""

import pytest

from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.reload import read_settings
from coordinator.settings.specs import RUNS_MAX, TEXT_MAX_BYTES, Specs, SpecText, read_specs
from coordinator.store import Store
from lockstep.contracts.errors import ConfigError
from tests.coordinator.conftest import running, until
from tests.coordinator.expected.test_expectation import FAULTY, SPEC
from tests.coordinator.test_runs import NOW, play, two_nodes
from tests.coordinator.web import Site, ask, get


def text(name, source="file"):
    return SpecText(text=name, name=name, source=source)


def test_the_nearest_word_counts():
    """Over HTTP, then the run's own name, then the longest pattern that fits."""
    specs = Specs({"*": text("any"), "big-*": text("big"), "big-7": text("seven")})
    assert [specs.of(run).text for run in ("small", "big-1", "big-7")] == ["any", "big", "seven"]
    specs.put("big-7", "mine")
    assert (specs.of("big-7").text, specs.of("big-7").source, specs.of("big-7").folder) == ("mine", "api", None)
    specs.put("big-7", None)
    specs.configure({"other": text("other")})
    assert specs.of("big-7") is None


def test_so_many_fit():
    """A run that has one may have another; one more run may not."""
    specs = Specs(given=dict.fromkeys(map(str, range(RUNS_MAX)), "x"))
    specs.check_capacity("3")
    with pytest.raises(ConfigError, match="at most 1000"):
        specs.check_capacity("new")


def test_files_are_read_from_their_own_folder(tmp_path):
    """Names and patterns lead to files next to the file that names them."""
    (tmp_path / "gpt.yaml").write_text(SPEC)
    file = tmp_path / "simulation.yaml"
    file.write_text("big-*: gpt.yaml\n")
    found = read_specs(str(file))
    assert (found["big-*"].text, found["big-*"].folder, found["big-*"].source) == (SPEC, tmp_path, "file")
    settings = read_settings(CoordinatorConfig(simulation_file=str(file)))
    assert settings.specs == found
    assert read_specs("") == {}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("- a\n", "got list"),
        ("a: 3\n", "'a': 3"),
        ("a: missing.yaml\n", "missing.yaml"),
        ("a: large.yaml\n", "more than 65536 bytes"),
        ("a: binary.yaml\n", "binary.yaml"),
        ("a: [\n", "expected YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, content, named):
    """The configuration is refused with the key, the file and the run."""
    (tmp_path / "large.yaml").write_text("x" * (TEXT_MAX_BYTES + 1))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    file = tmp_path / "simulation.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match="simulation_file") as error:
        CoordinatorConfig(simulation_file=str(file)).validate()
    assert named in str(error.value)


async def test_a_specification_over_http_is_checked_kept_shown_and_taken_back(token_file):
    """With the token; a bad one is named and changes nothing; another coordinator on the store knows it."""
    store = Store("")
    async with Site(token_file=token_file, store=store) as site:
        play(site.runs, FAULTY, 0, 5)
        path = "/api/v1/runs/job/spec"
        assert (await ask(site, "PUT", path, raw=SPEC.encode(), token="wrong"))[0] == 401
        assert await ask(site, "PUT", path, raw=SPEC.encode()) == (200, {"run": "job", "source": "api"})
        shown = await get(site, path)
        assert (shown["source"], shown["text"], shown["expected"]["state"]) == ("api", SPEC, "waiting")
        assert (await get(site, "/api/v1/runs/job"))["expected"]["specification"] == "api"
        for body, named in (
            (b"batch: 3", "model"),
            (b"\xff", "UTF-8"),
            (SPEC.replace("operators:\n", "file: /etc/passwd\n  x:\n", 1).encode(), "model"),
        ):
            status, answer = await ask(site, "PUT", path, raw=body)
            assert status == 400
            assert named in answer["error"]
        assert store.load_specifications() == {"job": SPEC}
        assert (await ask(site, "PUT", "/api/v1/runs/nobody/spec", raw=SPEC.encode()))[0] == 404
        assert (await ask(site, "PUT", path, raw=b"#" * 20_000))[0] == 413
        assert await ask(site, "DELETE", path) == (200, {"run": "job", "source": None})
        assert store.load_specifications() == {}
        assert (await get(site, path))["expected"]["state"] == "unspecified"


async def test_a_file_of_operators_is_not_read_for_the_network(token_file, tmp_path):
    """What comes over HTTP names no file of this machine."""
    (tmp_path / "operators.csv").write_text("name,flops,moved_elements,parameters,stored_bytes\na,1,1,1,1\n")
    body = f"model: {{type: operators, file: {tmp_path / 'operators.csv'}}}\ncluster: {{preset: DGX A100}}\nbatch: 1\n"
    async with Site(token_file=token_file) as site:
        play(site.runs, FAULTY, 0, 5)
        status, answer = await ask(site, "PUT", "/api/v1/runs/job/spec", raw=body.encode())
    assert status == 400
    assert "file" in answer["error"]


async def test_a_running_coordinator_fits_off_its_loop_and_remembers_the_window(tmp_path):
    """From steps to a kept model by the real effects; the next coordinator on the store begins with it."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "simulation.yaml").write_text("job: spec.yaml\n")
    settings = {"state_directory": str(tmp_path / "state"), "simulation_file": str(tmp_path / "simulation.yaml")}
    async with running(**settings) as coordinator:
        feed(coordinator, 0, 90)
        expectation = coordinator._runs.by_name["job"].expectation
        await until(lambda: expectation.state == "known")
        expected_s = expectation.model.expected_step_seconds
        await until(lambda: "job" in coordinator._effects.writer._store.load_windows())
    async with running(**settings) as coordinator:
        feed(coordinator, 90, 91)
        again = coordinator._runs.by_name["job"].expectation
        await until(lambda: again.state == "known")
        assert again.model.expected_step_seconds == expected_s


async def test_a_file_that_holds_no_job_is_the_reason_why_nothing_is_expected(tmp_path):
    """The coordinator runs on; the reason names file and field."""
    (tmp_path / "spec.yaml").write_text("batch: 3\n")
    (tmp_path / "simulation.yaml").write_text("j*: spec.yaml\n")
    async with running(simulation_file=str(tmp_path / "simulation.yaml")) as coordinator:
        feed(coordinator, 0, 70)
        expectation = coordinator._runs.by_name["job"].expectation
        await until(lambda: expectation.state == "refused")
    assert "spec.yaml" in expectation.reason
    assert "model" in expectation.reason


def feed(coordinator, first, last):
    """Let steps of two nodes come in at the coordinator's door."""
    two_nodes(coordinator._runs)
    for step in range(first, last):
        for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
            batch = FAULTY.batch(step, step + 1, ranks=ranks, node=node, run="job")
            coordinator._effects.perform(coordinator._runs.take(batch, NOW + step))
