"""From a slow rank to the pager: real ranks, mosquitto, Prometheus and Alertmanager."""

import pytest

from tests.support.servers import LIVE_LIMIT_S, PATIENCE_S, get, wait_until
from tests.support.stack import fault_begin, full_stack

pytestmark = [pytest.mark.torch, pytest.mark.servers, pytest.mark.timeout(LIVE_LIMIT_S)]

STRANGERS_CORES = 0.5
"""Of all cores, while the job ran: with less than these a rank is slow, and to name it is right."""
RANKS = 4
FUNCTIONS = {"compute": "redundant_attention", "data": "read_document", "gc": "sweep_cache"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with full_stack(tmp_path_factory.mktemp("stack")) as running_stack:
        yield running_stack


@pytest.mark.parametrize(("fault", "rank"), [("compute", 2), ("data", 1), ("gc", 3)])
def test_the_page_names_rank_and_cause(stack, fault, rank):
    """Each fault pages with its rank and cause, and its incident ends up with the function that is slow."""
    run = f"slow-{fault}"
    with stack.job(run, fault, rank) as log:
        page = wait_until(
            lambda: stack.pager.alerts(alertname="LockstepSlowDeviceFound", run=run, rank=str(rank)),
            PATIENCE_S,
            f"page for {fault}",
        )
        wait_until(
            lambda: any(i["function"] and rank in i["ranks"] for i in stack.incidents(run)),
            PATIENCE_S,
            f"function behind {fault}",
        )
        incidents = stack.incidents(run)
        begin = fault_begin(log)
        crowded = {each for each in range(RANKS) if stack.strangers_cores(run, each) >= STRANGERS_CORES} - {rank}
    delivered_at, alert = page[0]
    assert (alert["labels"]["rank"], alert["labels"]["cause"]) == (str(rank), fault)
    assert alert["status"] == "firing"
    assert begin is not None
    assert delivered_at > begin[1], "the page came before the fault"
    named = [alert["labels"] for _, alert in stack.pager.alerts(alertname="LockstepSlowDeviceFound", run=run)]
    assert {(each["rank"], each["cause"]) for each in named if int(each["rank"]) not in crowded} == {(str(rank), fault)}
    slow = [each for each in incidents if each["kind"] == "slow_rank" and not set(each["ranks"]) <= crowded]
    assert [sorted(set(each["ranks"]) - crowded) for each in slow] == [[rank]]
    (incident,) = slow
    assert FUNCTIONS[fault] in incident["function"]
    assert incident["cause"] == fault
    assert abs(incident["onset_step"] - begin[0]) <= 3  # noise before it can look like its beginning
    assert incident["evidence"]
    assert incident["advice"]
    assert incident["profile"]["cost_seconds"] > 0


def test_a_healthy_job_pages_no_one(stack):
    """Without a fault no rank is named and no page arrives in 200 steps, but for ranks whose cores strangers had."""
    with stack.job("healthy", "none", 0):
        stack.wait_step("healthy", 200, PATIENCE_S)
        named = {rank for each in stack.incidents("healthy") for rank in each["ranks"]}
        paged = {
            int(alert["labels"]["rank"]) for _, alert in stack.pager.alerts(run="healthy") if "rank" in alert["labels"]
        }
        assert paged <= named
        assert {rank for rank in named if stack.strangers_cores("healthy", rank) < STRANGERS_CORES} == set()
        metrics = get(f"{stack.coordinator}/metrics")
    assert named or 'lockstep_run_slow_ranks{run="healthy"} 0' in metrics
