"""`lockstep specify --from-run`: the specification of a monitored or recorded run, and what the run does not show."""

import asyncio
import json

import pytest

from benchmarks.scenarios.job import Scenario
from benchmarks.scenarios.model import generate
from coordinator.record.journal import CoordinatorStart
from coordinator.record.recorder import Recorder
from coordinator.settings.policy import Policy
from lockstep.cli.main import main
from lockstep.contracts.facts import RankFacts
from lockstep.simulator.imports.run import RunFacts, document_of_run
from lockstep.simulator.spec import load_spec
from tests.cli.test_specify_command import LLAMA_8B
from tests.cli.test_whatif_of_run import TEXT, play
from tests.coordinator.conftest import announce
from tests.coordinator.live import Live
from tests.coordinator.test_runs import NOW
from tests.coordinator.web import Site

H100 = RankFacts(device="NVIDIA H100 80GB HBM3", device_kind="cuda", dtype="bf16", parameters=10**9)


@pytest.fixture
async def site():
    """Yield a coordinator's application with the run `job` of four ranks on two nodes, and no specification of it."""
    async with Site() as made:
        yield made


def specify(site, *arguments):
    url = str(site.client.make_url("/")).rstrip("/")
    return asyncio.to_thread(main, ["specify", "--from-run", "job", "--coordinator", url, *arguments])


async def test_the_specification_of_a_monitored_run_has_its_fit(site, capsys):
    """What is written forecasts the step that the coordinator expects."""
    site.runs.expect(lambda _: TEXT)
    play(site, 0, 100)
    assert await specify(site) == 0
    shown = capsys.readouterr()
    model = site.runs.by_name["job"].expectation.model
    assert load_spec(shown.out, "made").forecast().step_seconds == pytest.approx(model.expected_step_seconds, rel=1e-4)
    assert shown.err == ""


async def test_a_run_without_a_specification_shows_degrees_nodes_and_device(site, capsys):
    """The model comes from another source; what nothing shows is named in comments and on standard error."""
    for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
        site.runs.take(announce(*ranks, node=node, revision=1, facts=H100), NOW)
    play(site, 0, 40)
    assert await specify(site) == 0
    shown = capsys.readouterr()
    lines = dict(line.split(": ", 1) for line in shown.out.splitlines() if not line.startswith("#"))
    assert json.loads(lines["strategy"]) == {"dp": 4}
    assert json.loads(lines["cluster"]) == {"preset": "DGX H100", "nodes": 2}
    assert "# unknown: model: a run does not show it" in shown.out
    assert "unknown: batch, strategy.micro_batches" in shown.err


async def test_another_source_has_the_model_of_a_run(site, tmp_path, capsys):
    """Only the batch is left to be added, and then the file is a specification."""
    for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
        site.runs.take(announce(*ranks, node=node, revision=1, facts=H100), NOW)
    play(site, 0, 40)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    more = ("--hugging-face", str(tmp_path / "config.json"), "--sequence", "8192")
    assert await specify(site, *more) == 0
    shown = capsys.readouterr().out
    assert "unknown: model" not in shown
    job = load_spec(f"{shown}batch: 8\n", "made")
    assert (job.degrees.dp, job.cluster.name, job.model.tokens) == (4, "DGX H100", 8192)


def test_a_recorded_run(tmp_path, capsys):
    """The announcements of a recording show what a coordinator's API does; a step log shows its ranks alone."""
    made = generate(Scenario(name="job", degrees="tp=2,dp=4", seed=2, steps=20))
    start = CoordinatorStart(policy=Policy(), domains="", order="tp-cp-ep-dp-pp")
    recorder = Recorder(tmp_path / "recorded", start, 1_789_999_999.0, quota_bytes=1 << 30)
    Live(tap=recorder).play(made.log(run="night"), made.topology)
    assert asyncio.run(recorder.flush())
    assert main(["specify", "--from-run", str(tmp_path / "recorded")]) == 0
    shown = capsys.readouterr().out
    assert 'strategy: {"dp": 4, "tp": 2}' in shown
    assert "# unknown: cluster: one device of all ranks is not known" in shown


@pytest.mark.parametrize(
    ("groups", "ranks", "strategy"),
    [
        ([("tp", range(4)), ("dp", range(2)), ("pp", range(2))], 16, {"tp": 4, "dp": 2, "pp": 2}),
        ([("tp", range(4)), ("dp", range(4)), ("ep", range(2))], 16, {"tp": 4, "dp": 4, "ep": 2}),
        ([], 1, {"dp": 1}),
        ([("tp", range(4)), ("tp", range(2))], 8, None),
        ([("tp", range(3))], 8, None),
    ],
)
def test_degrees_are_the_sizes_of_groups(groups, ranks, strategy):
    """Groups of unequal size, or whose sizes do not multiply to the ranks, are a gap that is named."""
    found, gaps = document_of_run(RunFacts(ranks=ranks, groups=groups, hosts={}, device="NVIDIA A100-SXM4-80GB"))
    assert found.get("strategy") == strategy
    assert any(gap.startswith("strategy: groups are") for gap in gaps) == (strategy is None)
    assert found["cluster"] == {"preset": "DGX A100"}


@pytest.mark.parametrize("device", ["", "Epyc"])
def test_a_device_without_a_preset_is_a_gap(device):
    """The cluster is left out, and the reason has the device."""
    found, gaps = document_of_run(RunFacts(ranks=1, groups=[], hosts={0: "a"}, device=device))
    assert "cluster" not in found
    assert any(gap.startswith("cluster:") and device in gap for gap in gaps)


def test_ranks_are_needed_without_a_run(capsys):
    """The other sources do not have them."""
    assert main(["specify"]) == 2
    assert "--ranks: got None" in capsys.readouterr().err
