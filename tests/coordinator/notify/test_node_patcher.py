"""Node conditions, against an API server of aiohttp: what is sent, when again, and what is counted."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.notify.node_condition import NOT_SLOW, NodeCondition, path_of, wanted_conditions
from coordinator.notify.node_patcher import ApiServer, NodePatcher, make_node_patcher
from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts.errors import ConfigError
from tests.coordinator.conftest import until
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_runs import play, runs, two_nodes
from tests.coordinator.test_store import incident
from tests.support.servers import WAIT_S

NOW_S = 1_700_000_000.0
NODES = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
SLOW = incident(1, kind="slow_rank", cause="compute", scope="rank", ranks=(2,))


class Cluster:
    """An API server that answers with `statuses` in turn, then with 200."""

    def __init__(self, tmp_path):
        self.requests, self.statuses = [], []
        self.token = tmp_path / "token"
        self.token.write_text("secret-1\n")
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.server = TestServer(app)

    async def _answer(self, request):
        self.requests.append((request.method, request.raw_path, dict(request.headers), await request.json()))
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 401:
            self.token.write_text("secret-2")
        return web.Response(status=status, text="{}")

    def sent(self):
        """Return (node's path, status, reason) of each patch."""
        conditions = [(path, body["status"]["conditions"]) for _, path, _, body in self.requests]
        return [(path, only["status"], only["reason"]) for path, (only,) in conditions]


def watched(*incidents, nodes=NODES):
    """Return runs of one run with these open incidents."""
    tracker = SimpleNamespace(incidents={each.id: each for each in incidents})
    run = SimpleNamespace(membership=SimpleNamespace(nodes=nodes), machine=SimpleNamespace(tracker=tracker))
    return SimpleNamespace(by_name={"job": run})


@pytest.fixture
async def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    await cluster.server.start_server()
    cluster.url = str(cluster.server.make_url("/"))
    yield cluster
    await cluster.server.close()


@contextlib.asynccontextmanager
async def patching(cluster, known):
    """Run a patcher whose waits end at once; give it, its waits and who leads."""
    waits, leadership = [], SimpleNamespace(leads=True)

    async def wait(seconds):
        waits.append(seconds)
        await asyncio.sleep(0)

    server = ApiServer(url=cluster.url, token_file=str(cluster.token), ca_file="")
    patcher = NodePatcher(server, known, leadership, now_s=lambda: NOW_S, wait=wait, jitter=lambda: 1.0)
    task = asyncio.ensure_future(patcher.run())
    patcher.on_tick()
    yield patcher, waits, leadership
    patcher.stop()
    await asyncio.wait_for(task, WAIT_S)


async def test_the_condition_is_a_strategic_merge_patch_of_the_nodes_status(cluster):
    """Method, path, content type, token and body are what the API server wants; the slow node comes first."""
    async with patching(cluster, watched(SLOW)) as (patcher, _, _):
        await until(lambda: patcher.counts["applied"] == 2)
    method, path, headers, body = cluster.requests[0]
    assert (method, path) == ("PATCH", "/api/v1/nodes/n1/status")
    assert headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert headers["Authorization"] == "Bearer secret-1"
    (condition,) = body["status"]["conditions"]
    assert condition == {
        "type": "LockstepSlowDevice",
        "status": "True",
        "reason": "SlowRank",
        "message": f"Incident {SLOW.id} of run job: rank 2 is slower than its peers, compute",
        "lastHeartbeatTime": "2023-11-14T22:13:20Z",
        "lastTransitionTime": "2023-11-14T22:13:20Z",
    }
    assert cluster.sent()[1:] == [("/api/v1/nodes/n0/status", "False", "NoSlowRank")]


async def test_the_condition_is_withdrawn_when_the_incident_closes(cluster):
    """And nothing is sent while nothing changes, or by a follower."""
    known = watched(SLOW)
    async with patching(cluster, known) as (patcher, _, leadership):
        await until(lambda: patcher.counts["applied"] == 2)
        patcher.on_tick()
        known.by_name["job"].machine.tracker.incidents.clear()
        patcher.on_tick()
        await until(lambda: patcher.counts["applied"] == 3)
        assert cluster.sent()[-1] == ("/api/v1/nodes/n1/status", "False", "NoSlowRank")
        leadership.leads = False
        known.by_name["job"].machine.tracker.incidents[SLOW.id] = SLOW
        patcher.on_tick()
    assert len(cluster.requests) == 3


async def test_a_node_that_its_ranks_leave_loses_the_condition(cluster):
    """The run is forgotten, and with it the incident."""
    known = watched(SLOW)
    async with patching(cluster, known) as (patcher, _, _):
        await until(lambda: patcher.counts["applied"] == 2)
        known.by_name.clear()
        patcher.on_tick()
        await until(lambda: patcher.counts["applied"] == 3)
    assert cluster.sent()[-1] == ("/api/v1/nodes/n1/status", "False", "NoSlowRank")


async def test_failures_on_the_way_are_tried_again_and_counted(cluster):
    """Overload, an expired token and a server in trouble; the wait doubles, and the token is read again."""
    cluster.statuses = [503, 401, 429]
    async with patching(cluster, watched(SLOW, nodes={2: "n1"})) as (patcher, waits, _):
        await until(lambda: patcher.counts["applied"] == 1)
    assert patcher.counts == {"applied": 1, "refused": 0, "retried": 3}
    assert waits == [1.0, 2.0, 4.0]
    assert [path for path, _, _ in cluster.sent()] == ["/api/v1/nodes/n1/status"] * 4
    tokens = [headers["Authorization"] for _, _, headers, _ in cluster.requests]
    assert tokens == ["Bearer secret-1"] * 2 + ["Bearer secret-2"] * 2


@pytest.mark.parametrize("status", [403, 404, 307])
async def test_what_the_server_refuses_is_not_tried_again(cluster, status):
    """No right, no such node, or another address: counted once, and the other node is set all the same."""
    cluster.statuses = [status]
    async with patching(cluster, watched(SLOW)) as (patcher, waits, _):
        await until(lambda: patcher.counts["applied"] == 1)
        patcher.on_tick()
    assert patcher.counts == {"applied": 1, "refused": 1, "retried": 0}
    assert (waits, len(cluster.requests)) == ([], 2)


async def test_a_server_that_is_away_and_a_token_that_is_gone_are_tried_again(cluster):
    """Neither ends the task."""
    await cluster.server.close()
    async with patching(cluster, watched(SLOW)) as (patcher, _, _):
        await until(lambda: patcher.counts["retried"] >= 2)
        cluster.token.unlink()
        before = patcher.counts["retried"]
        await until(lambda: patcher.counts["retried"] >= before + 2)
    assert patcher.counts["applied"] == 0


def test_a_slow_device_that_was_detected_marks_its_node():
    """From step records to the condition: rank 2 works longer on the device, its node is n1."""
    watch = runs()
    two_nodes(watch)
    play(watch, generate(Scenario(degrees="dp=4", steps=80).with_fault("compute", 2, seconds=0.2, begin=40)), 0, 60)
    wanted = wanted_conditions(watch.by_name.values())
    assert {node: condition.is_slow for node, condition in wanted.items()} == {"n0": False, "n1": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"cause": "data"},
        {"cause": "gc"},
        {"kind": "slow_link"},
        {"scope": "group"},
        {"ranks": tuple(range(9))},
    ],
    ids=str,
)
def test_what_is_not_one_machines_fault_marks_none(changes):
    """A program's cause, a link, a group, and more nodes than one fault has."""
    found = incident(1, **({"kind": "slow_rank", "cause": "compute", "scope": "rank", "ranks": (2,)} | changes))
    wanted = wanted_conditions(watched(found, nodes={rank: f"n{rank}" for rank in range(9)}).by_name.values())
    assert set(wanted.values()) == {NOT_SLOW}


def test_names_that_no_node_has_are_left_out():
    """They come from the bus; a path is quoted besides."""
    nodes = dict(enumerate(("n0", "../pods", "N1", "a b", "", "x" * 300)))
    assert wanted_conditions(watched(nodes=nodes).by_name.values()) == {"n0": NOT_SLOW}
    assert path_of("a/../b") == "/api/v1/nodes/a%2F..%2Fb/status"
    assert b"LockstepSlowDevice" in NodeCondition(is_slow=True, message="m").body(NOW_S)


def test_the_files_are_checked_at_the_start(tmp_path):
    """Without an address there is nothing; with one, its token must be there."""
    assert make_node_patcher(CoordinatorConfig(), None, None, lambda: NOW_S) is None
    token = tmp_path / "token"
    values = {"kubernetes_api_url": "https://kubernetes.default.svc", "kubernetes_token_file": str(token)}
    config = CoordinatorConfig(**values, kubernetes_ca_file="")
    with pytest.raises(ConfigError, match="kubernetes_token_file"):
        make_node_patcher(config, None, None, lambda: NOW_S)
    token.write_text("secret")
    assert make_node_patcher(config, None, None, lambda: NOW_S) is not None
