"""The matrix of real frameworks over several ranks, cell by cell, and the rank that their jobs are held back by."""

import statistics
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.detect.anomalies import SLOW_RANK
from lockstep.contracts.ring import STATE_FINISHED, STATE_RUNNING
from tests.agent.frameworks.distributed.detection import incidents
from tests.agent.frameworks.distributed.evidence import observe
from tests.agent.frameworks.distributed.jobs import RUN, run_job
from tests.agent.frameworks.distributed.matrix import FRAMEWORKS, ONSET_STEP, SIGNALS, VERSIONS
from tests.agent.frameworks.matrix import ABSENT, SEEN
from tests.agent.rings import self_ns, unaccounted_ns

pytestmark = [pytest.mark.frameworks, pytest.mark.torch, pytest.mark.timeout(1800)]

JOBS_AT_ONCE = 2
ONSET_MARGIN_STEPS = 3
RECORDED = [signal for signal in SIGNALS if signal not in ("losses", "slow rank")]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, request):
    """Start every job that the chosen tests ask for, two at a time, and return them by name as they end."""
    wanted = {item.callspec.params["name"] for item in request.session.items if item.module is request.module}
    with ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        started = {
            name: pool.submit(run_job, framework, tmp_path_factory.mktemp(name))
            for name, framework in FRAMEWORKS.items()
            if name in wanted
        }
        yield started
        for job in started.values():
            job.cancel()


@pytest.fixture
def job(jobs, name):
    return jobs[name].result()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_agent_did_well(job, name):
    """No hook failed, no record was torn, every rank that ends by itself ended well, and every step adds up.

    A worker that its framework kills may have ended by itself before.
    """
    states = {STATE_FINISHED} if FRAMEWORKS[name].ends_by_exit else {STATE_FINISHED, STATE_RUNNING}
    for rank in job.ranks:
        assert (rank.ring.failures, rank.ring.torn) == (0, 0)
        assert rank.ring.state in states
        assert {unaccounted_ns(record) for record in rank.ring.records} == {0}


@pytest.mark.parametrize("signal", RECORDED)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_cell(job, name, signal):
    """The records of all ranks show of a signal what the matrix declares; on some ranks it may not happen."""
    observed = {observe(signal, rank) for rank in job.ranks}
    assert (observed - {ABSENT} or {ABSENT}) == {FRAMEWORKS[name].cell(signal)}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_losses_are_those_without_the_agent(job, name):
    """Each rank has the same losses, bit for bit, with and without the agent; one rank at least has losses."""
    watched = [rank.ledger["losses"] for rank in job.ranks]
    assert watched == [ledger["losses"] for ledger in job.unwatched]
    assert any(watched)
    assert FRAMEWORKS[name].cell("losses") is SEEN


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_slow_rank_is_named(job, name):
    """The real detector names the delayed rank, since when it is slow, and lays the fault to no other rank."""
    framework = FRAMEWORKS[name]
    opened = [(incident.kind, incident.ranks, incident.onset_step) for incident in incidents(job.root, RUN)]
    found = [
        (kind, ranks, onset_step)
        for kind, ranks, onset_step in opened
        if onset_step > ONSET_STEP - ONSET_MARGIN_STEPS - 1 and ranks
    ]
    shown = "\n".join((f"all incidents: {opened}", *(work_text(rank.ring.records) for rank in job.ranks)))
    assert [(kind, ranks) for kind, ranks, _ in found] == [(SLOW_RANK, (framework.slow_rank,))], shown
    assert abs(found[0][2] - ONSET_STEP) <= ONSET_MARGIN_STEPS, shown
    assert framework.cell("slow rank") is SEEN


def work_text(records):
    """Return what a rank's record shows of its own work before the onset and from it on: median and scatter, ms."""
    texts = []
    for first, last in ((ONSET_STEP // 2, ONSET_STEP), (ONSET_STEP, None)):
        work_ms = sorted(self_ns(record) / 1e6 for record in records[first:last])
        median_ms = statistics.median(work_ms)
        scatter_ms = 1.4826 * statistics.median(abs(each - median_ms) for each in work_ms)
        texts.append(f"{median_ms:.0f} ms, sigma {scatter_ms:.0f}, at most {work_ms[-1]:.0f}")
    return f"own work until and from step {ONSET_STEP}: {'; '.join(texts)}"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_versions_are_those_of_the_page(job, name):
    """What was run is what docs/frameworks.md lists."""
    for library, version in job.ranks[0].ledger["versions"].items():
        assert version.partition("+")[0] == VERSIONS[library]
