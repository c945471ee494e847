"""`lockstep whatif --run`: the job and the fitted model of a monitored run, from the coordinator's own application."""

import asyncio
import json

import pytest

from coordinator.decide import events as ev
from coordinator.settings.specs import SpecText
from lockstep.cli.main import main
from lockstep.contracts.errors import LockstepError
from lockstep.simulator.spec.job import load_fitted_spec
from tests.coordinator.expected.test_expectation import FAULTY, SPEC, answer
from tests.coordinator.test_runs import NOW
from tests.coordinator.web import Site

TEXT = SpecText(text=SPEC, name="specification", source="file")


@pytest.fixture
async def site():
    """Yield a coordinator's application whose run `job` has no specification yet."""
    async with Site() as made:
        yield made


def play(site, first, last):
    """Feed steps, and fit where the run asks for it, as the coordinator's effects do."""
    for step in range(first, last):
        for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
            orders = site.runs.take(FAULTY.batch(step, step + 1, ranks=ranks, node=node, run="job"), NOW + step)
            for name, given in orders:
                for each in given:
                    if isinstance(each, ev.FitModel):
                        site.runs.take_fitted(name, answer(each))


def whatif(site, *arguments, run="job"):
    return asyncio.to_thread(
        main, ["whatif", "--run", run, "--coordinator", str(site.client.make_url("/")).rstrip("/"), *arguments]
    )


async def test_a_monitored_run_is_varied_from_its_fitted_model(site, capsys):
    """`now` is what the coordinator expects; a doubled batch is distinguished by the time of a token."""
    site.runs.expect(lambda _: TEXT)
    play(site, 0, 100)
    expectation = site.runs.by_name["job"].expectation
    assert expectation.state == "known"
    assert await whatif(site, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["now"]["step_seconds"] == pytest.approx(expectation.model.expected_step_seconds, rel=1e-4)
    assert found["now"]["error_band_ratio"] == pytest.approx(expectation.model.error_band_ratio, rel=1e-4)
    assert any("fitted to 40 healthy steps" in note for note in found["notes"])
    names = {each["name"] for each in found["alternatives"]}
    assert {"batch=16", "batch=64", "micro_batches=2", "one bucket", "buckets of 5 MiB"} <= names
    assert all(each["gain_ratio"] is not None for each in found["alternatives"])


async def test_degrees_of_a_monitored_run_may_be_named(site, capsys):
    """Options are those of a file: here a batch that is given, on the fitted machine."""
    site.runs.expect(lambda _: TEXT)
    play(site, 0, 100)
    assert await whatif(site, "--set", "batch=128", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["alternatives"]
    model = site.runs.by_name["job"].expectation.model
    assert found["step_seconds"] > model.expected_step_seconds


async def test_without_a_fit_the_specification_counts_and_is_named(site, capsys):
    """Before a healthy window the times are the specification's, and a note names the reason."""
    site.runs.expect(lambda _: TEXT)
    play(site, 0, 5)
    assert await whatif(site) == 0
    shown = capsys.readouterr().out
    assert "run job has no fitted model: fewer than 40 healthy steps seen" in shown
    assert "not calibrated" in shown


@pytest.mark.parametrize(
    ("text", "run", "named"),
    [
        (None, "job", "specification of run job: got none"),
        (TEXT, "absent", "absent"),
        (SpecText(text=SPEC.replace("1.0e+12", "1.0e+7"), name="x", source="file"), "job", "refused by its fit"),
    ],
)
async def test_what_cannot_be_is_named(site, capsys, text, run, named):
    """A run without a specification, a run that is none, a specification that the fit has refused."""
    site.runs.expect(lambda _: text)
    play(site, 0, 100)
    assert await whatif(site, run=run) == 2
    assert named in capsys.readouterr().err


def test_a_fit_replaces_the_calibration_of_the_specification():
    """Also one in a file, which only the coordinator can read; without a fit that is refused."""
    text = SPEC + "calibration: {file: calibration.yaml}\n"
    fitted = {"parameters": {"matrix_efficiency": 0.5}, "error_band_ratio": 0.1, "overhead_seconds": 0.25}
    spec = load_fitted_spec(text, "x", fitted)
    assert spec.cluster.device.matrix_efficiency == 0.5
    assert spec.forecast().error_band_ratio == 0.1
    changed = spec.changed("batch", 64)
    assert changed.cluster.device.matrix_efficiency == 0.5
    assert changed.calibration.overhead_seconds == 0.25
    with pytest.raises(LockstepError, match="files are not read here"):
        load_fitted_spec(text, "x", None)


@pytest.mark.parametrize(("cores", "times"), [(4, 1), (2, 2), (1, 4)])
def test_time_outside_the_timeline_grows_with_shared_cores(cores, times):
    """Four ranks on two cores take twice as long for data and host as with a core each."""
    text = SPEC.replace("fanout: 4,", f"fanout: 4, cores: {cores},")
    fitted = {"parameters": {}, "error_band_ratio": 0.1, "overhead_seconds": 0.25}
    alone, with_host = (load_fitted_spec(text, "x", each).forecast().step_seconds for each in (None, fitted))
    assert with_host - alone == pytest.approx(0.25 * times)
    whole = load_fitted_spec(text, "x", fitted).changed_by({"strategy.dp": 1, "batch": 8})
    assert whole.forecast().step_seconds == pytest.approx(
        load_fitted_spec(text, "x", None).changed_by({"strategy.dp": 1, "batch": 8}).forecast().step_seconds + 0.25
    )


@pytest.mark.parametrize("arguments", [[], ["spec.yaml", "--run", "job"]])
def test_a_file_or_a_run(capsys, arguments):
    """One of both, or the options are refused."""
    assert main(["whatif", *arguments]) == 2
    assert "expected one of them" in capsys.readouterr().err
