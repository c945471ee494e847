"""The matrix of docs/frameworks.md, cell by cell: real libraries train under the agent and keep their own ledgers."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from lockstep.contracts.ring import STATE_FINISHED
from tests.agent.frameworks.evidence import observe
from tests.agent.frameworks.jobs import run_job
from tests.agent.frameworks.matrix import ABSENT, FRAMEWORKS, SIGNALS, VERSIONS
from tests.agent.rings import unaccounted_ns

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

JOBS_AT_ONCE = 2
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
INDUCTOR = "compile_inductor"
NAMES = sorted((name for name in FRAMEWORKS if name != INDUCTOR or COMPILER), key=lambda name: name != INDUCTOR)
"""The longest job first; inductor needs a compiler."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, request):
    """Start every job that the chosen tests ask for, two at a time, and hand them out by name as they end."""
    wanted = {item.callspec.params["name"] for item in request.session.items if item.module is request.module}
    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        started = {
            name: pool.submit(run_job, FRAMEWORKS[name], tmp_path_factory.mktemp(name))
            for name in NAMES
            if name in wanted
        }
        yield started
        for job in started.values():
            job.cancel()


@pytest.fixture
def job(jobs, name):
    return jobs[name].result()


@pytest.mark.parametrize("name", NAMES)
def test_agent_did_well(job):
    """No hook failed, no record was torn, every rank ended well, and the parts of every step sum to it exactly."""
    for rank in job.ranks:
        assert (rank.ring.failures, rank.ring.torn, rank.ring.state) == (0, 0, STATE_FINISHED)
        assert {unaccounted_ns(record) for record in rank.ring.records} == {0}


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("name", NAMES)
def test_cell(job, name, signal):
    """The records show of a signal what the matrix declares; on some ranks, as a checkpoint, it may not happen."""
    observed = {observe(signal, rank) for rank in job.ranks}
    assert (observed - {ABSENT} or {ABSENT}) == {FRAMEWORKS[name].cell(signal)}


@pytest.mark.parametrize("name", [name for name in NAMES if FRAMEWORKS[name].compares])
def test_agent_compiles_nothing_more(job):
    """A compiled model has the same graphs at each step, and the same losses bit for bit, with and without the agent."""
    (rank,), (unwatched,) = job.ranks, job.unwatched
    assert rank.ledger["graphs"] == unwatched["graphs"]
    assert rank.ledger["losses"] == unwatched["losses"]
    assert rank.ledger["graphs"][-1] > 0


@pytest.mark.parametrize("name", NAMES)
def test_versions_are_those_of_the_page(job):
    """What was run is what docs/frameworks.md lists as run."""
    for library, version in job.ranks[0].ledger["versions"].items():
        assert version.partition("+")[0] == VERSIONS[library]
